//! The HTTP handlers.

mod debug;
mod health;
mod metrics;
mod zpages;

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderValue, StatusCode, header},
    middleware::{from_fn_with_state, map_response},
    response::{IntoResponse, Response},
    routing::get,
};
use jiff::Timestamp;
use prometheus::Registry;
use tokio::time::Instant;

use super::auth_filter::{self, AuthFilter};
use crate::{
    config::{Config, Product},
    runtime::health::Health,
    telemetry::logging::Verbosity,
};

/// Data that the handlers serve.
#[derive(Debug)]
pub struct Handlers {
    product: Product,
    config: Config,
    registry: Registry,
    health: Health,
    verbosity: Verbosity,
    started: (Timestamp, Instant),
}

impl Handlers {
    /// Creates the handlers of a process that starts now.
    pub fn new(
        product: Product,
        config: Config,
        registry: Registry,
        health: Health,
        verbosity: Verbosity,
    ) -> Self {
        Self {
            product,
            config,
            registry,
            health,
            verbosity,
            started: (Timestamp::now(), Instant::now()),
        }
    }

    /// Creates the router: these endpoints and `other_routes`, all behind `auth_filter`.
    ///
    /// # Errors
    /// Returns an error if the metrics of the health checks cannot be created.
    pub fn router(
        self,
        auth_filter: AuthFilter,
        other_routes: Router,
    ) -> prometheus::Result<Router> {
        let mut paths = vec![
            "/configz", "/explain", "/flagz", "/healthz", "/livez", "/metrics", "/readyz",
            "/statusz",
        ];
        let profiling = self.config.debugging.profiling;
        if profiling {
            paths.insert(1, "/debug");
        }
        let slis = metrics::HealthSlis::new()?;
        let configz = self.config.configz(&self.product.controllers).to_string();
        let zpages = zpages::ProcessInfo::new(&self.product, &self.config, self.started, &paths);
        let mut router = Router::new()
            .merge(health::routes(self.health, slis.clone()))
            .merge(metrics::routes(self.registry, slis))
            .merge(zpages::routes(Arc::new(zpages)))
            .route(
                "/configz",
                get(async move || ([(header::CONTENT_TYPE, "application/json")], configz.clone())),
            );
        if profiling {
            router = router.merge(debug::routes(self.verbosity));
        }
        Ok(router
            .merge(other_routes)
            .fallback(async || not_found())
            .layer(from_fn_with_state(auth_filter, auth_filter::authorize))
            .layer(map_response(with_headers)))
    }
}

fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "404 page not found\n").into_response()
}

/// Adds headers to every response that prevent caching and content sniffing.
async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-cache, private"));
    headers
        .entry(header::X_CONTENT_TYPE_OPTIONS)
        .or_insert(HeaderValue::from_static("nosniff"));
    response
}
