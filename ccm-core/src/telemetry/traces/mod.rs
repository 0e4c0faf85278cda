//! Traces, sent to a collector as OTLP over gRPC; off unless `--tracing-config-file` is set.
//!
//! | span | attributes |
//! |---|---|
//! | `reconcile` | `controller`, `object`, `reason`, `outcome` |
//! | `cloud_call` | `operation`; part of the reconcile that made the call, unless several share it |
//! | `cloud_mutation` | `operation`, `object` (if it is one change), `changes` |
//!
//! Spans are queued without blocking. A thread of the exporter empties the queue, whose size is
//! limited. Spans that do not fit, or that cannot be sent to the collector, are dropped. The queue
//! is flushed at shutdown.

mod config;
#[cfg(test)]
mod tests;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use opentelemetry::{KeyValue, trace::TracerProvider as _};
use opentelemetry_otlp::{WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{
        BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, SpanData, SpanExporter,
    },
};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, Registry, filter::FilterFn};

pub use self::config::TracesConfig;

/// The maximum number of queued spans; further ones are dropped.
const QUEUE: usize = 4096;
/// The maximum number of spans in one request.
const BATCH: usize = 512;
/// The longest time that a span is queued.
const DELAY: Duration = Duration::from_secs(2);
/// The timeout of connecting and of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The timeout of flushing the queue at shutdown.
const FLUSH: Duration = Duration::from_secs(2);

/// A layer that receives spans, beside the log.
pub type SpanLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The exporter cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// The address of the collector is invalid.
    #[error("traces cannot be sent to {0}")]
    Endpoint(String, #[source] tonic::transport::Error),
    /// The exporter rejects its settings.
    #[error("exporter of traces cannot be built")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// The export of traces to a collector.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Starts the export, and returns the layer that receives the spans. Connects when the first
    /// spans are sent. Must be called within a tokio runtime.
    ///
    /// `service` and `version` name the program, `instance` this process of it.
    ///
    /// # Errors
    /// Returns an error if the configuration cannot be used.
    pub fn start(
        config: &TracesConfig,
        service: &'static str,
        version: &'static str,
        instance: String,
    ) -> Result<(Self, SpanLayer), TracesError> {
        let address = format!("http://{}", config.endpoint);
        let endpoint = tonic::transport::Endpoint::from_shared(address)
            .map_err(|error| TracesError::Endpoint(config.endpoint.clone(), error))?
            .connect_timeout(REQUEST_TIMEOUT);
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .with_channel(endpoint.connect_lazy())
            .with_timeout(REQUEST_TIMEOUT)
            .build()?;
        let exporter = LoggingExporter {
            exporter,
            endpoint: config.endpoint.as_str().into(),
            failing: AtomicBool::new(false),
        };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(DELAY)
            .build();
        let resource = Resource::builder()
            .with_service_name(service)
            .with_attributes([
                KeyValue::new("service.version", version),
                KeyValue::new("service.instance.id", instance),
            ])
            .build();
        let ratio = f64::from(config.sampling_rate_per_million) / 1e6;
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))))
            .with_span_processor(
                BatchSpanProcessor::builder(exporter)
                    .with_batch_config(batches)
                    .build(),
            )
            .with_resource(resource)
            .build();
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer(service))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false);
        // Only this program's spans. Exporting those of the libraries that send spans would create
        // further spans indefinitely.
        let ours = FilterFn::new(|metadata| {
            metadata.is_span() && metadata.target().starts_with("ccm_core")
        })
        .with_max_level_hint(LevelFilter::INFO);
        Ok((Self { provider }, layer.with_filter(ours).boxed()))
    }

    /// Flushes the queue, for at most two seconds, and ends the export.
    pub async fn shutdown(self) {
        // Shutdown blocks until the exporter's thread has ended.
        let ended =
            tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(FLUSH)).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!(%error, "traces were not all sent before the end");
        }
    }
}

/// Logs when sending traces begins to fail and when it works again, once each.
#[derive(Debug)]
struct LoggingExporter<E> {
    exporter: E,
    endpoint: Arc<str>,
    failing: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for LoggingExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let result = self.exporter.export(batch).await;
        let failed_before = self.failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) if !failed_before => {
                tracing::warn!(endpoint = %self.endpoint, %error, "traces cannot be sent; they are dropped");
            }
            Ok(()) if failed_before => {
                tracing::info!(endpoint = %self.endpoint, "traces are sent again");
            }
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
