//! `/metrics` and `/metrics/slis`, in Prometheus' text format.

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry, TEXT_FORMAT, TextEncoder};

use crate::telemetry::metrics::register;

/// Results of health checks as metrics, served at `/metrics/slis`.
#[derive(Clone)]
pub(super) struct HealthSlis {
    registry: Registry,
    last: IntGaugeVec,
    total: IntCounterVec,
}

impl HealthSlis {
    pub(super) fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let last = Opts::new(
            "kubernetes_healthcheck",
            "This metric records the result of a single healthcheck.",
        );
        let total = Opts::new(
            "kubernetes_healthchecks_total",
            "This metric records the results of all healthcheck.",
        );
        let last = register(&registry, IntGaugeVec::new(last, &["name", "type"])?)?;
        let total = register(&registry, IntCounterVec::new(total, &["name", "type", "status"])?)?;
        Ok(Self { registry, last, total })
    }

    /// Records the result of a check at a health endpoint.
    pub(super) fn observe(&self, name: &str, page: &str, good: bool) {
        self.last.with_label_values(&[name, page]).set(good.into());
        self.total
            .with_label_values(&[name, page, if good { "success" } else { "error" }])
            .inc();
    }

    fn reset(&self) {
        self.last.reset();
        self.total.reset();
    }
}

pub(super) fn routes(registry: Registry, slis: HealthSlis) -> Router {
    let metrics = Router::new()
        .route("/metrics", get(async |State(registry): State<Registry>| encode(&registry)));
    let slis_page = get(async |State(slis): State<HealthSlis>| encode(&slis.registry)).delete(
        async |State(slis): State<HealthSlis>| {
            slis.reset();
            "metrics reset\n"
        },
    );
    metrics.with_state(registry).merge(
        Router::new()
            .route("/metrics/slis", slis_page)
            .with_state(slis),
    )
}

fn encode(registry: &Registry) -> Response {
    match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            (StatusCode::INTERNAL_SERVER_ERROR, "metrics cannot be written\n").into_response()
        }
    }
}
