//! The metrics, the health checks and the shadow report of a manager.

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

/// The metrics, the health checks and the shadow report of a manager. Clones share their state.
///
/// They exist before the manager, because the HTTPS server starts earlier.
#[derive(Clone, Debug)]
pub struct Observability {
    /// The metrics registry.
    pub registry: Registry,
    /// The health checks, to which the manager adds its own while it runs.
    pub health: Health,
    /// The differences that shadow mode found.
    pub(super) shadow_report: Arc<Mutex<ShadowReport>>,
}

impl Observability {
    /// Creates an empty registry, without health checks and differences.
    pub fn new(config: &Config) -> Self {
        let shadow_report = Arc::new(Mutex::new(ShadowReport::new(config.shadow.settle)));
        Self {
            registry: Registry::new(),
            health: Health::default(),
            shadow_report,
        }
    }

    /// Returns the additional HTTP handlers, which are `/shadow` in shadow mode and none otherwise.
    pub fn routes(&self, config: &Config) -> Router {
        if config.shadow.is_on() {
            shadow::routes(self.shadow_report.clone())
        } else {
            Router::new()
        }
    }
}
