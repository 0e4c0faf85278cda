//! Kubernetes events (core/v1). Controllers record them without waiting, and a separate task writes
//! them.
//!
//! Writes of state come first. An event waits while such writes are in flight, but for at most five
//! seconds. Repetitions that are recorded meanwhile are written together with it.
//!
//! A recorder never blocks and never fails. Events that do not fit into the queue are dropped and
//! counted, as are events that would be written after leadership has ended. Repetitions increase
//! the count of one event, many similar events are combined, and events of an object that has too
//! many are throttled, all with client-go's numbers.
//!
//! Requires `create` and `patch` on core events in the namespaces of the objects, and in `default`
//! for cluster-scoped objects.

mod clock;
mod correlator;
mod lru;
mod outbox;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

use kube::Client;
use prometheus::{IntCounterVec, Registry};
use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};

pub use self::{clock::WallClock, writer::EventWriter};
use self::{correlator::RecordedEvent, outbox::Recorded};
use super::api::WritesInFlight;
use crate::{
    provider::{EventSink, EventType},
    telemetry::metrics::counters,
    write_gate::WriteGate,
};

/// The maximum number of events that wait to be written, as upstream.
const QUEUE: usize = 1000;

/// The object that an event is about.
///
/// For a Node, `uid` is the Node's UID. `kubectl describe node` finds events by the UID; it also
/// finds events that have the name as UID, but only because the kubelet writes those.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// The API version, such as `v1`. It must be set, because some tools find events by it.
    pub api_version: Arc<str>,
    /// The kind, such as `Node`.
    pub kind: Arc<str>,
    /// The namespace, which is empty for a cluster-scoped object.
    pub namespace: Arc<str>,
    /// The name of the object.
    pub name: Arc<str>,
    /// The UID of the object, which is empty if it is unknown.
    pub uid: Arc<str>,
}

impl ObjectRef {
    /// Creates a reference to a Node.
    pub fn node(name: impl Into<Arc<str>>, uid: impl Into<Arc<str>>) -> Self {
        let name = name.into();
        let uid = uid.into();
        Self {
            api_version: "v1".into(),
            kind: "Node".into(),
            namespace: "".into(),
            name,
            uid,
        }
    }

    /// Creates a reference to a Service.
    pub fn service(
        namespace: impl Into<Arc<str>>,
        name: impl Into<Arc<str>>,
        uid: impl Into<Arc<str>>,
    ) -> Self {
        let namespace = namespace.into();
        let name = name.into();
        let uid = uid.into();
        Self {
            api_version: "v1".into(),
            kind: "Service".into(),
            namespace,
            name,
            uid,
        }
    }

    /// Returns the namespace of events about this object.
    pub fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() {
            "default"
        } else {
            &self.namespace
        }
    }
}

/// The outcome of a recorded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventOutcome {
    Created,
    Counted,
    QueueFull,
    Throttled,
    NotLeader,
    Failed,
}

/// The metric family `ccm_events_total{outcome}`, shared by all recorders of a process.
#[derive(Clone, Debug)]
pub struct EventMetrics(IntCounterVec);

impl EventMetrics {
    /// Registers the family. Outcomes: `created`, `counted` (a repetition), and for dropped events
    /// `queue_full`, `throttled`, `not_leader` and `failed`.
    ///
    /// # Errors
    /// Returns an error if a metric of this name is already registered.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let help = "Kubernetes events recorded, by what became of them.";
        let outcomes = ["created", "counted", "queue_full", "throttled", "not_leader", "failed"];
        Ok(Self(counters(registry, "ccm_events_total", help, &[("outcome", &outcomes)])?))
    }

    fn count(&self, outcome: EventOutcome, occurrences: u64) {
        let label = match outcome {
            EventOutcome::Created => "created",
            EventOutcome::Counted => "counted",
            EventOutcome::QueueFull => "queue_full",
            EventOutcome::Throttled => "throttled",
            EventOutcome::NotLeader => "not_leader",
            EventOutcome::Failed => "failed",
        };
        self.0.with_label_values(&[label]).inc_by(occurrences);
    }
}

/// Records events for one component. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    queue: mpsc::UnboundedSender<Recorded>,
    /// Bounds the number of events in the queue and in the writer's outbox.
    places: Arc<Semaphore>,
    metrics: EventMetrics,
    clock: WallClock,
}

impl EventRecorder {
    /// Creates a recorder, and the writer for the events that it records.
    ///
    /// `client` should be used only for events, so that their rate limit does not delay a
    /// controller's writes. `component` is the `source.component` that upstream's controller
    /// writes. Nothing is written while `gate` is closed.
    pub fn new(
        client: Client,
        component: impl Into<String>,
        gate: WriteGate,
        metrics: EventMetrics,
        wall: WallClock,
    ) -> (Self, EventWriter) {
        let (sender, queue) = mpsc::unbounded_channel();
        let component = component.into();
        let writes = WritesInFlight::default();
        let writer = EventWriter {
            queue,
            client,
            component,
            gate,
            metrics: metrics.clone(),
            writes,
        };
        (
            Self {
                queue: sender,
                places: Arc::new(Semaphore::new(QUEUE)),
                metrics,
                clock: wall,
            },
            writer,
        )
    }

    /// Records an event. Never blocks. `reason` must be in PascalCase and from a fixed set. A note
    /// of 1 kB or more is truncated.
    pub fn event(&self, object: &ObjectRef, kind: EventType, reason: &'static str, note: &str) {
        let occurrence = RecordedEvent {
            object: object.clone(),
            kind,
            reason,
            note: note.to_owned(),
            at: self.clock.now(),
        };
        let place = self.places.clone().try_acquire_owned().ok();
        let recorded = place.map(|place| Recorded { occurrence, at: Instant::now(), place });
        if recorded.is_none_or(|recorded| self.queue.send(recorded).is_err()) {
            self.metrics.count(EventOutcome::QueueFull, 1);
            tracing::debug!(object = %object.name, reason, "event dropped");
        }
    }

    /// Returns a sink that records events of one object, for a provider's operation.
    pub fn for_object(&self, object: ObjectRef) -> Arc<dyn EventSink> {
        Arc::new(ObjectEventSink { recorder: self.clone(), object })
    }
}

struct ObjectEventSink {
    recorder: EventRecorder,
    object: ObjectRef,
}

impl EventSink for ObjectEventSink {
    fn record(&self, kind: EventType, reason: &'static str, note: &str) {
        self.recorder.event(&self.object, kind, reason, note);
    }
}
