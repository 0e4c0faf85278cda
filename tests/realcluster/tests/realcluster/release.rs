//! A release of the chart, and what is seen of it in a cluster.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use ccm_realcluster::{Cluster, wait_for};
use serde_json::Value;

/// Name of the release; as long as its name contains the chart's, also that of its objects.
pub(crate) const NAME: &str = "cloud-controller-manager";
/// Namespace of the release.
pub(crate) const NAMESPACE: &str = "kube-system";
/// Within this time what should happen has happened, on a machine that is busy with other suites.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Values of an installation with the mock, whose cloud is beside the control plane.
pub(crate) const MOCK: &str = "provider=mock,image.registry=localhost/ccm,\
     cloudConfig.values.region=real,cloudConfig.values.endpoint=http://10.250.0.1:7000";
/// Configuration of that cloud.
const CLOUD: &str = "region: real\nadminAddress: 10.250.0.1:7000\ninstances:\n\
     - {name: node-1, addresses: [{type: InternalIP, address: 10.250.0.11}]}\n\
     - {name: node-2, addresses: [{type: InternalIP, address: 10.250.0.12}]}\n";

/// The manager with the mock, which is also its cloud.
pub(crate) fn mock() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_mock-in-a-cluster"))
}

/// Starts the mock's cloud, which outlives managers.
pub(crate) fn start_mock_cloud(cluster: &Cluster) -> anyhow::Result<()> {
    let config = cluster.folder().join("mock-cloud.yaml");
    std::fs::write(&config, CLOUD)?;
    let config = config.display().to_string();
    cluster.spawn("cloud", mock(), &["cloud", "--cloud-config", &config])
}

/// The chart.
pub(crate) fn chart() -> String {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/cloud-controller-manager");
    PathBuf::from(chart).display().to_string()
}

/// Runs `helm VERB RELEASE CHART` with these arguments.
pub(crate) fn helm(cluster: &Cluster, verb: &str, more: &[&str]) -> anyhow::Result<String> {
    let chart = chart();
    let mut arguments = vec![verb, NAME, "--namespace", NAMESPACE];
    if ["install", "upgrade"].contains(&verb) {
        arguments.extend([chart.as_str(), "--wait", "--timeout", "120s"]);
    }
    arguments.extend(more);
    cluster.helm(&arguments)
}

/// Pods of the release that are not about to end.
pub(crate) fn pods(cluster: &Cluster) -> anyhow::Result<Vec<Value>> {
    let selector = format!("app.kubernetes.io/instance={NAME},app.kubernetes.io/name={NAME}");
    let pods = cluster.get(&["pods", "--namespace", NAMESPACE, "--selector", &selector])?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    Ok(pods
        .into_iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .collect())
}

/// Whether all containers of a pod are ready.
pub(crate) fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Who leads: the node of the process, since its pod shares the node's name. Nobody, if the Lease
/// was released.
pub(crate) fn leader(cluster: &Cluster) -> anyhow::Result<Option<String>> {
    let lease = cluster.get(&["lease", NAME, "--namespace", NAMESPACE])?;
    Ok(holder(&lease))
}

pub(crate) fn holder(lease: &Value) -> Option<String> {
    let holder = lease["spec"]["holderIdentity"]
        .as_str()
        .filter(|holder| !holder.is_empty())?;
    Some(holder.split('_').next().unwrap_or_default().to_owned())
}

/// Waits until no node waits to be initialised.
pub(crate) fn wait_for_nodes(cluster: &Cluster) -> anyhow::Result<()> {
    wait_for(SOON, "initialised nodes", || {
        let nodes = cluster.get(&["nodes"])?;
        let nodes = nodes["items"].as_array().context("no list")?;
        let all = nodes.iter().all(|node| {
            let is_known = node["spec"]["providerID"]
                .as_str()
                .is_some_and(|id| !id.is_empty());
            is_known && !is_uninitialized(node)
        });
        Ok(all.then_some(()))
    })
}

/// Whether a node has the taint that the manager removes.
pub(crate) fn is_uninitialized(node: &Value) -> bool {
    let taints = node["spec"]["taints"].as_array();
    let key = "node.cloudprovider.kubernetes.io/uninitialized";
    taints
        .into_iter()
        .flatten()
        .any(|taint| taint["key"] == key)
}

/// Waits for a Service's address.
pub(crate) fn wait_for_address(cluster: &Cluster, service: &str) -> anyhow::Result<String> {
    wait_for(SOON, &format!("address of {service}"), || {
        let service = cluster.get(&["service", service])?;
        let address = &service["status"]["loadBalancer"]["ingress"][0]["ip"];
        Ok(address.as_str().map(str::to_owned))
    })
}

/// Manifests of a Deployment of web servers that nodes must be initialised for, and of a Service of
/// them.
pub(crate) fn web(name: &str, replicas: usize, policy: &str) -> String {
    format!(
        r#"
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 2
      containers: [{{name: web, image: "localhost/web:1", imagePullPolicy: Never}}]
---
{}"#,
        service(name, name, policy)
    )
}

/// Manifest of a Service with a load balancer, of the pods of `app`.
pub(crate) fn service(name: &str, app: &str, policy: &str) -> String {
    format!(
        r"
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  type: LoadBalancer
  externalTrafficPolicy: {policy}
  selector: {{app: {app}}}
  ports: [{{name: http, port: 80, targetPort: 8080}}]
"
    )
}

/// Waits until every pod of a Deployment is available.
pub(crate) fn wait_for_deployment(cluster: &Cluster, name: &str) -> anyhow::Result<()> {
    let deployment = format!("deployment/{name}");
    cluster
        .kubectl(&["rollout", "status", &deployment, "--timeout", "60s"])
        .map(drop)
}

/// Asks a web server from a node, and returns its answer, which names the pod.
pub(crate) fn curl(cluster: &Cluster, node: usize, address: &str) -> anyhow::Result<String> {
    wait_for(SOON, &format!("answer from {address}"), || {
        ask(&mut cluster.on(node, "curl")?, address).map(Some)
    })
}

/// Asks a web server once, and returns the name of the pod that answers.
pub(crate) fn ask(curl: &mut Command, address: &str) -> anyhow::Result<String> {
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "3"]);
    let output = curl.arg(format!("http://{address}/")).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    let pod = text
        .strip_prefix("pod=")
        .and_then(|rest| rest.split(' ').next());
    Ok(pod.with_context(|| format!("{text}{why}"))?.to_owned())
}
