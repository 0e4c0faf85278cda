//! Metrics of the tagging controller, with upstream's names, one of which is misspelt there.

use std::time::Duration;

use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts, Registry, exponential_buckets};

/// What became of a work item that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorType {
    /// It is tried again.
    Total,
    /// It was tried often enough.
    Exhausted,
}

impl ErrorType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Total => "total_errors",
            Self::Exhausted => "errors_after_retries_exhausted",
        }
    }
}

#[derive(Clone)]
pub(super) struct Metrics {
    errors: IntCounterVec,
    delay: Histogram,
}

impl Metrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let errors = Opts::new(
            "cloudprovider_aws_tagging_controller_work_item_errors_total",
            "any error in dequeueing the work queue and processing workItem",
        );
        let delay = HistogramOpts::new(
            "tagging_controller_inital_node_tagging_delay_seconds",
            "Latency (in seconds) between node creation and its first successful tagging by TaggingController.",
        );
        let metrics = Self {
            // Upstream has the instance as a label: one series for each that failed, and none for the others.
            errors: IntCounterVec::new(errors, &["error_type", "instance_id"])?,
            delay: Histogram::with_opts(delay.buckets(exponential_buckets(1.0, 4.0, 6)?))?,
        };
        registry.register(Box::new(metrics.errors.clone()))?;
        registry.register(Box::new(metrics.delay.clone()))?;
        Ok(metrics)
    }

    pub(super) fn failed(&self, error: ErrorType, instance: &str) {
        self.errors.with_label_values(&[error.as_str(), instance]).inc();
    }

    pub(super) fn first_tagged(&self, after: Duration) {
        self.delay.observe(after.as_secs_f64());
    }
}
