//! The OpenStack provider: the kubelets' nodes are servers of the local cloud, whose load balancers
//! carry traffic to pods.

use std::collections::BTreeSet;

use anyhow::Context as _;
use ccm_realcluster::{ADDRESS, Cluster, Programs, wait_for};
use serde_json::Value;

use crate::kubelet_commands;
use crate::release::{
    self, NAMESPACE, SOON, ask, helm, leader, wait_for_address, wait_for_deployment, wait_for_nodes,
};

/// Values of an installation.
pub(crate) const VALUES: &str = "provider=openstack,image.registry=localhost/ccm,cluster.name=kubernetes,\
     cloudConfig.existingSecret.name=cloud-config";
/// Requests in a row that all have to be answered.
const REQUESTS: usize = 20;

pub(crate) fn load_balancers_reach_pods(programs: Programs) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let image = image(&programs, folder.path())?;
    let cluster = Cluster::start(programs, 2, &[image])?;
    crate::on(&cluster, |cluster| {
        start_cloud(cluster)?;
        kubelet_commands::install(cluster, &format!("--set {VALUES}"))?;
        wait_for(SOON, "leader", || leader(cluster))?;
        wait_for_nodes(cluster)?;
        helm(cluster, "test", &["--logs"])?;
        cluster.apply(&release::web("web", 2, "Cluster"))?;
        wait_for_deployment(cluster, "web")?;
        both_pods_answer(cluster).context("from both nodes")?;
        a_pod_moves(cluster).context("a pod moves")?;
        local_traffic_stays_on_its_node(cluster).context("externalTrafficPolicy: Local")?;
        a_deleted_service_ends(cluster).context("a Service is deleted")
    })
}

/// The image that is shipped.
pub(crate) fn image(
    programs: &Programs,
    folder: &std::path::Path,
) -> anyhow::Result<(String, std::path::PathBuf)> {
    let program = Programs::release("ccm-openstack").map_err(anyhow::Error::msg)?;
    programs.image("openstack", &program, folder)
}

/// Starts the cloud beside the control plane, and puts its cloud config into a Secret.
pub(crate) fn start_cloud(cluster: &Cluster) -> anyhow::Result<()> {
    start_cloud_with(cluster, &[])
}

/// The same, with further arguments for the cloud.
pub(crate) fn start_cloud_with(cluster: &Cluster, options: &[&str]) -> anyhow::Result<()> {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_cloud-of-a-cluster"));
    let config = cluster.folder().join("cloud.conf");
    let file = config.display().to_string();
    let listen = format!("{ADDRESS}:5000");
    let nodes = ["node-1=10.250.0.11", "node-2=10.250.0.12"];
    let mut arguments = options.to_vec();
    arguments.extend([&*listen, &*file, nodes[0], nodes[1]]);
    cluster.spawn("cloud", program, &arguments)?;
    wait_for(SOON, "cloud", || Ok(config.exists().then_some(())))?;
    let from = format!("--from-file=cloud.conf={file}");
    let create = ["create", "secret", "generic", "cloud-config", "--namespace", NAMESPACE, &from];
    cluster.kubectl(&create).map(drop)
}

/// Names of the pods that answer a number of requests, all of which have to be answered.
fn who_answers(cluster: &Cluster, address: &str) -> anyhow::Result<BTreeSet<String>> {
    (0..REQUESTS)
        .map(|_| ask(&mut cluster.hub("curl"), address))
        .collect()
}

/// Waits until a Service is answered by exactly these pods.
fn wait_for_answers(
    cluster: &Cluster,
    service: &str,
    pods: &BTreeSet<String>,
) -> anyhow::Result<()> {
    let address = wait_for_address(cluster, service)?;
    wait_for(SOON, &format!("answers of {pods:?} from {address}"), || {
        let answering = who_answers(cluster, &address)?;
        anyhow::ensure!(answering == *pods, "{answering:?} answer");
        Ok(Some(()))
    })
}

/// Pods of the web servers that are not about to end.
fn pods(cluster: &Cluster) -> anyhow::Result<Vec<Value>> {
    let pods = cluster.get(&["pods", "--selector", "app=web"])?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    Ok(pods
        .into_iter()
        .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        .collect())
}

fn names(pods: &[Value]) -> BTreeSet<String> {
    let names = pods
        .iter()
        .filter_map(|pod| pod["metadata"]["name"].as_str());
    names.map(str::to_owned).collect()
}

/// The control plane's machine has no kube-proxy: what it asks goes through the load balancer.
fn both_pods_answer(cluster: &Cluster) -> anyhow::Result<()> {
    let pods = pods(cluster)?;
    let nodes: BTreeSet<_> = pods
        .iter()
        .map(|pod| pod["spec"]["nodeName"].to_string())
        .collect();
    anyhow::ensure!(nodes.len() == 2, "the scheduler put both pods on {nodes:?}");
    wait_for_answers(cluster, "web", &names(&pods))
}

/// Moves the pod of `node-2` to `node-1`.
fn a_pod_moves(cluster: &Cluster) -> anyhow::Result<()> {
    let before = pods(cluster)?;
    let moved = before
        .iter()
        .find(|pod| pod["spec"]["nodeName"] == "node-2")
        .context("no pod")?;
    let name = moved["metadata"]["name"].as_str().context("no name")?;
    cluster.kubectl(&["cordon", "node-2"])?;
    cluster.kubectl(&["delete", "pod", name])?;
    wait_for_deployment(cluster, "web")?;
    let after = pods(cluster)?;
    let is_moved = after.iter().all(|pod| pod["spec"]["nodeName"] == "node-1");
    anyhow::ensure!(is_moved, "pods are not on node-1: {:?}", names(&after));
    wait_for_answers(cluster, "web", &names(&after))
}

/// All pods are on `node-1` when this begins, and on `node-2` when it ends.
fn local_traffic_stays_on_its_node(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.apply(&release::service("local", "web", "Local"))?;
    wait_for_answers(cluster, "local", &names(&pods(cluster)?))?;
    cluster.kubectl(&["uncordon", "node-2"])?;
    cluster.kubectl(&["cordon", "node-1"])?;
    cluster.kubectl(&["delete", "pods", "--selector", "app=web"])?;
    wait_for_deployment(cluster, "web")?;
    wait_for_answers(cluster, "local", &names(&pods(cluster)?))?;
    cluster.kubectl(&["uncordon", "node-1"]).map(drop)
}

/// Its load balancer serves nobody any more; the other Service's does.
fn a_deleted_service_ends(cluster: &Cluster) -> anyhow::Result<()> {
    let address = wait_for_address(cluster, "local")?;
    cluster.kubectl(&["delete", "service", "local", "--timeout", "60s"])?;
    let answer = ask(&mut cluster.hub("curl"), &address);
    anyhow::ensure!(answer.is_err(), "{address} still answers: {answer:?}");
    wait_for_answers(cluster, "web", &names(&pods(cluster)?))
}
