use std::time::Duration;

use anyhow::anyhow;
use ccm_testkit::kubelet::Kubelets;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::time::Instant;

use super::print;
use crate::MockCloud;

/// Most objects of a kind that are shown one by one.
const SHOWN: usize = 10;
/// Pause between two looks. The cloud is in this process, and the API server too.
const PAUSE: Duration = Duration::from_millis(50);

/// What the scenes play with.
pub(super) struct DemoEnvironment<'a> {
    pub(super) client: kube::Client,
    pub(super) kubelets: &'a Kubelets,
    pub(super) cloud: &'a MockCloud,
    pub(super) nodes: usize,
}

impl DemoEnvironment<'_> {
    /// Returns how long one scene may take before it has failed: a minute, and more for many nodes.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(60 + self.nodes as u64 / 10)
    }

    /// Returns a client of nodes.
    pub(super) fn node_api(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Waits until `look` finds what it looks for; it answers what is missing as long as it does not.
    ///
    /// # Errors
    /// What is still missing after [`patience`](Self::patience), and which controller is missing or fails.
    pub(super) async fn wait_for<T>(
        &self,
        controller: &str,
        mut look: impl AsyncFnMut() -> anyhow::Result<Result<T, String>>,
    ) -> anyhow::Result<T> {
        let begin = Instant::now();
        loop {
            match look().await? {
                Ok(found) => return Ok(found),
                Err(missing) if begin.elapsed() > self.patience() => return Err(self.missing(&missing, controller)),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Says what did not happen in time and who should have seen to it.
    pub(super) fn missing(&self, what: &str, controller: &str) -> anyhow::Error {
        anyhow!("{what} after {} s: is there a {controller}?", self.patience().as_secs())
    }
}

/// Shows the first few of many.
#[derive(Debug, Default)]
pub(super) struct Few(usize);

impl Few {
    /// Shows one line, or that there are more.
    pub(super) fn say(&mut self, line: &str) {
        match self.0.cmp(&SHOWN) {
            std::cmp::Ordering::Less => print(&format!("  {line}")),
            std::cmp::Ordering::Equal => print("  …"),
            std::cmp::Ordering::Greater => {}
        }
        self.0 += 1;
    }
}
