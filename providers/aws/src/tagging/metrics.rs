//! Metrics of the tagging controller, with upstream's names, including one misspelling.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts, Registry, exponential_buckets};

/// Kind of a work item error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorType {
    /// An error after which the item is retried.
    Total,
    /// An error after the last retry.
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

/// Maximum number of series kept for instances whose node is deleted and whose tags could not be
/// removed.
const MAX_GIVEN_UP_SERIES: usize = 100;

/// Metrics of the tagging controller. Cheap to clone.
#[derive(Clone)]
pub(super) struct Metrics {
    errors: IntCounterVec,
    /// Instances whose tags could not be removed, oldest first.
    given_up: Arc<Mutex<VecDeque<Box<str>>>>,
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
            // Upstream uses the instance as a label: one series per instance that failed.
            errors: IntCounterVec::new(errors, &["error_type", "instance_id"])?,
            given_up: Arc::default(),
            delay: Histogram::with_opts(delay.buckets(exponential_buckets(1.0, 4.0, 6)?))?,
        };
        registry.register(Box::new(metrics.errors.clone()))?;
        registry.register(Box::new(metrics.delay.clone()))?;
        Ok(metrics)
    }

    pub(super) fn count_error(&self, error: ErrorType, instance: &str) {
        self.errors
            .with_label_values(&[error.as_str(), instance])
            .inc();
    }

    /// Removes the series of an instance whose node is deleted, so that series do not accumulate
    /// while the process runs.
    pub(super) fn remove_instance(&self, instance: &str) {
        for error in [ErrorType::Total, ErrorType::Exhausted] {
            // An instance that never failed has no series.
            let _ = self.errors.remove_label_values(&[error.as_str(), instance]);
        }
    }

    /// Counts an instance whose node is deleted and whose tags could not be removed. Its series is
    /// removed when [`MAX_GIVEN_UP_SERIES`] further instances were counted after it.
    pub(super) fn count_given_up(&self, instance: &str) {
        self.count_error(ErrorType::Exhausted, instance);
        let mut given_up = self.given_up.lock();
        given_up.retain(|other| **other != *instance);
        given_up.push_back(instance.into());
        if given_up.len() > MAX_GIVEN_UP_SERIES
            && let Some(oldest) = given_up.pop_front()
        {
            self.remove_instance(&oldest);
        }
    }

    /// Records the age of a node whose instance was tagged for the first time.
    pub(super) fn observe_first_tagging(&self, age: Duration) {
        self.delay.observe(age.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_instances_that_are_gone_do_not_add_up() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let series = || {
            registry
                .gather()
                .iter()
                .map(|family| family.get_metric().len())
                .sum::<usize>()
        };
        let before = series();
        for n in 0..1000 {
            metrics.count_error(ErrorType::Total, &format!("i-{n}"));
            metrics.remove_instance(&format!("i-{n}"));
            metrics.remove_instance(&format!("i-{n}"));
        }
        assert_eq!(series(), before);
        for n in 0..1000 {
            metrics.count_error(ErrorType::Total, &format!("i-{n}"));
            metrics.count_given_up(&format!("i-{n}"));
        }
        assert_eq!(series(), before + 2 * MAX_GIVEN_UP_SERIES);
    }
}
