//! The metrics of the service controller: upstream's four, and our own.

use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, Registry, exponential_buckets,
};

use crate::telemetry::metrics::{counters, register};

/// Upper bounds, in seconds, of the buckets of our delays.
const DELAY_BUCKETS: &[f64] =
    &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0];

/// Metrics of the service controller.
#[derive(Clone, Debug)]
pub(crate) struct ServiceMetrics {
    /// The number of attempts to update the hosts of a load balancer (upstream's).
    pub(crate) host_updates: IntCounter,
    /// The number of these attempts that failed (upstream's).
    pub(crate) host_update_errors: IntCounter,
    /// The time from the start of a node-change pass until its last Service is synced (upstream's).
    pub(crate) node_sync: Histogram,
    /// The duration of an update of the hosts of a load balancer (upstream's).
    pub(crate) host_update: Histogram,
    /// The number of differences that drift checks found after everything had been in sync.
    pub(crate) drift: IntCounter,
    /// The time from the creation of a Service to its first address.
    pub(crate) address_delay: Histogram,
    /// The time from a node change to the update of a load balancer.
    pub(crate) backends_delay: Histogram,
    outcomes: IntCounterVec,
}

/// The kind of a sync, which is the label `work` of `ccm_service_syncs_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncKind {
    Ensure,
    UpdateBackends,
    CheckDrift,
    PublishStatus,
    Delete,
    Reject,
}

impl SyncKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ensure => "ensure",
            Self::UpdateBackends => "update_backends",
            Self::CheckDrift => "compare",
            Self::PublishStatus => "publish",
            Self::Delete => "delete",
            Self::Reject => "refuse",
        }
    }
}

/// The outcome of a sync, which is the label `outcome` of `ccm_service_syncs_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceOutcome {
    Done,
    Pending,
    Failed,
}

impl ServiceMetrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let upstream_buckets = exponential_buckets(1.0, 2.0, 15)?;
        // Expose each combination of the labels from the start.
        let kinds = [
            SyncKind::Ensure,
            SyncKind::UpdateBackends,
            SyncKind::CheckDrift,
            SyncKind::PublishStatus,
            SyncKind::Delete,
            SyncKind::Reject,
        ];
        let outcomes = counters(
            registry,
            "ccm_service_syncs_total",
            "Work on services by kind and outcome.",
            &[("work", &kinds.map(SyncKind::as_str)), ("outcome", &["done", "pending", "failed"])],
        )?;
        // Names and help texts of the first four are upstream's.
        Ok(Self {
            host_updates: counter(
                registry,
                "service_controller_loadbalancer_sync_total",
                "A metric counting the amount of times any load balancer has been configured, as an effect of service/node changes on the cluster",
            )?,
            host_update_errors: counter(
                registry,
                "service_controller_nodesync_error_total",
                "A metric counting the amount of times any load balancer has been configured and errored, as an effect of node changes on the cluster",
            )?,
            node_sync: histogram(
                registry,
                "service_controller_nodesync_latency_seconds",
                "A metric measuring the latency for nodesync which updates loadbalancer hosts on cluster node updates.",
                &upstream_buckets,
            )?,
            host_update: histogram(
                registry,
                "service_controller_update_loadbalancer_host_latency_seconds",
                "A metric measuring the latency for updating each load balancer hosts.",
                &upstream_buckets,
            )?,
            drift: counter(
                registry,
                "ccm_service_drift_total",
                "Changes that drift checks found necessary although load balancers were in sync.",
            )?,
            address_delay: histogram(
                registry,
                "ccm_service_address_delay_seconds",
                "Seconds from the creation of a service to its first address.",
                DELAY_BUCKETS,
            )?,
            backends_delay: histogram(
                registry,
                "ccm_service_backends_delay_seconds",
                "Seconds from a change of nodes to the update of a load balancer's backends.",
                DELAY_BUCKETS,
            )?,
            outcomes,
        })
    }

    /// Counts a sync.
    pub(crate) fn count(&self, kind: SyncKind, outcome: ServiceOutcome) {
        let outcome = match outcome {
            ServiceOutcome::Done => "done",
            ServiceOutcome::Pending => "pending",
            ServiceOutcome::Failed => "failed",
        };
        self.outcomes
            .with_label_values(&[kind.as_str(), outcome])
            .inc();
    }
}

fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    register(registry, IntCounter::new(name, help)?)
}

fn histogram(
    registry: &Registry,
    name: &str,
    help: &str,
    buckets: &[f64],
) -> prometheus::Result<Histogram> {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    register(registry, Histogram::with_opts(options)?)
}
