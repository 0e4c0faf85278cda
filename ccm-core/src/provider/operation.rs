//! The context of a call to a provider.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{CloudError, ErrorKind, sleep_budget::SleepBudget};
use crate::{
    error::caught,
    provider::call_metrics::MutationMetrics,
    write_gate::{InFlightWrite, WriteGate},
};

/// The minimum and the maximum delay between two checks of an object that is pending in the cloud.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));

/// The context of a call to a provider, with its cluster, its limits and its write gate. Cheap to
/// clone.
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
    /// The number of changes that this call has in flight.
    open: watch::Sender<usize>,
    /// The time that this call has slept.
    sleep_budget: Arc<SleepBudget>,
}

impl Op {
    /// Creates a context without deadline and without events.
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

    /// Sets the controller's reason for the call, such as `service created`. It is logged with each
    /// change ([`mutate`](Self::mutate)).
    #[must_use]
    pub fn with_reason(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }

    /// Sets the metrics in which mutations are counted.
    #[must_use]
    pub fn with_mutations(mut self, metrics: MutationMetrics) -> Self {
        self.mutations = Some(metrics);
        self
    }

    /// Sets a deadline, at which [`run`](Self::run) ends.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Creates the operation for one call of a provider, which ends at `deadline`. Changes that
    /// other calls have in flight do not delay the end of this one when the operation is cancelled.
    #[must_use]
    pub(crate) fn for_call(self, deadline: Instant) -> Self {
        Self {
            open: watch::Sender::new(0),
            ..self.with_deadline(deadline).with_fresh_sleep_budget()
        }
    }

    /// Resets the time that the call may [sleep](Self::sleep). The framework does this for each
    /// call. A provider's own loop should do it for each iteration.
    #[must_use]
    pub fn with_fresh_sleep_budget(self) -> Self {
        Self { sleep_budget: Arc::default(), ..self }
    }

    /// Sets the time for which the object has been pending.
    #[must_use]
    pub fn with_pending_for(mut self, pending_for: Duration) -> Self {
        self.pending_for = pending_for;
        self
    }

    /// Sets the sink for events, which emits them on the object of the call.
    #[must_use]
    pub fn with_events(mut self, events: Arc<dyn EventSink>) -> Self {
        self.events = events;
        self
    }

    /// Returns the value of `--cluster-name`.
    pub fn cluster_name(&self) -> &str {
        &self.cluster
    }

    /// Returns the controller's reason for the call, which is empty if it set none.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    pub(super) fn mutations(&self) -> Option<&MutationMetrics> {
        self.mutations.as_ref()
    }

    /// Returns the time until the deadline, or `None` if there is none.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline
            .map(|d| d.saturating_duration_since(Instant::now()))
    }

    /// Returns the time for which the calls for this object have returned
    /// [`Progress::Pending`](super::Progress::Pending) without interruption. It is zero at the
    /// first call. A provider can use it to compute its next delay, and to emit an event if the
    /// wait becomes too long.
    pub fn pending_for(&self) -> Duration {
        self.pending_for
    }

    /// Returns the delay before the next check of a pending object. It is between 1 s and 15 s, and
    /// grows with the time that the object has been pending: each delay is as long as all before it
    /// together.
    pub fn poll_interval(&self) -> Duration {
        self.pending_for.clamp(POLL_INTERVAL.0, POLL_INTERVAL.1)
    }

    /// Checks that this process may write.
    ///
    /// Must be called immediately before *every* request that creates, changes or deletes
    /// something. [`mutate`](Self::mutate) does this. A request that was already sent may finish.
    ///
    /// # Errors
    /// Returns [`ErrorKind::NotLeader`] if leadership can no longer be proven, and
    /// [`ErrorKind::Canceled`] if the operation was cancelled.
    pub fn may_write(&self) -> Result<(), CloudError> {
        if self.cancel.is_cancelled() {
            return Err(canceled("operation was cancelled"));
        }
        Ok(self.gate.may_write()?)
    }

    /// Checks that this process may write, and registers a change as in flight. The caller must
    /// send it at once.
    pub(super) fn begin_mutation(&self) -> Result<InFlightMutation, CloudError> {
        self.may_write()?;
        let writing = self.gate.begin_write()?;
        self.open.send_modify(|open| *open += 1);
        Ok(InFlightMutation { write: Some(writing), open: self.open.clone() })
    }

    /// Returns true if the operation was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until the operation is cancelled.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Runs `call` until it ends, the operation is cancelled, or the deadline passes. If a
    /// [`mutate`](Self::mutate) is in flight when the operation is cancelled, `call` continues
    /// until that is answered.
    ///
    /// # Errors
    /// Returns the error of `call`, [`ErrorKind::Canceled`] after a cancellation or the deadline,
    /// and [`ErrorKind::Transient`] if `call` panics. A panic therefore fails one object or one
    /// batch, and does not end the process.
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

    /// Turns [`ErrorKind::Canceled`] into a transient error if the operation was not cancelled,
    /// because then the deadline passed or the provider itself gave up. `what` describes the
    /// missing answer. Returns every other error unchanged.
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

    /// Returns the time that this call may still [sleep](Self::sleep), of two seconds in total.
    /// Overlapping sleeps count once.
    pub fn remaining_sleep(&self) -> Duration {
        self.sleep_budget.remaining()
    }

    /// Sleeps, for example for a client's rate limit or before a retry. Returns true afterwards.
    ///
    /// If this call may not sleep for that long any more, returns false immediately. The call
    /// should then end, with the missing time as the delay before the next call.
    ///
    /// # Cancellation
    /// If the future is dropped, the whole time counts as slept.
    pub async fn sleep(&self, wait: Duration) -> bool {
        let within_budget = self.sleep_budget.begin(wait);
        if within_budget && !wait.is_zero() {
            // The actual sleep may take a little longer than requested.
            self.wait_shared(tokio::time::sleep(wait)).await;
        }
        within_budget
    }

    /// Waits for something that another call holds, such as a lock or a shared response. The time
    /// counts as slept, because the other call may sleep meanwhile. The wait has no limit.
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

    /// Emits an event on the object of the call. Does nothing in calls that concern many objects.
    pub fn event(&self, kind: EventType, reason: &'static str, note: &str) {
        self.events.record(kind, reason, note);
    }
}

/// A change in flight. It is registered with the call that requested it and with the write gate.
pub(super) struct InFlightMutation {
    write: Option<InFlightWrite>,
    open: watch::Sender<usize>,
}

impl InFlightMutation {
    pub(super) fn complete(mut self) {
        if let Some(write) = self.write.take() {
            write.complete();
        }
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

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Information that needs no action.
    Normal,
    /// A problem that may need action.
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

/// A sink that emits events on one object. It never blocks, and drops events if its queue is full.
pub trait EventSink: Send + Sync {
    /// Emits one event. The reason is in PascalCase and from a fixed set, and the note is shorter
    /// than 1 kB.
    fn record(&self, kind: EventType, reason: &'static str, note: &str);
}

struct NoEvents;

impl EventSink for NoEvents {
    fn record(&self, _: EventType, _: &'static str, _: &str) {}
}

/// Creates the error of a call in which the provider panicked. `panic` is the panic message.
pub(super) fn panicked(panic: &str) -> CloudError {
    CloudError::of_panic(panic)
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
