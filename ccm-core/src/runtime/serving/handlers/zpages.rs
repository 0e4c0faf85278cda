//! `/statusz` and `/flagz`: for people, in the format of other Kubernetes components.

use std::{fmt::Write as _, sync::Arc};

use axum::{Router, extract::State, routing::get};
use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    config::{Config, Product},
    crypto,
};

const NOTICE: &str = "Warning: for people who look for a fault; its form may change at any time, so no program should read it.";

/// Data of these endpoints.
pub(super) struct ProcessInfo {
    binary: &'static str,
    version: String,
    commit: &'static str,
    flags: String,
    paths: String,
    started: (Timestamp, Instant),
}

impl ProcessInfo {
    pub(super) fn new(
        product: &Product,
        config: &Config,
        started: (Timestamp, Instant),
        paths: &[&str],
    ) -> Self {
        let mut flags = String::new();
        for flag in config.flags() {
            let _ = writeln!(flags, "{}={}", flag.name, flag.value);
        }
        Self {
            binary: product.binary,
            version: config
                .reported_version
                .clone()
                .unwrap_or_else(|| product.version.to_owned()),
            commit: product.commit,
            flags,
            paths: paths.join(" "),
            started,
        }
    }

    fn statusz(&self) -> String {
        let up = self.started.1.elapsed().as_secs();
        let hours = up / 3600;
        let minutes = up / 60 % 60;
        let seconds = up % 60;
        format!(
            "\n{} statusz\n{NOTICE}\n\nStarted: {}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\n\
             Binary version: {}\nSource revision: {}\nCryptography: {}\n\nPaths: {}\n",
            self.binary,
            self.started.0,
            self.version,
            self.commit,
            crypto::LIBRARY,
            self.paths
        )
    }

    fn flagz(&self) -> String {
        format!("\n{} flagz\n{NOTICE}\n\n{}", self.binary, self.flags)
    }
}

pub(super) fn routes(facts: Arc<ProcessInfo>) -> Router {
    Router::new()
        .route("/statusz", get(async |State(facts): State<Arc<ProcessInfo>>| facts.statusz()))
        .route("/flagz", get(async |State(facts): State<Arc<ProcessInfo>>| facts.flagz()))
        .with_state(facts)
}
