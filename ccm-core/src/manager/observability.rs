//! Metrics, health checks and shadow report of a manager.

use std::sync::Arc;

use axum::Router;
use parking_lot::Mutex;
use prometheus::Registry;

use crate::{
    config::Config,
    runtime::{
        health::Health,
        shadow::{self, ShadowReport},
    },
};

/// Metrics, health checks and shadow report of a manager. The HTTPS server can be started with it
/// before there is a manager. Clones share their state.
#[derive(Clone, Debug)]
pub struct Observability {
    /// Metrics.
    pub registry: Registry,
    /// Health checks, to which the manager adds its own while it runs.
    pub health: Health,
    /// Differences that shadow mode found.
    pub(super) shadow_report: Arc<Mutex<ShadowReport>>,
}

impl Observability {
    /// Makes an empty registry, without health checks and differences.
    pub fn new(config: &Config) -> Self {
        let shadow_report = Arc::new(Mutex::new(ShadowReport::new(config.shadow.settle)));
        Self {
            registry: Registry::new(),
            health: Health::default(),
            shadow_report,
        }
    }

    /// Returns the HTTP handlers that are served beside the common ones: `/shadow`, in shadow mode.
    pub fn routes(&self, config: &Config) -> Router {
        if config.shadow.is_on() {
            shadow::routes(self.shadow_report.clone())
        } else {
            Router::new()
        }
    }
}
