//! Metric families, registered in a registry that is passed in.
//!
//! Names, labels and buckets of upstream are kept where upstream has the metric; ours begin with `ccm_`. Labels are
//! closed sets: never names of objects, IDs or error texts.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, core::Collector};

use crate::provider::CloudError;

/// Registers a collector and gives it back.
///
/// # Errors
/// When another collector has the name already.
pub fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// Calls of the provider: how many, how long, how large, with which outcome.
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
        let calls = IntCounterVec::new(
            Opts::new("ccm_cloud_calls_total", "Calls of the cloud provider by operation and outcome."),
            &["operation", "outcome"],
        )?;
        let latency = HistogramVec::new(
            HistogramOpts::new("ccm_cloud_call_duration_seconds", "Duration of cloud provider calls.")
                .buckets(vec![0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]),
            &["operation"],
        )?;
        let batch = HistogramVec::new(
            HistogramOpts::new("ccm_cloud_batch_size", "Objects per batched cloud provider call.")
                .buckets(vec![1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]),
            &["operation"],
        )?;
        Ok(Self {
            calls: register(registry, calls)?,
            latency: register(registry, latency)?,
            batch: register(registry, batch)?,
        })
    }

    /// Counts one call.
    pub fn observe(&self, operation: &'static str, elapsed: Duration, error: Option<&CloudError>) {
        let outcome = error.map_or("success", |e| e.kind().as_str());
        self.calls.with_label_values(&[operation, outcome]).inc();
        self.latency.with_label_values(&[operation]).observe(elapsed.as_secs_f64());
    }

    /// Counts one call about `size` objects.
    pub fn observe_batch(&self, operation: &'static str, size: usize, elapsed: Duration, error: Option<&CloudError>) {
        self.observe(operation, elapsed, error);
        self.batch.with_label_values(&[operation]).observe(size as f64);
    }
}
