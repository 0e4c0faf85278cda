//! Metrics that all controllers share.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Registry};
use tokio::time::Instant;
use tracing::{Instrument, Span, field::Empty};

use super::{
    metrics::{counters, register},
    queue::QueueMetrics,
};
use crate::{config::controller_names as names, telemetry::controller_health::ControllerHealth};

/// The metrics that all controllers share: queues, reconciles, and writes that were not needed.
/// Registered once per process.
#[derive(Clone, Debug)]
pub struct ControllerMetrics {
    /// Work queues.
    pub queues: QueueMetrics,
    /// True if reconciles succeed, for the health checks of the process.
    pub progress: ControllerHealth,
    reconciles: IntCounterVec,
    duration: HistogramVec,
    saved: IntCounterVec,
}

/// The result of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileOutcome {
    /// The object is up to date, whether it was changed or not.
    Done,
    /// Requeued soon, because something else has to happen first.
    Pending,
    /// The reconcile failed.
    Failed,
}

impl ReconcileOutcome {
    const ALL: [&'static str; 3] = ["done", "pending", "failed"];

    fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Pending => "pending",
            Self::Failed => "failed",
        }
    }
}

/// The kind of a write to the API server that is skipped if nothing would change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkippedWrite {
    /// The addresses of a Node, in the periodic comparison.
    NodeAddresses,
    /// Additional labels of a Node, in the periodic comparison.
    NodeLabels,
    /// Condition `NetworkUnavailable` of a Node.
    NodeCondition,
    /// Status and annotations of a Service.
    ServiceStatus,
    /// Finalizer of a Service.
    ServiceFinalizer,
}

impl SkippedWrite {
    const ALL: [&'static str; 5] =
        ["node_addresses", "node_labels", "node_condition", "service_status", "service_finalizer"];

    fn as_str(self) -> &'static str {
        match self {
            Self::NodeAddresses => "node_addresses",
            Self::NodeLabels => "node_labels",
            Self::NodeCondition => "node_condition",
            Self::ServiceStatus => "service_status",
            Self::ServiceFinalizer => "service_finalizer",
        }
    }
}

/// All controllers of the framework.
const CONTROLLERS: [&str; 5] = [
    names::CLOUD_NODE,
    names::CLOUD_NODE_LIFECYCLE,
    names::NODE_IPAM,
    names::NODE_ROUTE,
    names::SERVICE_LB,
];

/// The buckets in seconds, from a sync without requests to a call that reaches its deadline.
const SECONDS: [f64; 10] = [0.001, 0.01, 0.05, 0.25, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0];

impl ControllerMetrics {
    /// Registers the queues' families, `ccm_reconciles_total{controller,outcome}`,
    /// `ccm_reconcile_duration_seconds{controller}` and `ccm_api_writes_saved_total{write}`.
    ///
    /// # Errors
    /// Returns an error if a name is taken.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let duration = HistogramVec::new(
            HistogramOpts::new("ccm_reconcile_duration_seconds", "Duration of reconciles.")
                .buckets(SECONDS.to_vec()),
            &["controller"],
        )?;
        for controller in CONTROLLERS {
            duration.with_label_values(&[controller]);
        }
        Ok(Self {
            queues: QueueMetrics::register(registry)?,
            progress: ControllerHealth::default(),
            reconciles: counters(
                registry,
                "ccm_reconciles_total",
                "Reconciles by controller and outcome: looks at one node or service, passes over all nodes or routes.",
                &[("controller", &CONTROLLERS), ("outcome", &ReconcileOutcome::ALL)],
            )?,
            duration: register(registry, duration)?,
            saved: counters(
                registry,
                "ccm_api_writes_saved_total",
                "Writes to the API server that were not made because nothing would have changed.",
                &[("write", &SkippedWrite::ALL)],
            )?,
        })
    }

    /// Runs `work` about `object` in a separate span, and counts its outcome. `work` may set the
    /// reason of the reconcile with [`record_reason`].
    pub(crate) async fn reconcile<T>(
        &self,
        controller: &'static str,
        object: &str,
        work: impl Future<Output = (ReconcileOutcome, T)>,
    ) -> T {
        let span =
            tracing::info_span!("reconcile", controller, object, reason = Empty, outcome = Empty);
        let started = Instant::now();
        let running = self.progress.begin(controller);
        let (outcome, value) = work.instrument(span.clone()).await;
        running.end(outcome == ReconcileOutcome::Failed);
        span.record("outcome", outcome.as_str());
        self.reconciled(controller, outcome, started.elapsed());
        value
    }

    fn reconciled(&self, controller: &str, outcome: ReconcileOutcome, took: Duration) {
        self.reconciles
            .with_label_values(&[controller, outcome.as_str()])
            .inc();
        self.duration
            .with_label_values(&[controller])
            .observe(took.as_secs_f64());
    }

    /// Counts a write that was skipped because it was not needed.
    pub(crate) fn count_skipped_write(&self, write: SkippedWrite) {
        self.saved.with_label_values(&[write.as_str()]).inc();
    }
}

/// Sets the reason of the current reconcile in its span.
pub(crate) fn record_reason(reason: &'static str) {
    Span::current().record("reason", reason);
}

/// Creates the span of a call of the provider.
pub(crate) fn call_span(operation: &'static str) -> Span {
    tracing::info_span!("cloud_call", operation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reconciles_are_counted_with_their_outcome_and_time() {
        let registry = Registry::new();
        let metrics = ControllerMetrics::register(&registry).unwrap();
        let work = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            (ReconcileOutcome::Pending, 7)
        };
        assert_eq!(
            metrics
                .reconcile(names::SERVICE_LB, "default/web", work)
                .await,
            7
        );
        let count = |outcome| {
            metrics
                .reconciles
                .with_label_values(&[names::SERVICE_LB, outcome])
                .get()
        };
        assert_eq!(ReconcileOutcome::ALL.map(count), [0, 1, 0]);
        let time = metrics.duration.with_label_values(&[names::SERVICE_LB]);
        assert_eq!((time.get_sample_count(), time.get_sample_sum()), (1, 3.0));
    }
}
