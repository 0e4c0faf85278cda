//! One run.

use std::{
    collections::{BTreeMap, HashSet},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
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

use crate::contender::{Cloud, Contender};

/// The flags that every contender gets, beside the files and addresses of the run.
pub(crate) const COMMON_FLAGS: [&str; 6] = [
    "--cloud-provider=mock",
    "--leader-elect=false",
    "--controllers=cloud-node-controller",
    "--kube-api-qps=5000",
    "--kube-api-burst=10000",
    "-v=0",
];

/// A run that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(600);

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) nodes: usize,
    /// Latency of one call of the cloud, in milliseconds.
    pub(crate) latency_ms: u64,
}

/// Figures of one run.
#[derive(Debug, Clone, Default)]
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

/// Runs a manager against fresh nodes on a fresh control plane.
pub(crate) async fn measure(setting: &Setting, contender: &Contender) -> anyhow::Result<Sample> {
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
    let mut manager = start_manager(setting, contender, &plane, folder.path(), endpoint)?;
    let pid = manager.id().context("the manager ended at once")?;
    tokio::select! {
        done = tokio::time::timeout(LIMIT, all_initialised(client, setting.nodes)) => done.context("run took too long")??,
        ended = manager.wait() => bail!("{} ended: {}: {}", contender.name, ended?, last_line(folder.path())),
    }
    let seconds = start.elapsed().as_secs_f64();
    // Events are still being written; they belong to what was asked for, from the manager and from the servers.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let after = server_usage(&plane)?;
    let own = usage(pid).context("no usage of the manager")?;
    manager.kill().await?;
    stop.cancel();
    kubelets.stop().await;
    let (cloud_calls, cloud_nodes) = match contender.cloud {
        Cloud::Served => (cloud.calls().describe_instances, cloud.calls().describe_instances_nodes),
        Cloud::Own => counted_calls(folder.path())?,
    };
    let sample = Sample {
        seconds,
        cpu: own.cpu.as_secs_f64(),
        peak_rss_mib: own.peak_rss as f64 / f64::from(1 << 20),
        apiserver_cpu: after.0.cpu.as_secs_f64() - before.0.cpu.as_secs_f64(),
        etcd_cpu: after.1.cpu.as_secs_f64() - before.1.cpu.as_secs_f64(),
        requests: requests(&plane, contender)?,
        cloud_calls,
        cloud_nodes,
    };
    plane.stop().await?;
    Ok(sample)
}

fn start_manager(
    setting: &Setting,
    contender: &Contender,
    plane: &ControlPlane,
    folder: &Path,
    cloud: SocketAddr,
) -> anyhow::Result<tokio::process::Child> {
    let cloud_file = folder.join("cloud.yaml");
    std::fs::write(&cloud_file, format!("endpoint: {cloud}\n"))?;
    let kubeconfig = folder.join("kubeconfig");
    plane.write_kubeconfig(&kubeconfig, &plane.admin().token)?;
    let log = std::fs::File::create(folder.join(LOG))?;
    let mut command = Command::new(&contender.binary);
    command
        .args(COMMON_FLAGS)
        .arg(format!("--cloud-config={}", cloud_file.display()))
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        // Both serve, as they would in a cluster, but where nothing else on the machine does.
        .args(["--bind-address=127.0.0.1".to_owned(), format!("--secure-port={}", free_port()?)])
        .args(&contender.flags);
    if contender.cloud == Cloud::Own {
        command.env("BENCH_LATENCY_MS", setting.latency_ms.to_string()).env("BENCH_CALLS_FILE", folder.join(CALLS));
    }
    command
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {}", contender.binary.display()))
}

/// The manager's standard error, in the folder of the run.
const LOG: &str = "manager.log";
/// Where a manager with a cloud of its own counts its calls, in the folder of the run.
const CALLS: &str = "calls";

/// What the manager said last, which is why it ended.
fn last_line(folder: &Path) -> String {
    let log = std::fs::read(folder.join(LOG)).unwrap_or_default();
    String::from_utf8_lossy(&log).lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned()
}

/// Calls of a cloud inside the manager, and the nodes asked about: one byte per call, and one node per call.
fn counted_calls(folder: &Path) -> anyhow::Result<(u64, u64)> {
    let calls = std::fs::metadata(folder.join(CALLS)).context("the manager counted no calls")?.len();
    Ok((calls, calls))
}

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
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

/// Waits until so many nodes have a zone label, which the write that removes the taint sets. For ours that is a node's
/// last write; the baseline's addresses follow in another one, which is left out of its time.
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
fn requests(plane: &ControlPlane, contender: &Contender) -> anyhow::Result<BTreeMap<String, usize>> {
    let mut sums = BTreeMap::new();
    for (key, count) in plane.audit_log()?.of_agent(&contender.agent).counts() {
        *sums.entry(format!("{} {}", key.verb, key.resource)).or_default() += count;
    }
    // A manager that initialised nodes did send requests: an agent of another name must not look like thrift.
    ensure!(!sums.is_empty(), "the audit log has no requests of `{}`", contender.agent);
    Ok(sums)
}
