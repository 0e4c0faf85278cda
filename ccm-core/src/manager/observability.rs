//! The metrics, the health checks, the shadow report and the explanations of a manager.

use std::sync::Arc;

use axum::Router;
use parking_lot::Mutex;
use prometheus::Registry;

use super::{
    explain::{self, ExplainState, Explanations},
    explain_page,
};
use crate::{
    config::Config,
    runtime::{
        health::Health,
        shadow::{self, ShadowReport},
    },
};

/// The metrics, the health checks, the shadow report and the explanations of a manager. Clones share
/// their state.
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
    /// The explanations of objects, which are available while the controllers run.
    pub(super) explanations: Explanations,
}

impl Observability {
    /// Creates an empty registry, without health checks and differences.
    pub fn new(config: &Config) -> Self {
        let shadow_report = Arc::new(Mutex::new(ShadowReport::new(config.shadow.settle)));
        Self {
            registry: Registry::new(),
            health: Health::default(),
            shadow_report,
            explanations: Explanations::default(),
        }
    }

    /// Returns the additional HTTP handlers: those below `/explain`, and `/shadow` in shadow mode.
    pub fn routes(&self, config: &Config) -> Router {
        let election = &config.leader_election;
        let lease = election
            .enabled
            .then(|| format!("{}/{}", election.resource_namespace, election.resource_name));
        let state = ExplainState {
            explanations: self.explanations.clone(),
            lease: lease.map(Arc::from),
        };
        let page = explain_page::routes(state.clone(), self.registry.clone(), self.health.clone());
        let explanations = explain::routes(state).merge(page);
        if config.shadow.is_on() {
            explanations.merge(shadow::routes(self.shadow_report.clone()))
        } else {
            explanations
        }
    }
}
