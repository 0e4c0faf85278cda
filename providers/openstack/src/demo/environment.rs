//! What the steps of the demo work with: cloud, API server, operator and addresses.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use anyhow::anyhow;
use ccm_testkit::apiserver::ApiServer;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::Api;
use openstack_local::server::LocalCloud;
use tokio::time::Instant;

use super::{
    addresses::DemoAddresses,
    http_client,
    operator::{CloudResources, Operator},
    print,
};

/// Maximum duration of one step: far more than a busy machine needs.
const STEP_TIMEOUT: Duration = Duration::from_secs(120);
/// Delay between two checks. Cloud and API server are in this process.
const PAUSE: Duration = Duration::from_millis(50);
/// How often each node has to answer.
const REQUESTS_PER_NODE: usize = 3;
/// Prefixes of request paths that are not printed.
const PREFIXES: [&str; 4] = [
    "/compute/v2.1/",
    "/network/v2.0/",
    "/load-balancer/v2.0/lbaas/",
    "/load-balancer/v2/lbaas/",
];

/// What the steps work with.
pub(super) struct DemoEnvironment<'a> {
    pub(super) client: kube::Client,
    pub(super) server: &'a ApiServer,
    pub(super) cloud: &'a LocalCloud,
    pub(super) operator: Operator,
    pub(super) resources: CloudResources,
    pub(super) addresses: &'a DemoAddresses,
}

impl DemoEnvironment<'_> {
    /// Returns a client of nodes.
    pub(super) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Returns a client of Services.
    pub(super) fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Waits until `look` succeeds; until then it returns what is missing.
    ///
    /// # Errors
    /// What is still missing after two minutes, and which controller is responsible.
    pub(super) async fn wait_for<T>(
        &self,
        who: &str,
        mut look: impl AsyncFnMut() -> anyhow::Result<Result<T, String>>,
    ) -> anyhow::Result<T> {
        let begin = Instant::now();
        loop {
            match look().await? {
                Ok(found) => return Ok(found),
                Err(missing) if begin.elapsed() > STEP_TIMEOUT => {
                    return Err(anyhow!(
                        "{missing} after {} s: is there a {who}?",
                        STEP_TIMEOUT.as_secs()
                    ));
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Sends three requests per node to the Service's address, until all of these nodes and no
    /// other have answered equally often.
    ///
    /// # Errors
    /// After two minutes other nodes still answer, or some do not.
    pub(super) async fn curl(&self, address: SocketAddr, nodes: &[String]) -> anyhow::Result<()> {
        let answers = self
            .wait_for("load balancer that sends there", async || {
                let mut answers = BTreeMap::<String, usize>::new();
                for _ in 0..REQUESTS_PER_NODE * nodes.len() {
                    match http_client::get(address).await {
                        Ok(node) => *answers.entry(node).or_default() += 1,
                        Err(error) => return Ok(Err(format!("curl http://{address}/: {error:#}"))),
                    }
                }
                let right = answers.keys().eq(nodes)
                    && answers.values().all(|times| *times == REQUESTS_PER_NODE);
                Ok(if right {
                    Ok(answers)
                } else {
                    Err(format!("http://{address}/ is answered by {answers:?}"))
                })
            })
            .await?;
        let answers: Vec<_> = answers
            .iter()
            .map(|(node, times)| format!("{node} {times} times"))
            .collect();
        print(&format!("  curl http://{address}/ is answered by {}", answers.join(", ")));
        Ok(())
    }

    /// Clears the counts of requests and writes.
    pub(super) fn reset_counts(&self) {
        self.cloud.cloud().journal.clear();
        self.server.log().clear();
    }

    /// Prints the controllers' requests to the cloud and writes to the API server since
    /// [`reset_counts`](Self::reset_counts).
    pub(super) fn print_counts(&self) {
        let requests = self.cloud.cloud().journal.counts();
        // The operator creates the servers.
        let requests = requests
            .iter()
            .filter(|(request, _)| *request != "POST /compute/v2.1/servers");
        let requests = requests.map(|(request, times)| {
            let (method, route) = request.split_once(' ').unwrap_or_default();
            let route = PREFIXES
                .iter()
                .find_map(|prefix| route.strip_prefix(prefix))
                .unwrap_or(route);
            format!("{times} {method} {route}")
        });
        print(&format!("  requests to OpenStack: {}", list(requests)));
        let mut writes = BTreeMap::<String, usize>::new();
        for entry in self.server.log().entries() {
            if entry.is_successful_write() && entry.request.user_agent.starts_with("ccm-openstack/")
            {
                *writes
                    .entry(format!("{} {}", entry.request.verb, entry.request.target()))
                    .or_default() += 1;
            }
        }
        let writes = writes
            .iter()
            .map(|(write, times)| format!("{times} {write}"));
        print(&format!("  writes to Kubernetes: {}\n", list(writes)));
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<_> = items.collect();
    if items.is_empty() {
        "none".to_owned()
    } else {
        items.join(", ")
    }
}
