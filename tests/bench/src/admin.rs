//! The admin API of the cloud, which the mock cloud and the Go manager both serve.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// Calls to the cloud by operation.
pub(crate) type Calls = BTreeMap<String, u64>;

/// Operations of the mock cloud that change nothing; counts of other things than calls begin
/// otherwise.
const READS: [&str; 7] = [
    "describe_instances",
    "instance_exists",
    "instance_metadata",
    "instance_shutdown",
    "get_load_balancer",
    "list_load_balancers",
    "list_routes",
];
/// Operations that change something.
const WRITES: [&str; 8] = [
    "adopt_load_balancer",
    "create_load_balancer",
    "create_route",
    "delete_load_balancer",
    "delete_route",
    "modify_load_balancer",
    "retain_load_balancer",
    "update_load_balancer",
];

/// Calls about instances.
pub(crate) fn instance_calls(calls: &Calls) -> u64 {
    sum(calls, &READS[..4])
}

/// Calls that change the cloud.
pub(crate) fn writes(calls: &Calls) -> u64 {
    sum(calls, &WRITES)
}

/// All calls.
pub(crate) fn all(calls: &Calls) -> u64 {
    sum(calls, &READS) + sum(calls, &WRITES)
}

fn sum(calls: &Calls, operations: &[&str]) -> u64 {
    operations
        .iter()
        .filter_map(|operation| calls.get(*operation))
        .sum()
}

/// What was called between two counts.
pub(crate) fn between(before: &Calls, after: &Calls) -> Calls {
    let earlier = |name: &String| before.get(name).copied().unwrap_or(0);
    after
        .iter()
        .map(|(name, count)| (name.clone(), count.saturating_sub(earlier(name))))
        .collect()
}

/// A load balancer, as far as it is looked at.
#[derive(Debug, Deserialize)]
pub(crate) struct LoadBalancer {
    pub(crate) name: String,
    pub(crate) nodes: Vec<String>,
}

/// Client of the API at one address.
#[derive(Debug, Clone)]
pub(crate) struct AdminClient {
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

impl AdminClient {
    /// Makes a client; connects when it is used.
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build(HttpConnector::new()),
            address,
        }
    }

    /// Waits until the cloud is there.
    pub(crate) async fn ready(&self) -> anyhow::Result<()> {
        let limit = Instant::now() + Duration::from_secs(60);
        while let Err(error) = self.calls().await {
            if Instant::now() > limit {
                return Err(error.context("the cloud does not come up"));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Counts of calls since the cloud started.
    pub(crate) async fn calls(&self) -> anyhow::Result<Calls> {
        let calls: Calls = self.get("/v1/calls").await?;
        // A name that nobody adds up must not look like thrift.
        let other = |name: &&String| {
            let name = name.as_str();
            let derived =
                ["describe_instances_nodes", "ensure_load_balancer", "throttled"].contains(&name);
            !(derived || READS.contains(&name) || WRITES.contains(&name))
        };
        match calls.keys().find(other) {
            Some(name) => bail!("the cloud counts {name}, which the benchmark does not know"),
            None => Ok(calls),
        }
    }

    /// The load balancers.
    pub(crate) async fn load_balancers(&self) -> anyhow::Result<Vec<LoadBalancer>> {
        self.get("/v1/load-balancers").await
    }

    /// Removes the instance of a node for good.
    pub(crate) async fn delete_instance(&self, node: &str) -> anyhow::Result<()> {
        self.send(Method::DELETE, &format!("/v1/instances/{node}"), None)
            .await
            .map(drop)
    }

    /// Lets every call fail from now on.
    pub(crate) async fn begin_outage(&self) -> anyhow::Result<()> {
        let faults = json!([{"operation": "any", "error": "transient"}]);
        self.send(Method::PUT, "/v1/faults", Some(&faults))
            .await
            .map(drop)
    }

    /// Lets calls succeed again.
    pub(crate) async fn end_outage(&self) -> anyhow::Result<()> {
        self.send(Method::DELETE, "/v1/faults", None)
            .await
            .map(drop)
    }

    /// Lets the Go manager write down what its cloud holds, for its next process.
    pub(crate) async fn save(&self) -> anyhow::Result<()> {
        self.send(Method::POST, "/v1/state", None).await.map(drop)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let body = self.send(Method::GET, path, None).await?;
        serde_json::from_slice(&body).with_context(|| format!("read the answer of {path}"))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Bytes> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::from(body.map(Value::to_string).unwrap_or_default()))?;
        let answer = self
            .client
            .request(request)
            .await
            .with_context(|| format!("ask the cloud for {path}"))?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{path}: {status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(counts: &[(&str, u64)]) -> Calls {
        counts
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }

    #[test]
    fn only_calls_are_added_up() {
        let ours = calls(&[
            ("describe_instances", 3),
            ("describe_instances_nodes", 900),
            ("ensure_load_balancer", 2),
            ("create_load_balancer", 2),
            ("get_load_balancer", 5),
            ("throttled", 1),
        ]);
        assert_eq!((instance_calls(&ours), writes(&ours), all(&ours)), (3, 2, 10));
        let theirs =
            calls(&[("instance_metadata", 1), ("instance_exists", 2), ("create_route", 4)]);
        assert_eq!((instance_calls(&theirs), writes(&theirs), all(&theirs)), (3, 4, 7));
    }

    #[test]
    fn counts_are_subtracted() {
        let (before, after) = (calls(&[("a", 1)]), calls(&[("a", 3), ("b", 2)]));
        assert_eq!(between(&before, &after), calls(&[("a", 2), ("b", 2)]));
    }
}
