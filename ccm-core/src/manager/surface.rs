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

/// What a manager shows of itself. Pages can be served from it before there is a manager. Clones are one.
#[derive(Clone, Debug)]
pub struct Observability {
    /// Metrics.
    pub registry: Registry,
    /// Health checks, to which the manager adds its own while it runs.
    pub health: Health,
    /// What a shadow found.
    pub(super) shadow_report: Arc<Mutex<ShadowReport>>,
}

impl Observability {
    /// Makes one on which nothing is shown yet.
    pub fn new(config: &Config) -> Self {
        let shadow_report = Arc::new(Mutex::new(ShadowReport::new(config.shadow.settle)));
        Self { registry: Registry::new(), health: Health::default(), shadow_report }
    }

    /// Returns the pages that are served beside the common ones: `/shadow`, in shadow mode.
    pub fn routes(&self, config: &Config) -> Router {
        if config.shadow.is_on() { shadow::routes(self.shadow_report.clone()) } else { Router::new() }
    }
}
