//! Metrics of requests to the API server.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

use crate::telemetry::metrics::register;

/// The metrics of requests to the API server, with the names, labels and buckets of Go's clients
/// (`k8s.io/component-base/metrics/prometheus/restclient` v0.37).
#[derive(Clone, Debug)]
pub struct ApiMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    waiting: HistogramVec,
    request_size: HistogramVec,
    response_size: HistogramVec,
}

const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const BYTES: [f64; 11] = [
    64.0,
    256.0,
    512.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];

/// Registers a histogram by verb and host.
fn histogram(
    registry: &Registry,
    name: &str,
    help: &str,
    buckets: &[f64],
) -> prometheus::Result<HistogramVec> {
    let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    register(registry, HistogramVec::new(opts, &["verb", "host"])?)
}

impl ApiMetrics {
    /// Registers `rest_client_requests_total{code,method,host}` and, by `{verb,host}`,
    /// `rest_client_request_duration_seconds`, `rest_client_rate_limiter_duration_seconds`,
    /// `rest_client_request_size_bytes` and `rest_client_response_size_bytes`.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let requests = IntCounterVec::new(
            Opts::new(
                "rest_client_requests_total",
                "HTTP requests to the API server by status code, method and host.",
            ),
            &["code", "method", "host"],
        )?;
        Ok(Self {
            requests: register(registry, requests)?,
            duration: histogram(
                registry,
                "rest_client_request_duration_seconds",
                "Request latency.",
                &SECONDS,
            )?,
            waiting: histogram(
                registry,
                "rest_client_rate_limiter_duration_seconds",
                "Time that requests waited for the client's own rate limit.",
                &SECONDS,
            )?,
            request_size: histogram(
                registry,
                "rest_client_request_size_bytes",
                "Size of request bodies.",
                &BYTES,
            )?,
            response_size: histogram(
                registry,
                "rest_client_response_size_bytes",
                "Size of answer bodies.",
                &BYTES,
            )?,
        })
    }

    /// Exposes the families of this host from the start, for every method, with the codes `200` and
    /// `<error>`.
    pub fn init(&self, host: &str) {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            for code in ["200", "<error>"] {
                self.requests.with_label_values(&[code, method, host]);
            }
            for family in [&self.duration, &self.waiting, &self.request_size, &self.response_size] {
                family.with_label_values(&[method, host]);
            }
        }
    }

    pub(crate) fn record_rate_limit_wait(&self, method: &str, host: &str, time: Duration) {
        self.waiting
            .with_label_values(&[method, host])
            .observe(time.as_secs_f64());
    }

    pub(crate) fn record_request_size(&self, method: &str, host: &str, bytes: usize) {
        self.request_size
            .with_label_values(&[method, host])
            .observe(bytes as f64);
    }

    /// Counts a finished request. As upstream, the code of a request without a response is
    /// `<error>`.
    pub(crate) fn record_response(
        &self,
        method: &str,
        host: &str,
        code: Option<u16>,
        time: Duration,
    ) {
        let code = code.map_or_else(|| "<error>".to_owned(), |c| c.to_string());
        self.requests
            .with_label_values(&[code.as_str(), method, host])
            .inc();
        self.duration
            .with_label_values(&[method, host])
            .observe(time.as_secs_f64());
    }

    pub(crate) fn record_response_size(&self, method: &str, host: &str, bytes: usize) {
        self.response_size
            .with_label_values(&[method, host])
            .observe(bytes as f64);
    }
}
