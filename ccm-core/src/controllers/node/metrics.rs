//! The metrics of the cloud-node controller: upstream's two, and one of our own.

use prometheus::{Histogram, HistogramOpts, IntCounterVec, Registry};

use crate::telemetry::metrics::{counters, register};

/// The buckets of upstream's two histograms, in seconds.
const DELAY_BUCKETS: [f64; 6] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0];

/// Metrics of the cloud-node controller.
#[derive(Clone, Debug)]
pub(crate) struct NodeMetrics {
    /// The time from the creation of a Node to the removal of its taint.
    pub(crate) taint_removal: Histogram,
    /// The time from the creation of a Node to the end of its initialisation.
    pub(crate) initial_sync: Histogram,
    /// The number of initialisations, address updates and label reconciles by outcome.
    outcomes: IntCounterVec,
}

/// The kind of work on a node, which is the label `work` of `ccm_node_syncs_total`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NodeOperation {
    Initialize,
    Addresses,
    Labels,
}

/// The outcome of work on a node, which is the label `outcome` of `ccm_node_syncs_total`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NodeOutcome {
    Changed,
    Unchanged,
    Failed,
}

impl NodeMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let taint_removal = delay_histogram(
            "node_controller_cloud_provider_taint_removal_delay_seconds",
            "Seconds from the creation of a node to the removal of the cloud provider taint.",
        )?;
        let initial_sync = delay_histogram(
            "node_controller_initial_node_sync_delay_seconds",
            "Seconds from the creation of a node to the end of its initialisation.",
        )?;
        let outcomes = counters(
            registry,
            "ccm_node_syncs_total",
            "Work on nodes by kind and outcome.",
            &[
                ("work", &["initialize", "addresses", "labels"]),
                ("outcome", &["changed", "unchanged", "failed"]),
            ],
        )?;
        Ok(Self {
            taint_removal: register(registry, taint_removal)?,
            initial_sync: register(registry, initial_sync)?,
            outcomes,
        })
    }

    /// Counts one operation on a node.
    pub(crate) fn count(&self, operation: NodeOperation, outcome: NodeOutcome) {
        let work = match operation {
            NodeOperation::Initialize => "initialize",
            NodeOperation::Addresses => "addresses",
            NodeOperation::Labels => "labels",
        };
        let outcome = match outcome {
            NodeOutcome::Changed => "changed",
            NodeOutcome::Unchanged => "unchanged",
            NodeOutcome::Failed => "failed",
        };
        self.outcomes.with_label_values(&[work, outcome]).inc();
    }
}

fn delay_histogram(name: &str, help: &str) -> prometheus::Result<Histogram> {
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(DELAY_BUCKETS.to_vec()))
}
