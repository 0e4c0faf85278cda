//! What an operator sees first.

use std::process::Command;

use anyhow::Context as _;
use ccm_realcluster::{Cluster, Programs, wait_for};

use crate::kubelet_commands;
use crate::release::{
    self, MOCK, SOON, curl, helm, is_ready, is_uninitialized, leader, wait_for_address,
    wait_for_deployment, wait_for_nodes,
};

/// What the guides ask about: a Service's condition, and routes.
const FOR_GUIDES: &str = "--set-string extraArgs.service-conditions=true \
     --set routes.enabled=true,nodeIPAM.enabled=true,cluster.cidr=10.244.0.0/16";

pub(crate) fn an_installed_chart_serves_a_cluster(programs: Programs) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    // A program with names and lines takes long to pack.
    let program = folder.path().join("ccm-mock");
    let mut strip = Command::new("strip");
    let status = strip.arg("-o").arg(&program).arg(release::mock()).status();
    anyhow::ensure!(
        status
            .context("run strip, of the package binutils")?
            .success(),
        "strip failed"
    );
    let image = programs.image("mock", &program, folder.path())?;
    let cluster = Cluster::start(programs, 2, &[image])?;
    crate::on(&cluster, serves)
}

fn serves(cluster: &Cluster) -> anyhow::Result<()> {
    release::start_mock_cloud(cluster)?;
    // First, nodes wait for the manager, and pods for the nodes.
    let nodes = cluster.get(&["nodes"])?;
    let waiting = nodes["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|node| is_uninitialized(node));
    anyhow::ensure!(waiting.count() == 2, "nodes that do not wait: {nodes:#}");
    cluster.apply(&release::web("web", 2, "Cluster"))?;

    // Next, the manager's pods start there nevertheless.
    let more = format!("--set {MOCK} --set cloudConfig.existingSecret.name= {FOR_GUIDES}");
    kubelet_commands::install(cluster, &more)?;
    wait_for(SOON, "leader", || leader(cluster))?;
    wait_for_nodes(cluster)?;
    wait_for_deployment(cluster, "web")?;
    let address = wait_for_address(cluster, "web")?;
    for node in [1, 2] {
        curl(cluster, node, &address)?;
    }

    // All is as it should be.
    let pods = release::pods(cluster)?;
    let well = pods
        .iter()
        .filter(|pod| is_ready(pod) && pod["status"]["containerStatuses"][0]["restartCount"] == 0);
    anyhow::ensure!(well.count() == 2, "pods that are not well: {pods:#?}");
    helm(cluster, "test", &["--logs"])?;

    // Last, commands of the guides.
    kubelet_commands::work(cluster).context("commands of the guides")
}
