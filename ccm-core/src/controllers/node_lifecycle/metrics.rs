//! The metrics of the node-lifecycle controller: the two of upstream 1.37, and one of our own.

use prometheus::{Histogram, HistogramOpts, IntCounterVec, Registry, exponential_buckets};

use super::plan::DeletionRefusal;
use crate::{
    provider::{CloudError, ErrorKind, InstanceStatus, PowerState},
    telemetry::metrics::{counters, register},
};

/// Metrics of the node-lifecycle controller.
#[derive(Clone, Debug)]
pub(crate) struct LifecycleMetrics {
    /// The duration of a pass over the nodes.
    pub(crate) pass: Histogram,
    calls: IntCounterVec,
    deletions: IntCounterVec,
}

/// The outcome of an intended deletion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeletionOutcome {
    /// The Node was deleted.
    Deleted,
    /// The evidence did not support the cloud's answer.
    Refused(DeletionRefusal),
    /// When read again, the Node was Ready, changed, replaced or deleted.
    Aborted,
    /// The API server rejected the request, or did not answer.
    Failed,
}

impl LifecycleMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let pass = Histogram::with_opts(
            HistogramOpts::new(
                "cloud_node_lifecycle_controller_monitor_nodes_duration_seconds",
                "Duration of one pass of the node-lifecycle controller over all nodes.",
            )
            .buckets(exponential_buckets(0.001, 2.0, 15)?),
        )?;
        let calls = counters(
            registry,
            "cloud_node_lifecycle_controller_cloud_provider_calls_total",
            "Questions to the cloud provider, one per node, by operation and result.",
            &[
                ("operation", &["instance_exists", "instance_shutdown"]),
                (
                    "result",
                    &["success", "instance_not_found", "not_implemented", "canceled", "error"],
                ),
            ],
        )?;
        let deletions = counters(
            registry,
            "ccm_node_deletions_total",
            "Nodes whose instance looked gone, by what became of them.",
            &[(
                "outcome",
                &[
                    "deleted",
                    "refused_by_controls",
                    "refused_without_evidence",
                    "refused_most_gone",
                    "refused_other_machine",
                    "withdrawn",
                    "failed",
                ],
            )],
        )?;
        Ok(Self { pass: register(registry, pass)?, calls, deletions })
    }

    /// Counts the answer about one node in the same way as upstream counts its two calls.
    pub(crate) fn record_answer(&self, answer: &Result<InstanceStatus, CloudError>) {
        let result = match answer {
            // This controller treats a terminated instance as absent.
            Ok(
                InstanceStatus::NotFound
                | InstanceStatus::Found { power_state: PowerState::Terminated, .. },
            ) => "instance_not_found",
            Ok(InstanceStatus::Found { .. }) => {
                self.calls
                    .with_label_values(&["instance_shutdown", "success"])
                    .inc();
                "success"
            }
            Err(error) => match error.kind() {
                ErrorKind::NotImplemented => "not_implemented",
                ErrorKind::Canceled | ErrorKind::NotLeader => "canceled",
                _ => "error",
            },
        };
        self.calls
            .with_label_values(&["instance_exists", result])
            .inc();
    }

    /// Counts an intended deletion.
    pub(crate) fn deletion(&self, outcome: DeletionOutcome) {
        let outcome = match outcome {
            DeletionOutcome::Deleted => "deleted",
            DeletionOutcome::Refused(DeletionRefusal::Contradicted) => "refused_by_controls",
            DeletionOutcome::Refused(DeletionRefusal::NoEvidence) => "refused_without_evidence",
            DeletionOutcome::Refused(DeletionRefusal::MostGone { .. }) => "refused_most_gone",
            DeletionOutcome::Refused(DeletionRefusal::OtherMachine) => "refused_other_machine",
            DeletionOutcome::Aborted => "withdrawn",
            DeletionOutcome::Failed => "failed",
        };
        self.deletions.with_label_values(&[outcome]).inc();
    }
}
