//! Metrics of each request, under upstream's names.

use prometheus::{HistogramVec, IntCounterVec, Registry, core::Collector, histogram_opts, opts};
use tokio::time::Instant;

use super::Call;

/// Metrics of requests. Cheap to clone.
#[derive(Clone)]
pub(super) struct ApiMetrics {
    duration: HistogramVec,
    total: IntCounterVec,
    errors: IntCounterVec,
}

impl ApiMetrics {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let duration = histogram_opts!(
            "openstack_api_request_duration_seconds",
            "Latency of an OpenStack API call",
            prometheus::DEFAULT_BUCKETS.to_vec()
        );
        let total = opts!("openstack_api_requests_total", "Total number of OpenStack API calls");
        let errors = opts!(
            "openstack_api_request_errors_total",
            "Total number of errors for an OpenStack API call"
        );
        Ok(Self {
            duration: HistogramVec::new(duration, &["request"])?,
            total: IntCounterVec::new(total, &["request"])?,
            errors: IntCounterVec::new(errors, &["request"])?,
        })
    }

    pub(super) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let collectors: [Box<dyn Collector>; 3] = [
            Box::new(self.duration.clone()),
            Box::new(self.total.clone()),
            Box::new(self.errors.clone()),
        ];
        collectors
            .into_iter()
            .try_for_each(|collector| registry.register(collector))
    }

    /// Counts one attempt.
    pub(super) fn record_attempt(&self, call: Call, started: Instant, failed: bool) {
        let request = [call.name()];
        self.duration
            .with_label_values(&request)
            .observe(started.elapsed().as_secs_f64());
        self.total.with_label_values(&request).inc();
        if failed {
            self.errors.with_label_values(&request).inc();
        }
    }

    /// Returns how often a request was sent.
    pub(super) fn count(&self, call: Call) -> u64 {
        self.total.with_label_values(&[call.name()]).get()
    }
}
