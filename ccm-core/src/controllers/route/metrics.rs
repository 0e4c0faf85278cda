//! The metrics of the route controller: one of upstream's, and some of our own.

use prometheus::{IntCounterVec, IntGauge, Registry};

use crate::{
    provider::{CloudError, RouteChange, call_metrics::outcomes},
    telemetry::metrics::{counters, register},
};

/// Metrics of the route controller.
#[derive(Clone, Debug)]
pub(crate) struct RouteMetrics {
    syncs: IntCounterVec,
    changes: IntCounterVec,
    conditions: IntCounterVec,
    /// The number of changes that failed and are retried.
    pub(crate) failing: IntGauge,
}

/// The outcome of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncOutcome {
    /// At least one change was made.
    Changed,
    Noop,
    /// The routes or the nodes could not be listed.
    Error,
}

/// The trigger of a reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncTrigger {
    /// The period had ended, or a retry was due.
    Periodic,
    /// A node changed.
    NodeChange,
}

impl SyncTrigger {
    /// Returns the reason in words.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Periodic => "comparison is due",
            Self::NodeChange => "nodes changed",
        }
    }
}

/// The outcome of the write of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConditionWrite {
    Written,
    Failed,
}

impl RouteMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            syncs: counters(
                registry,
                "route_controller_route_sync_total",
                "Comparisons of the routes with the cloud by outcome and trigger.",
                &[
                    ("outcome", &["changed", "noop", "error"]),
                    ("trigger", &["periodic", "node_change"]),
                ],
            )?,
            changes: counters(
                registry,
                "ccm_route_changes_total",
                "Changes of single routes by outcome.",
                &[("change", &["create", "delete"]), ("outcome", &outcomes())],
            )?,
            conditions: counters(
                registry,
                "ccm_route_condition_writes_total",
                "Requests that write the condition NetworkUnavailable alone, by outcome.",
                &[("outcome", &["success", "failed"])],
            )?,
            failing: register(
                registry,
                IntGauge::new(
                    "ccm_route_changes_failing",
                    "Changes of single routes that failed and are tried again.",
                )?,
            )?,
        })
    }

    /// Counts one reconcile.
    pub(crate) fn sync(&self, outcome: SyncOutcome, trigger: SyncTrigger) {
        let outcome = match outcome {
            SyncOutcome::Changed => "changed",
            SyncOutcome::Noop => "noop",
            SyncOutcome::Error => "error",
        };
        let trigger = match trigger {
            SyncTrigger::Periodic => "periodic",
            SyncTrigger::NodeChange => "node_change",
        };
        self.syncs.with_label_values(&[outcome, trigger]).inc();
    }

    /// Counts one change.
    pub(crate) fn change(&self, change: &RouteChange, error: Option<&CloudError>) {
        let change = match change {
            RouteChange::Create { .. } => "create",
            RouteChange::Delete(_) => "delete",
        };
        let outcome = error.map_or("success", |error| error.kind().as_str());
        self.changes.with_label_values(&[change, outcome]).inc();
    }

    /// Counts one write of a condition.
    pub(crate) fn condition(&self, outcome: ConditionWrite) {
        let outcome = match outcome {
            ConditionWrite::Written => "success",
            ConditionWrite::Failed => "failed",
        };
        self.conditions.with_label_values(&[outcome]).inc();
    }
}
