use std::{future::Future, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{CloudError, ErrorKind, sleep_budget::SleepBudget};
use crate::{
    error::caught,
    provider::metrics::MutationMetrics,
    write_gate::{InFlightWrite, WriteGate},
};

/// Shortest and longest wait between two looks at an object that the cloud is still busy with.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));

/// One operation that the framework asks of a provider: its identity, its limits, and the right to write.
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
    /// Changes that this call has requested and that have no answer yet.
    open: watch::Sender<usize>,
    /// How long this call has slept.
    sleep_budget: Arc<SleepBudget>,
}

impl Op {
    /// Makes an operation without deadline and events.
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

    /// Says why the controller asks, such as `service created`, for the record of each change ([`mutate`](Self::mutate)).
    #[must_use]
    pub fn with_reason(mut self, reason: &'static str) -> Self {
        self.reason = reason;
        self
    }

    /// Counts changes of the cloud.
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

    /// Makes the operation of one call of a provider, which ends at `deadline`. What other calls have requested does not
    /// hold it up when the operation is cancelled.
    #[must_use]
    pub(crate) fn for_call(self, deadline: Instant) -> Self {
        Self { open: watch::Sender::new(0), ..self.with_deadline(deadline).with_fresh_sleep_budget() }
    }

    /// Lets the operation [sleep](Self::sleep) anew. The framework does so for each call; a loop of a provider's own does it
    /// for each of its turns.
    #[must_use]
    pub fn with_fresh_sleep_budget(self) -> Self {
        Self { sleep_budget: Arc::default(), ..self }
    }

    /// Tells the provider how long the object has been waited for.
    #[must_use]
    pub fn with_pending_for(mut self, pending_for: Duration) -> Self {
        self.pending_for = pending_for;
        self
    }

    /// Sends events to the object at hand.
    #[must_use]
    pub fn with_events(mut self, events: Arc<dyn EventSink>) -> Self {
        self.events = events;
        self
    }

    /// Returns the value of `--cluster-name`.
    pub fn cluster_name(&self) -> &str {
        &self.cluster
    }

    /// Returns why the controller asks; empty when it did not say.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    pub(super) fn mutations(&self) -> Option<&MutationMetrics> {
        self.mutations.as_ref()
    }

    /// Returns the time left, or `None` without a deadline.
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline.map(|d| d.saturating_duration_since(Instant::now()))
    }

    /// Returns for how long the object at hand has been answered with
    /// [`Progress::Pending`](super::Progress::Pending) without a pause; zero at the first try. A provider chooses its
    /// next wait by it, and tells the user when a wait becomes too long, without keeping counts of its own.
    pub fn pending_for(&self) -> Duration {
        self.pending_for
    }

    /// Returns when to look again at the object at hand: after as long as it has been waited for, which doubles the time
    /// between looks, but at least one second and at most fifteen.
    pub fn poll_interval(&self) -> Duration {
        self.pending_for.clamp(POLL_INTERVAL.0, POLL_INTERVAL.1)
    }

    /// Checks the right to change anything. It has to be asked immediately before *every* request that creates, changes or
    /// deletes; [`mutate`](Self::mutate) does. A request already sent may finish.
    ///
    /// # Errors
    /// [`ErrorKind::NotLeader`] when leadership cannot be proved any more, [`ErrorKind::Canceled`] when the operation
    /// was cancelled.
    pub fn may_write(&self) -> Result<(), CloudError> {
        if self.cancel.is_cancelled() {
            return Err(canceled("operation was cancelled"));
        }
        Ok(self.gate.may_write()?)
    }

    /// Like [`may_write`](Self::may_write), for a request that is sent at once.
    pub(super) fn begin_mutation(&self) -> Result<InFlightMutation, CloudError> {
        self.may_write()?;
        let writing = self.gate.begin_write()?;
        self.open.send_modify(|open| *open += 1);
        Ok(InFlightMutation { write: Some(writing), open: self.open.clone() })
    }

    /// Tells whether the operation was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits until the operation is cancelled.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Runs `call` until it ends, the operation is cancelled, or its deadline passes. What has begun a
    /// [`mutate`](Self::mutate) when the operation is cancelled runs on until that has its answer.
    ///
    /// # Errors
    /// What `call` returns; [`ErrorKind::Canceled`]; [`ErrorKind::Transient`] when it panics, which is then one object's or one
    /// batch's failure and not the end of the process.
    ///
    /// # Cancellation
    /// `call` is dropped at an await point.
    pub async fn run<T>(&self, call: impl Future<Output = Result<T, CloudError>>) -> Result<T, CloudError> {
        // Boxed, since calls are large and every wrapper around one would be again.
        let call = Box::pin(async { caught(call).await.unwrap_or_else(|panic| Err(panicked(&panic))) });
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
            // An error only without a sender, but here is one.
            drop(open.wait_for(|open| *open == 0).await);
        };
        if self.cancel.is_cancelled() && *self.open.borrow() == 0 {
            return Err(canceled("operation was cancelled"));
        }
        tokio::select! {
            // In this order, so that a call whose last change was answered can say so.
            biased;
            result = bounded => result,
            () = given_up => Err(canceled("operation was cancelled")),
        }
    }

    /// Makes an error worth a retry of a call that was given up although nobody cancelled it: the cloud was too slow, or the
    /// provider gave up by itself. `what` says which answer is missing; every other error stays as it is.
    pub(crate) fn as_timeout(&self, error: CloudError, what: impl FnOnce() -> String) -> CloudError {
        match error.kind() {
            ErrorKind::Canceled if !self.is_cancelled() => CloudError::transient(what()).with_source(error),
            _ => error,
        }
    }

    /// Returns how long this call may sleep from now on: two seconds in all, less what [`sleep`](Self::sleep) took. What
    /// sleeps at the same time counts once.
    pub fn remaining_sleep(&self) -> Duration {
        self.sleep_budget.remaining()
    }

    /// Sleeps, for a client's budget or before it sends a request again. Returns `false` at once when that is longer than
    /// this call may still sleep; then the time that is missing belongs into the answer.
    ///
    /// # Cancellation
    /// The time counts as slept.
    pub async fn sleep(&self, wait: Duration) -> bool {
        let taken = self.sleep_budget.begin(wait);
        if taken && !wait.is_zero() {
            // It may take a little longer.
            self.wait_shared(tokio::time::sleep(wait)).await;
        }
        taken
    }

    /// Waits for what another call has in its hands, such as a lock or a shared answer. That call may sleep with it, so the
    /// time counts as slept; the wait itself ends when the other does.
    pub async fn wait_shared<T>(&self, wait: impl Future<Output = T>) -> T {
        let since = Instant::now();
        let got = wait.await;
        self.sleep_budget.charge_since(since);
        got
    }

    /// Counts time that this call waited in another way, as if it had slept.
    pub fn charge_sleep(&self, waited: Duration) {
        self.sleep_budget.charge(waited);
    }

    /// Records an event on the object at hand; does nothing where there is none (batches over many nodes).
    pub fn event(&self, kind: EventType, reason: &'static str, note: &str) {
        self.events.record(kind, reason, note);
    }
}

/// A change on its way: known to the call that requested it, and under the Lease that allowed it.
pub(super) struct InFlightMutation {
    write: Option<InFlightWrite>,
    open: watch::Sender<usize>,
}

impl InFlightMutation {
    pub(super) fn complete(mut self) {
        self.write.take().into_iter().for_each(InFlightWrite::complete);
    }
}

impl Drop for InFlightMutation {
    fn drop(&mut self) {
        self.open.send_modify(|open| *open -= 1);
    }
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Op").field("cluster", &self.cluster).field("deadline", &self.deadline).finish_non_exhaustive()
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
    /// Returns the spelling of the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Records events on one object. Never blocks; a full queue drops.
pub trait EventSink: Send + Sync {
    /// Records one event: reason in PascalCase from a fixed set, note under 1 kB.
    fn record(&self, kind: EventType, reason: &'static str, note: &str);
}

struct NoEvents;

impl EventSink for NoEvents {
    fn record(&self, _: EventType, _: &'static str, _: &str) {}
}

/// The error of a call in which the provider panicked; `panic`: what it said.
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
        let op = op(&CancellationToken::new()).with_deadline(Instant::now() + Duration::from_secs(1));
        let result: Result<(), _> = op.run(std::future::pending()).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Canceled);
        assert_eq!(op.remaining(), Some(Duration::ZERO));
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_the_call() {
        let op = op(&CancellationToken::new());
        let result: Result<(), _> = op.run(async { panic!("refused [authorization: Bearer abcDEF0123456789]") }).await;
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
            op(&CancellationToken::new()).with_pending_for(Duration::from_secs(waited)).poll_interval().as_secs()
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
