//! Environment of the demo's scenes.

use std::time::Duration;

use anyhow::anyhow;
use ccm_testkit::kubelet::Kubelets;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::time::Instant;

use super::print;
use crate::MockCloud;

/// Maximum number of objects of a kind that are printed one by one.
const MAX_LINES: usize = 10;
/// Poll interval. Short, because the cloud and the API server are in this process.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Environment of the demo's scenes.
pub(super) struct DemoEnvironment<'a> {
    pub(super) client: kube::Client,
    pub(super) kubelets: &'a Kubelets,
    pub(super) cloud: &'a MockCloud,
    pub(super) nodes: usize,
}

impl DemoEnvironment<'_> {
    /// Returns the time limit of one wait in a scene: a minute, plus a second for every ten nodes.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(60 + self.nodes as u64 / 10)
    }

    /// Returns a client for Nodes.
    pub(super) fn node_api(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Polls `check` until it returns `Ok`; until then, `check` returns what is missing.
    ///
    /// # Errors
    /// Returns an error if something is still missing after [`timeout`](Self::timeout); the error
    /// names it and the controller that is responsible for it. Also when `check` itself fails.
    pub(super) async fn wait_for<T>(
        &self,
        controller: &str,
        mut check: impl AsyncFnMut() -> anyhow::Result<Result<T, String>>,
    ) -> anyhow::Result<T> {
        let started = Instant::now();
        loop {
            match check().await? {
                Ok(found) => return Ok(found),
                Err(missing) if started.elapsed() > self.timeout() => {
                    return Err(self.timeout_error(&missing, controller));
                }
                Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
            }
        }
    }

    /// Creates the error for something that did not happen in time; it names the responsible
    /// controller.
    pub(super) fn timeout_error(&self, what: &str, controller: &str) -> anyhow::Error {
        anyhow!("{what} after {} s: is there a {controller}?", self.timeout().as_secs())
    }
}

/// Prints the first few of many lines.
#[derive(Debug, Default)]
pub(super) struct FirstLines(usize);

impl FirstLines {
    /// Prints one line, or once `…` if the maximum is reached.
    pub(super) fn print(&mut self, line: &str) {
        if self.0 < MAX_LINES {
            print(&format!("  {line}"));
        } else if self.0 == MAX_LINES {
            print("  …");
        }
        self.0 += 1;
    }
}
