use std::sync::Arc;

use axum::Router;
use parking_lot::Mutex;
use prometheus::Registry;

use crate::{
    config::Config,
    runtime::{
        health::Health,
        shadow::{self, Board},
    },
};

/// What a manager shows of itself. Pages can be served from it before there is a manager. Clones are one.
#[derive(Clone, Debug)]
pub struct Surface {
    /// Metrics.
    pub registry: Registry,
    /// Health checks, to which the manager adds its own while it runs.
    pub health: Health,
    /// What a shadow found.
    pub(super) board: Arc<Mutex<Board>>,
}

impl Surface {
    /// Makes one on which nothing is shown yet.
    pub fn new(config: &Config) -> Self {
        let board = Arc::new(Mutex::new(Board::new(config.shadow.settle)));
        Self { registry: Registry::new(), health: Health::default(), board }
    }

    /// Returns the pages that are served beside the common ones: `/shadow`, in shadow mode.
    pub fn pages(&self, config: &Config) -> Router {
        if config.shadow.is_on() { shadow::pages(self.board.clone()) } else { Router::new() }
    }
}
