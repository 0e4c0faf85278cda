//! What a cached node costs, on the embedded API server: a real one would need gigabytes for so
//! many.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use ccm_testkit::apiserver::{ApiServer, Options};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::ListParams};
use tokio::time::{sleep, timeout};

use super::mebibytes;
use crate::{
    cloud::Cloud,
    cluster,
    manager::{Election, Manager},
    metrics::Measurements,
    scenario::{Scenario, Size},
    subject::BenchmarkedManager,
};

/// Until a manager is done with what a start, or the last new node, brings.
const SETTLE: Duration = Duration::from_secs(30);
/// A start that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(1800);
/// For how many nodes the figures are projected.
const PROJECTED: f64 = 100_000.0;

/// Measures one manager: with all nodes, and with none.
pub(crate) async fn run(
    scenario: &Scenario,
    contender: &BenchmarkedManager,
) -> anyhow::Result<Measurements> {
    let nodes = scenario.size.nodes as f64;
    let none = Scenario { size: Size { nodes: 0, services: 0 }, ..scenario.clone() };
    let (empty, _) = resident(&none, contender).await?;
    let (full, peak) = resident(scenario, contender).await?;
    let each = (full.saturating_sub(empty)) as f64 / nodes;
    let mut figures = Measurements::default();
    figures.amount("RSS without nodes, MiB", mebibytes(empty));
    figures.amount("RSS with all nodes, MiB", mebibytes(full));
    figures.amount("peak RSS with all nodes, MiB", mebibytes(peak));
    figures.amount("RSS per node, bytes", each);
    figures.amount(
        "RSS for 100,000 nodes, projected, MiB",
        (empty as f64 + each * PROJECTED) / f64::from(1 << 20),
    );
    Ok(figures)
}

/// What a manager has resident that was started when all nodes were initialised: now and at most.
async fn resident(
    scenario: &Scenario,
    contender: &BenchmarkedManager,
) -> anyhow::Result<(u64, u64)> {
    let server = ApiServer::new(Options::default());
    let serving = server.serve(([127, 0, 0, 1], 0).into()).await?;
    let folder = tempfile::tempdir()?;
    let kubeconfig = folder.path().join("kubeconfig");
    serving.write_kubeconfig(&kubeconfig)?;
    let kubelets = cluster::kubelets(server.client());
    kubelets
        .register_all((0..scenario.size.nodes).map(cluster::node))
        .await?;
    let cloud = Cloud::start(contender, scenario.setting, folder.path(), "a").await?;
    let log = |name: &str| -> PathBuf { folder.path().join(name) };
    let start = async |log: PathBuf, kubeconfig: &Path| {
        Manager::start(contender, scenario, &cloud, kubeconfig, Election::Off, log).await
    };

    let mut first = start(log("first.log"), &kubeconfig).await?;
    let done = first.during(initialised(server.client(), scenario.size.nodes));
    timeout(LIMIT, done)
        .await
        .context("not all nodes were initialised")??;
    first.terminate().await?;
    first.wait().await?;

    let mut second = start(log("second.log"), &kubeconfig).await?;
    second.stays(SETTLE).await?;
    let usage = second.usage()?;
    second.kill().await?;
    cloud.stop().await?;
    kubelets.stop().await;
    serving.stop().await;
    Ok((usage.rss, usage.peak_rss))
}

/// Waits until all nodes are initialised, and a while longer for what follows. The embedded server
/// has no narrow watch, but its load counts for nobody. With many nodes there is no moment without
/// a heartbeat, so that quiet is not waited for.
async fn initialised(client: Client, nodes: usize) -> anyhow::Result<()> {
    let api = Api::<Node>::all(client);
    // The write that takes the taint off sets the label.
    let zoned = ListParams::default().labels("topology.kubernetes.io/zone");
    while api.list_metadata(&zoned).await?.items.len() < nodes {
        sleep(Duration::from_secs(5)).await;
    }
    sleep(SETTLE).await;
    Ok(())
}
