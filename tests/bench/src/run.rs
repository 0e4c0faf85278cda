//! One run.

use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail};
use ccm_mock::{CloudConfig, HostPort, MockCloud, bind_admin, serve_admin};
use ccm_testkit::{
    control_plane::{Component, ControlPlane, Options, Usage, usage},
    kubelet::{KubeletOptions, Kubelets, NodeShape, NodeSpec},
};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{WatchEvent, WatchParams},
};
use tokio::{process::Command, time::Instant};
use tokio_util::sync::CancellationToken;

/// A run that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(600);

/// What is measured.
pub(crate) struct Setting {
    pub(crate) manager: PathBuf,
    pub(crate) nodes: usize,
    pub(crate) latency_ms: u64,
    pub(crate) flags: Vec<String>,
}

/// Figures of one run.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// From the start of the process to the last node initialised.
    pub(crate) seconds: f64,
    pub(crate) cpu: f64,
    pub(crate) peak_rss_mib: f64,
    pub(crate) apiserver_cpu: f64,
    pub(crate) etcd_cpu: f64,
    /// Requests of the manager by verb and resource.
    pub(crate) requests: BTreeMap<String, usize>,
    pub(crate) cloud_calls: u64,
    pub(crate) cloud_nodes: u64,
}

/// Runs the manager against fresh nodes on a fresh control plane.
pub(crate) async fn measure(setting: &Setting) -> anyhow::Result<Sample> {
    let binaries = ControlPlane::available().map_err(|missing| anyhow::anyhow!("{missing}"))?;
    let plane = ControlPlane::start(&binaries, Options::default().audit()).await?;
    let client = plane.client().await?;
    // Reports of the kubelets would be part of the server's load: none during a run.
    let options = KubeletOptions {
        shape: NodeShape::Full,
        report_period: Duration::from_secs(3600),
        lease_period: None,
        ..KubeletOptions::default()
    };
    let kubelets = Kubelets::new(client.clone(), options);
    kubelets.register_all((0..setting.nodes).map(|i| NodeSpec::new(format!("node-{i:05}")))).await?;

    let cloud = MockCloud::new(&cloud_config(setting.latency_ms)?)?;
    let listener = bind_admin(&HostPort { host: "127.0.0.1".to_owned(), port: 0 }).await?;
    let endpoint = listener.local_addr()?;
    let stop = CancellationToken::new();
    let mut server = tokio::task::JoinSet::new();
    server.spawn(serve_admin(cloud.clone(), listener, stop.clone()));
    let folder = tempfile::tempdir()?;

    let before = server_usage(&plane)?;
    let start = Instant::now();
    let mut manager = start_manager(setting, &plane, folder.path(), endpoint)?;
    let pid = manager.id().context("the manager ended at once")?;
    tokio::select! {
        done = tokio::time::timeout(LIMIT, all_initialised(client, setting.nodes)) => done.context("run took too long")??,
        ended = manager.wait() => bail!("the manager ended: {}", ended?),
    }
    let seconds = start.elapsed().as_secs_f64();
    let after = server_usage(&plane)?;
    // Events are still being written; they belong to what was asked for.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let own = usage(pid).context("no usage of the manager")?;
    manager.kill().await?;
    stop.cancel();
    kubelets.stop().await;
    let sample = Sample {
        seconds,
        cpu: own.cpu.as_secs_f64(),
        peak_rss_mib: own.peak_rss as f64 / f64::from(1 << 20),
        apiserver_cpu: (after.0.cpu - before.0.cpu).as_secs_f64(),
        etcd_cpu: (after.1.cpu - before.1.cpu).as_secs_f64(),
        requests: requests(&plane)?,
        cloud_calls: cloud.calls().describe_instances,
        cloud_nodes: cloud.calls().describe_instances_nodes,
    };
    plane.stop().await?;
    Ok(sample)
}

fn start_manager(
    setting: &Setting,
    plane: &ControlPlane,
    folder: &Path,
    cloud: SocketAddr,
) -> anyhow::Result<tokio::process::Child> {
    let cloud_file = folder.join("cloud.yaml");
    std::fs::write(&cloud_file, format!("endpoint: {cloud}\n"))?;
    let kubeconfig = folder.join("kubeconfig");
    plane.write_kubeconfig(&kubeconfig, &plane.admin().token)?;
    Command::new(&setting.manager)
        .args(["--cloud-provider=mock", "--leader-elect=false", "--controllers=cloud-node-controller"])
        .args(["--kube-api-qps=5000", "--kube-api-burst=10000", "-v=0"])
        .arg(format!("--cloud-config={}", cloud_file.display()))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .args(&setting.flags)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {}", setting.manager.display()))
}

fn cloud_config(latency_ms: u64) -> anyhow::Result<CloudConfig> {
    let text = format!(
        "region: region-a\nzones: [zone-a, zone-b, zone-c]\nautoProvision: true\nlatency: {{instances: {latency_ms}ms}}\n"
    );
    Ok(CloudConfig::parse("benchmark", &text)?)
}

fn server_usage(plane: &ControlPlane) -> anyhow::Result<(Usage, Usage)> {
    let of = |component| plane.usage(component).context("no usage of the control plane on this system");
    Ok((of(Component::Apiserver)?, of(Component::Etcd)?))
}

/// Waits until so many nodes have a zone label, which the patch that removes the taint sets.
async fn all_initialised(client: Client, nodes: usize) -> anyhow::Result<()> {
    let api = Api::<Node>::all(client);
    let mut seen = HashSet::new();
    loop {
        let params = WatchParams::default().labels("topology.kubernetes.io/zone").timeout(290);
        let mut events = std::pin::pin!(api.watch_metadata(&params, "0").await?);
        while let Some(event) = events.try_next().await? {
            if let WatchEvent::Added(node) | WatchEvent::Modified(node) = event {
                seen.extend(node.metadata.name);
                if seen.len() >= nodes {
                    return Ok(());
                }
            }
        }
    }
}

/// Requests of the manager, watches and lists included.
fn requests(plane: &ControlPlane) -> anyhow::Result<BTreeMap<String, usize>> {
    let mut sums = BTreeMap::new();
    for (key, count) in plane.audit_log()?.counts() {
        if key.user_agent.starts_with("ccm-mock/") {
            *sums.entry(format!("{} {}", key.verb, key.resource)).or_default() += count;
        }
    }
    Ok(sums)
}
