//! The context of one call of a provider.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{CloudError, ErrorKind, sleep_budget::SleepBudget};
use crate::{
    error::caught,
    provider::call_metrics::MutationMetrics,
    write_gate::{InFlightWrite, WriteGate},
};

/// Minimum and maximum delay between two checks of an object that is pending in the cloud.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));

/// Context of one operation that the framework requests from a provider: its cluster, its limits
/// and its write gate.
///
/// Passed to every call. Cheap to clone.
#[derive(Clone)]
pub struct Op {
    cluster: Arc<str>,
    cancel: CancellationToken,
    deadline: Option<Instant>,
    pending_for: Duration,
    gate: WriteGate,
    events: Arc<dyn EventSink>,
    reason: &'static str,
    mutations: Option<MutationMetrics>,
    /// Number of changes that this call has in flight.
    open: watch::Sender<usize>,
    /// How long this call has slept.
    sleep_budget: Arc<SleepBudget>,
}

impl Op {
    /// Makes an operation without deadline and without events.
    pub fn new(cluster: impl Into<Arc<str>>, cancel: CancellationToken, gate: WriteGate) -> Self {
        Self {
            cluster: cluster.into(),
            cancel,
            deadline: None,
            pending_for: Duration::ZERO,
            gate,
            events: Arc::new(NoEvents),
            reason: "",
            mutations: None,
            open: watch::Sender::new(0),
            sleep_budget: Arc::default(),
        }
    }

    /// Sets why the controller makes the call, such as `service created`, for the log record of
    /// each change ([`mutate`](Self::mutate)).
    #[must_use]
    pub fn with_reason(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }

    /// Counts mutations in these metrics.
    #[must_use]
    pub fn with_mutations(mut self, metrics: MutationMetrics) -> Self {
        self.mutations = Some(metrics);
        self
    }

    /// Ends the operation at `deadline`.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Makes the operation for one call of a provider, which ends at `deadline`. Changes that other
    /// calls have in flight do not delay the end of this one when the operation is cancelled.
    #[must_use]
    pub(crate) fn for_call(self, deadline: Instant) -> Self {
        Self {
            open: watch::Sender::new(0),
            ..self.with_deadline(deadline).with_fresh_sleep_budget()
        }
    }

    /// Resets the time that the operation may [sleep](Self::sleep). The framework does so for each
    /// call; a provider's own loop does so for each iteration.
    #[must_use]
    pub fn with_fresh_sleep_budget(self) -> Self {
        Self { sleep_budget: Arc::default(), ..self }
    }

    /// Sets how long the object has been pending.
    #[must_use]
    pub fn with_pending_for(mut self, pending_for: Duration) -> Self {
        self.pending_for = pending_for;
        self
    }

    /// Sends events to the object that the operation concerns.
    #[must_use]
    pub fn with_events(mut self, events: Arc<dyn EventSink>) -> Self {
        self.events = events;
        self
    }

    /// Returns the value of `--cluster-name`.
    pub fn cluster_name(&self) -> &str {
        &self.cluster
    }

    /// Returns why the controller makes the call; empty when it set no reason.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    pub(super) fn mutations(&self) -> Option<&MutationMetrics> {
        self.mutations.as_ref()
    }

    /// Returns the time left, or `None` without a deadline.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline
            .map(|d| d.saturating_duration_since(Instant::now()))
    }

    /// Returns for how long the calls for this object have answered
    /// [`Progress::Pending`](super::Progress::Pending) without interruption; zero at the first
    /// attempt. A provider can derive its next delay from it, and emit an event when the wait
    /// becomes too long, without counters of its own.
    pub fn pending_for(&self) -> Duration {
        self.pending_for
    }

    /// Returns the delay before the next check of a pending object. It equals the time that the
    /// object has been pending, which doubles the time between checks, but is at least one second
    /// and at most fifteen.
    pub fn poll_interval(&self) -> Duration {
        self.pending_for.clamp(POLL_INTERVAL.0, POLL_INTERVAL.1)
    }

    /// Checks that this process may write. Must be called immediately before *every* request that
    /// creates, changes or deletes; [`mutate`](Self::mutate) does so. A request already sent may
    /// finish.
    ///
    /// # Errors
    /// [`ErrorKind::NotLeader`] when leadership can no longer be proven, [`ErrorKind::Canceled`]
    /// when the operation was cancelled.
    pub fn may_write(&self) -> Result<(), CloudError> {
        if self.cancel.is_cancelled() {
            return Err(canceled("operation was cancelled"));
        }
        Ok(self.gate.may_write()?)
    }

    /// Like [`may_write`](Self::may_write), for a request that is sent immediately. Also registers
    /// it as in flight.
    pub(super) fn begin_mutation(&self) -> Result<InFlightMutation, CloudError> {
        self.may_write()?;
        let writing = self.gate.begin_write()?;
        self.open.send_modify(|open| *open += 1);
        Ok(InFlightMutation { write: Some(writing), open: self.open.clone() })
    }

    /// Returns whether the operation was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until the operation is cancelled.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Runs `call` until it ends, the operation is cancelled, or its deadline passes. If a
    /// [`mutate`](Self::mutate) is in flight when the operation is cancelled, `call` runs on until
    /// that is answered.
    ///
    /// # Errors
    /// What `call` returns; [`ErrorKind::Canceled`]; [`ErrorKind::Transient`] when `call` panics,
    /// so that a panic fails one object or one batch instead of ending the process.
    ///
    /// # Cancellation
    /// `call` is dropped at an await point.
    pub async fn run<T>(
        &self,
        call: impl Future<Output = Result<T, CloudError>>,
    ) -> Result<T, CloudError> {
        // Boxed because calls are large futures, and every wrapper around one would be as large
        // again.
        let call = Box::pin(async {
            caught(call)
                .await
                .unwrap_or_else(|panic| Err(panicked(&panic)))
        });
        let bounded = async {
            match self.deadline {
                None => call.await,
                Some(deadline) => match tokio::time::timeout_at(deadline, call).await {
                    Ok(result) => result,
                    Err(_) => Err(canceled("deadline of the operation passed")),
                },
            }
        };
        let mut open = self.open.subscribe();
        let given_up = async {
            self.cancel.cancelled().await;
            // `wait_for` fails only when all senders are dropped, and `self` holds one.
            drop(open.wait_for(|open| *open == 0).await);
        };
        if self.cancel.is_cancelled() && *self.open.borrow() == 0 {
            return Err(canceled("operation was cancelled"));
        }
        tokio::select! {
            // Biased, so that a call whose last change was just answered can return its result.
            biased;
            result = bounded => result,
            () = given_up => Err(canceled("operation was cancelled")),
        }
    }

    /// Turns a cancellation that nobody requested into an error that is retried: the cloud was too
    /// slow, or the provider gave up by itself. `what` describes the missing answer. Every other
    /// error stays unchanged.
    pub(crate) fn as_timeout(
        &self,
        error: CloudError,
        what: impl FnOnce() -> String,
    ) -> CloudError {
        match error.kind() {
            ErrorKind::Canceled if !self.is_cancelled() => {
                CloudError::transient(what()).with_source(error)
            }
            _ => error,
        }
    }

    /// Returns how long this call may still sleep: two seconds in total, minus what
    /// [`sleep`](Self::sleep) took. Overlapping sleeps count once.
    pub fn remaining_sleep(&self) -> Duration {
        self.sleep_budget.remaining()
    }

    /// Sleeps, for a client's rate limit or before a request is repeated. Returns `false`
    /// immediately if this call must not sleep that long any more; the answer should then contain
    /// the missing time as its delay.
    ///
    /// # Cancellation
    /// The time counts as slept.
    pub async fn sleep(&self, wait: Duration) -> bool {
        let within_budget = self.sleep_budget.begin(wait);
        if within_budget && !wait.is_zero() {
            // The actual sleep may take a little longer than requested.
            self.wait_shared(tokio::time::sleep(wait)).await;
        }
        within_budget
    }

    /// Waits for something that another call holds, such as a lock or a shared answer. The other
    /// call may sleep meanwhile, so the time counts as slept. The wait is never cut short.
    pub async fn wait_shared<T>(&self, wait: impl Future<Output = T>) -> T {
        let since = Instant::now();
        let result = wait.await;
        self.sleep_budget.charge_since(since);
        result
    }

    /// Counts time that this call waited in another way, as if it had slept.
    pub fn charge_sleep(&self, waited: Duration) {
        self.sleep_budget.charge(waited);
    }

    /// Emits an event on the object that the operation concerns; does nothing where there is none
    /// (batches over many nodes).
    pub fn event(&self, kind: EventType, reason: &'static str, note: &str) {
        self.events.record(kind, reason, note);
    }
}

/// A change in flight. It is registered with the call that requested it and with the write gate
/// that allowed it.
pub(super) struct InFlightMutation {
    write: Option<InFlightWrite>,
    open: watch::Sender<usize>,
}

impl InFlightMutation {
    pub(super) fn complete(mut self) {
        self.write
            .take()
            .into_iter()
            .for_each(InFlightWrite::complete);
    }
}

impl Drop for InFlightMutation {
    fn drop(&mut self) {
        self.open.send_modify(|open| *open -= 1);
    }
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Op")
            .field("cluster", &self.cluster)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

fn canceled(message: &str) -> CloudError {
    CloudError::new(ErrorKind::Canceled, message)
}

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// `Normal`.
    Normal,
    /// `Warning`.
    Warning,
}

impl EventType {
    /// Returns the spelling that the Kubernetes API uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Emits events on one object. Never blocks; if the queue is full, the event is dropped.
pub trait EventSink: Send + Sync {
    /// Emits one event: reason in PascalCase from a fixed set, note under 1 kB.
    fn record(&self, kind: EventType, reason: &'static str, note: &str);
}

struct NoEvents;

impl EventSink for NoEvents {
    fn record(&self, _: EventType, _: &'static str, _: &str) {}
}

/// Makes the error of a call in which the provider panicked. `panic` is the panic message.
pub(super) fn panicked(panic: &str) -> CloudError {
    CloudError::transient(format!("the provider panicked: {panic}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(cancel: &CancellationToken) -> Op {
        Op::new("kubernetes", cancel.clone(), WriteGate::always_open())
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_ends_the_call_as_canceled() {
        let op =
            op(&CancellationToken::new()).with_deadline(Instant::now() + Duration::from_secs(1));
        let result: Result<(), _> = op.run(std::future::pending()).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Canceled);
        assert_eq!(op.remaining(), Some(Duration::ZERO));
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_the_call() {
        let op = op(&CancellationToken::new());
        let result: Result<(), _> = op
            .run(async { panic!("refused [authorization: Bearer abcDEF0123456789]") })
            .await;
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient);
        assert_eq!(error.to_string(), "the provider panicked: refused [authorization: Bearer …]");
    }

    #[tokio::test(start_paused = true)]
    async fn cancellation_ends_calls_and_the_right_to_write() {
        let cancel = CancellationToken::new();
        let op = op(&cancel);
        assert!(op.may_write().is_ok());
        cancel.cancel();
        assert_eq!(op.may_write().unwrap_err().kind(), ErrorKind::Canceled);
        let result: Result<(), _> = op.run(std::future::pending()).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Canceled);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_sleeps_no_longer_than_its_patience() {
        let first = op(&CancellationToken::new());
        let (begin, seconds) = (Instant::now(), Duration::from_secs);
        assert!(first.sleep(seconds(1)).await);
        assert!(!first.clone().sleep(seconds(2)).await, "a clone is the same call");
        assert_eq!((first.remaining_sleep(), begin.elapsed()), (seconds(1), seconds(1)));
        first.charge_sleep(Duration::from_millis(400));
        assert!(first.sleep(Duration::from_millis(600)).await);
        assert!(!first.sleep(Duration::from_millis(1)).await);
        assert!(first.for_call(begin + seconds(60)).sleep(seconds(2)).await, "another call");
    }

    #[test]
    fn looks_grow_apart_within_bounds() {
        let after = |waited| {
            op(&CancellationToken::new())
                .with_pending_for(Duration::from_secs(waited))
                .poll_interval()
                .as_secs()
        };
        assert_eq!([after(0), after(1), after(7), after(15), after(600)], [1, 1, 7, 15, 15]);
    }

    #[tokio::test]
    async fn a_closed_gate_is_not_leader() {
        let (gate, _keeper) = WriteGate::closed();
        let op = Op::new("kubernetes", CancellationToken::new(), gate);
        assert_eq!(op.may_write().unwrap_err().kind(), ErrorKind::NotLeader);
    }
}
