//! Metrics of requests to AWS, with upstream's names.

use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, core::Collector, histogram_opts,
    opts,
};
use tokio::time::Instant;

use crate::{
    api::{Action, AwsError, AwsErrorCause},
    client::error_class::ErrorClass,
};

/// Metrics of requests to AWS. Cheap to clone.
#[derive(Clone)]
pub(super) struct ApiMetrics {
    duration: HistogramVec,
    errors: IntCounterVec,
    throttled: IntCounterVec,
    status: IntCounterVec,
}

impl ApiMetrics {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let duration: HistogramOpts = histogram_opts!(
            "cloudprovider_aws_api_request_duration_seconds",
            "Latency of AWS API calls",
            prometheus::DEFAULT_BUCKETS.to_vec()
        );
        let errors: Opts = opts!("cloudprovider_aws_api_request_errors", "AWS API errors");
        let throttled =
            opts!("cloudprovider_aws_api_throttled_requests_total", "AWS API throttled requests");
        let status = opts!(
            "cloudprovider_aws_api_response_status_total",
            "AWS API responses with an HTTP status of 400 or more"
        );
        Ok(Self {
            duration: HistogramVec::new(duration, &["request"])?,
            errors: IntCounterVec::new(errors, &["request"])?,
            throttled: IntCounterVec::new(throttled, &["operation_name"])?,
            status: IntCounterVec::new(status, &["service", "operation", "status_code"])?,
        })
    }

    pub(super) fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let collectors: [Box<dyn Collector>; 4] = [
            Box::new(self.duration.clone()),
            Box::new(self.errors.clone()),
            Box::new(self.throttled.clone()),
            Box::new(self.status.clone()),
        ];
        for collector in collectors {
            registry.register(collector)?;
        }
        Ok(())
    }

    /// Counts one attempt. As in upstream, the duration of failed attempts is not recorded.
    pub(super) fn record_attempt(
        &self,
        action: Action,
        started: Instant,
        error: Option<&AwsError>,
    ) {
        let request = [action.operation()];
        let Some(error) = error else {
            self.duration
                .with_label_values(&request)
                .observe(started.elapsed().as_secs_f64());
            return;
        };
        self.errors.with_label_values(&request).inc();
        if let AwsErrorCause::Response { code, status, .. } = &error.cause {
            if ErrorClass::from_code(code) == ErrorClass::Throttled {
                self.throttled.with_label_values(&[action.name()]).inc();
            }
            if *status >= 400 {
                let status = status.to_string();
                self.status
                    .with_label_values(&[action.service().id(), action.name(), &status])
                    .inc();
            }
        }
    }
}
