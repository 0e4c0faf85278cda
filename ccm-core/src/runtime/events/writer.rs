//! Writes events to the API server, one after another.

use std::{fmt, time::Duration};

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    EventMetrics, EventOutcome,
    correlator::CorrelatedEvent,
    outbox::{Outbox, Recorded},
};
use crate::{
    runtime::api::WritesInFlight,
    write_gate::{NotLeader, WriteGate},
};

/// The maximum number of attempts to write one event.
const MAX_ATTEMPTS: u32 = 12;
/// The delay between two attempts. Before the second attempt it is a random part of this, so that
/// many processes do not retry at the same time.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// The timeout of one request. The client's own timeout, if any, may be shorter.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum time for writing queued events after the process was told to stop.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(800);

/// Writes the events of an [`EventRecorder`](super::EventRecorder). Run it as a separate task.
pub struct EventWriter {
    pub(super) queue: mpsc::UnboundedReceiver<Recorded>,
    pub(super) client: Client,
    pub(super) component: String,
    pub(super) gate: WriteGate,
    pub(super) metrics: EventMetrics,
    /// Writes of state, which come before events.
    pub(super) writes: WritesInFlight,
}

impl fmt::Debug for EventWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventWriter")
            .field("component", &self.component)
            .finish_non_exhaustive()
    }
}

/// The error of one attempt to write an event.
enum WriteFailure {
    /// Another attempt may succeed.
    Transient(String),
    /// The server will never accept it.
    Final(String),
    NotLeader,
}

impl EventWriter {
    /// Delays each event while these writes are in flight, by at most five seconds after it was
    /// recorded.
    #[must_use]
    pub fn after(self, writes: WritesInFlight) -> Self {
        Self { writes, ..self }
    }

    /// Writes events until `stop` is cancelled. Then writes the queued ones, without delays and
    /// without retries, for at most 0.8 s. Returns earlier only if all recorders have been dropped.
    pub async fn run(mut self, stop: CancellationToken) {
        // Moved out of `self`, so that the remaining events can be counted at the end.
        let mut queue = std::mem::replace(&mut self.queue, mpsc::unbounded_channel().1);
        let mut outbox = Outbox::new();
        let write_all = self.write_all(&mut queue, &mut outbox, &stop);
        let time_is_up = async {
            stop.cancelled().await;
            sleep(FLUSH_TIMEOUT).await;
        };
        tokio::select! {
            () = write_all => {}
            () = time_is_up => {}
        }
        let unwritten = queue.len() + outbox.len();
        if unwritten > 0 {
            tracing::warn!(
                component = self.component,
                left = unwritten,
                "queued events were not written before the process stopped"
            );
        }
    }

    async fn write_all(
        &self,
        queue: &mut mpsc::UnboundedReceiver<Recorded>,
        outbox: &mut Outbox,
        stop: &CancellationToken,
    ) {
        loop {
            // While writes of state are in flight, first move the events that are queued now to the
            // outbox, where repetitions merge. Later arrivals must not delay the next write.
            let queued = if self.writes.is_empty() {
                0
            } else {
                queue.len()
            };
            for recorded in std::iter::from_fn(|| queue.try_recv().ok()).take(queued) {
                self.take(outbox, recorded);
            }
            let Some(until) = outbox.until() else {
                let Some(recorded) = queue.recv().await else {
                    return;
                };
                self.take(outbox, recorded);
                continue;
            };
            tokio::select! {
                biased;
                () = self.wait_for_turn(until, stop) => {
                    if let Some((event, repetitions)) = outbox.pop() {
                        self.handle(&event, repetitions, stop).await;
                    }
                }
                Some(recorded) = queue.recv() => self.take(outbox, recorded),
            }
        }
    }

    fn take(&self, outbox: &mut Outbox, recorded: Recorded) {
        if !outbox.take(recorded, Instant::now()) {
            self.metrics.count(EventOutcome::Throttled, 1);
        }
    }

    /// Waits until no write of state is in flight, until this time, or until `stop` is cancelled.
    async fn wait_for_turn(&self, until: Instant, stop: &CancellationToken) {
        tokio::select! {
            () = self.writes.wait_until_empty() => {}
            () = sleep_until(until) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Writes an event and counts it.
    async fn handle(&self, event: &CorrelatedEvent, repetitions: u64, stop: &CancellationToken) {
        let outcome = self.write(event, stop).await;
        self.metrics.count(outcome, 1);
        let repetitions_outcome = if outcome == EventOutcome::Created {
            EventOutcome::Counted
        } else {
            outcome
        };
        self.metrics.count(repetitions_outcome, repetitions);
    }

    /// Writes an event, with retries.
    async fn write(&self, event: &CorrelatedEvent, stop: &CancellationToken) -> EventOutcome {
        let mut attempts = 1;
        loop {
            let error = match self.try_write(event).await {
                Ok(outcome) => return outcome,
                Err(WriteFailure::NotLeader) => return EventOutcome::NotLeader,
                Err(WriteFailure::Final(error)) => {
                    tracing::warn!(event = %event.name, reason = event.reason, error, "event was rejected");
                    return EventOutcome::Failed;
                }
                Err(WriteFailure::Transient(error)) => error,
            };
            if attempts == MAX_ATTEMPTS || stop.is_cancelled() {
                tracing::warn!(event = %event.name, reason = event.reason, error, "event was not written");
                return EventOutcome::Failed;
            }
            tracing::debug!(event = %event.name, error, "event was not written, retrying");
            let delay = if attempts == 1 {
                RETRY_INTERVAL.mul_f64(rand::random())
            } else {
                RETRY_INTERVAL
            };
            stop.run_until_cancelled(sleep(delay)).await;
            attempts += 1;
        }
    }

    /// Makes one attempt to write an event, as an update or as a new object.
    async fn try_write(&self, event: &CorrelatedEvent) -> Result<EventOutcome, WriteFailure> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), event.object.event_namespace());
        if !event.is_new {
            let patch = json!({
                "count": event.count,
                "lastTimestamp": Time(event.last),
                "message": event.note,
            });
            let params = PatchParams::default();
            let patch = Patch::Merge(patch);
            match self.request(api.patch(&event.name, &params, &patch)).await {
                Ok(()) => return Ok(EventOutcome::Counted),
                // The server deletes events after an hour, or it never had this one.
                Err(Error::Api(status)) if status.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let body = self.body(event);
        match self
            .request(api.create(&PostParams::default(), &body))
            .await
        {
            Ok(()) => Ok(EventOutcome::Created),
            // Names contain nanoseconds, so an earlier attempt of ours succeeded and its answer was
            // lost.
            Err(Error::Api(status)) if status.is_already_exists() => Ok(EventOutcome::Created),
            Err(error) => Err(error.into()),
        }
    }

    async fn request(&self, call: impl Future<Output = kube::Result<Event>>) -> Result<(), Error> {
        self.gate.may_write().map_err(|_| Error::NotLeader)?;
        match timeout(REQUEST_TIMEOUT, call).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(kube::Error::Api(status))) => Err(Error::Api(status)),
            // The gate closed while the request waited for the rate limit.
            Ok(Err(kube::Error::Service(error))) if error.is::<NotLeader>() => {
                Err(Error::NotLeader)
            }
            Ok(Err(error)) => Err(Error::Transport(error.to_string())),
            Err(_) => Err(Error::Transport("no answer in time".to_owned())),
        }
    }

    fn body(&self, event: &CorrelatedEvent) -> Event {
        let object = &event.object;
        Event {
            metadata: ObjectMeta {
                name: Some(event.name.to_string()),
                namespace: Some(object.event_namespace().to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: non_empty(&object.api_version),
                kind: non_empty(&object.kind),
                namespace: non_empty(&object.namespace),
                name: non_empty(&object.name),
                uid: non_empty(&object.uid),
                ..ObjectReference::default()
            },
            type_: Some(event.kind.as_str().to_owned()),
            reason: Some(event.reason.to_owned()),
            message: Some(event.note.clone()),
            count: Some(event.count),
            first_timestamp: Some(Time(event.first)),
            last_timestamp: Some(Time(event.last)),
            source: Some(EventSource { component: Some(self.component.clone()), host: None }),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(String::new()),
            ..Event::default()
        }
    }
}

fn non_empty(text: &str) -> Option<String> {
    if text.is_empty() {
        None
    } else {
        Some(text.to_owned())
    }
}

enum Error {
    Api(Box<kube::core::Status>),
    Transport(String),
    NotLeader,
}

impl From<Error> for WriteFailure {
    fn from(error: Error) -> Self {
        match error {
            Error::NotLeader => Self::NotLeader,
            Error::Transport(error) => Self::Transient(error),
            Error::Api(status) if status.code == 429 || status.code >= 500 => {
                Self::Transient(status.to_string())
            }
            // For example a namespace that is being deleted (403) or is deleted (404), or a missing
            // permission.
            Error::Api(status) => Self::Final(status.to_string()),
        }
    }
}
