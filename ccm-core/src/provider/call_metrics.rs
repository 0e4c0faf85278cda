//! The metrics of calls to a provider and of changes that a provider makes in its cloud.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Registry};

use super::{CloudError, ErrorKind};
use crate::telemetry::metrics::{counters, register};

/// Returns all values of the label `outcome`.
pub(crate) fn outcomes() -> Vec<&'static str> {
    std::iter::once("success")
        .chain(ErrorKind::ALL.map(ErrorKind::as_str))
        .collect()
}

/// Returns the value of the label `outcome` for a result.
pub(crate) fn outcome(error: Option<&CloudError>) -> &'static str {
    error.map_or("success", |error| error.kind().as_str())
}

/// The buckets in seconds for calls that make one or a few requests to a cloud.
const CALL_SECONDS: [f64; 11] = [0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Calls of a provider that the controllers make.
const OPERATIONS: [&str; 10] = [
    "describe_instances",
    "list_routes",
    "apply_routes",
    "ensure_load_balancer",
    "update_load_balancer_backends",
    "plan_load_balancer",
    "delete_load_balancer",
    "retain_load_balancer",
    "list_owned",
    "delete_owned",
];
/// Calls that concern many objects.
const BATCHED: [&str; 3] = ["describe_instances", "list_routes", "apply_routes"];

/// The metrics of provider calls: count, duration, batch size and outcome.
#[derive(Clone, Debug)]
pub struct CloudMetrics {
    calls: IntCounterVec,
    latency: HistogramVec,
    batch: HistogramVec,
}

impl CloudMetrics {
    /// Registers the families `ccm_cloud_calls_total{operation,outcome}`,
    /// `ccm_cloud_call_duration_seconds{operation}` and `ccm_cloud_batch_size{operation}`.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let calls = counters(
            registry,
            "ccm_cloud_calls_total",
            "Calls of the cloud provider by operation and outcome.",
            &[("operation", &OPERATIONS), ("outcome", &outcomes())],
        )?;
        let latency = HistogramVec::new(
            HistogramOpts::new(
                "ccm_cloud_call_duration_seconds",
                "Duration of cloud provider calls.",
            )
            .buckets(CALL_SECONDS.to_vec()),
            &["operation"],
        )?;
        let batch = HistogramVec::new(
            HistogramOpts::new("ccm_cloud_batch_size", "Objects per batched cloud provider call.")
                .buckets(vec![1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]),
            &["operation"],
        )?;
        for operation in OPERATIONS {
            latency.with_label_values(&[operation]);
        }
        for operation in BATCHED {
            batch.with_label_values(&[operation]);
        }
        Ok(Self {
            calls,
            latency: register(registry, latency)?,
            batch: register(registry, batch)?,
        })
    }

    /// Counts one call.
    pub fn observe(&self, operation: &'static str, elapsed: Duration, error: Option<&CloudError>) {
        self.calls
            .with_label_values(&[operation, outcome(error)])
            .inc();
        self.latency
            .with_label_values(&[operation])
            .observe(elapsed.as_secs_f64());
    }

    /// Counts one call about `size` objects.
    pub fn observe_batch(
        &self,
        operation: &'static str,
        size: usize,
        elapsed: Duration,
        error: Option<&CloudError>,
    ) {
        self.observe(operation, elapsed, error);
        self.batch
            .with_label_values(&[operation])
            .observe(size as f64);
    }
}

/// The metrics of requests that change the cloud; see [`Op::mutate`](crate::provider::Op::mutate).
#[derive(Clone, Debug)]
pub struct MutationMetrics {
    made: IntCounterVec,
    refused: IntCounterVec,
    latency: HistogramVec,
}

impl MutationMetrics {
    /// Registers `ccm_cloud_mutations_total{operation,outcome}`,
    /// `ccm_cloud_mutations_refused_total{operation}` and
    /// `ccm_cloud_mutation_duration_seconds{operation}`, and creates the series of these
    /// operations.
    ///
    /// # Errors
    /// Returns an error if a name is already registered.
    pub fn register(registry: &Registry, operations: &[&str]) -> prometheus::Result<Self> {
        let made = counters(
            registry,
            "ccm_cloud_mutations_total",
            "Changes requested of the cloud, one for each object, by operation and outcome.",
            &[("operation", operations), ("outcome", &outcomes())],
        )?;
        let refused = counters(
            registry,
            "ccm_cloud_mutations_refused_total",
            "Changes not requested of the cloud because leadership could not be proved or the process was stopping.",
            &[("operation", operations)],
        )?;
        let latency = HistogramVec::new(
            HistogramOpts::new(
                "ccm_cloud_mutation_duration_seconds",
                "Duration of requests that change the cloud.",
            )
            .buckets(CALL_SECONDS.to_vec()),
            &["operation"],
        )?;
        for operation in operations {
            latency.with_label_values(&[*operation]);
        }
        Ok(Self { made, refused, latency: register(registry, latency)? })
    }

    pub(crate) fn count_mutation(&self, operation: &'static str, outcome: &str, elapsed: Duration) {
        self.made.with_label_values(&[operation, outcome]).inc();
        self.latency
            .with_label_values(&[operation])
            .observe(elapsed.as_secs_f64());
    }

    pub(crate) fn count_refused(&self, operation: &'static str) {
        self.refused.with_label_values(&[operation]).inc();
    }
}
