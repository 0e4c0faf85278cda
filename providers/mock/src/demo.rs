//! `ccm-mock demo`: everything in one process, with no cluster and no cloud.
//!
//! An embedded API server, simulated kubelets and a mock cloud; the controllers are the real ones and reach the API
//! server through a kubeconfig over TLS, as in a cluster.

use std::{ffi::OsString, io::Write, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use ccm_core::{
    config::{self, Invocation},
    runtime::manager::{Exit, Manager},
};
use ccm_testkit::{
    apiserver::{ApiServer, Options},
    kubelet::{KubeletOptions, Kubelets, NodeSpec, Ready},
};
use clap::Args;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{WatchEvent, WatchParams},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{CloudConfig, MockCloud, MockProvider, manager};

/// Most nodes that are shown one by one.
const SHOWN: usize = 10;
/// How long the whole show may take before it has failed.
const LIMIT: Duration = Duration::from_secs(120);
/// Label that initialisation sets last, together with taking the taint away.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Arguments of `ccm-mock demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Nodes that join.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=5000))]
    pub nodes: u16,
    /// End when everything has happened, instead of at Ctrl-C: code 0 if it did, another one with the reason if not.
    #[arg(long)]
    pub once: bool,
}

/// Runs the demo.
///
/// # Errors
/// What did not happen, or could not be started.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    // Caught before anything is started, so that Ctrl-C always cleans up.
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let folder = tempfile::Builder::new().prefix("ccm-mock-demo-").tempdir().context("cannot create a folder")?;
    // Nothing here would take off the taint that a real server puts on new nodes until they are Ready.
    let server = ApiServer::new(Options { taint_new_nodes: false, ..Options::default() });
    let serving = server.serve(([127, 0, 0, 1], 0).into()).await?;
    let kubeconfig = folder.path().join("kubeconfig");
    serving.write_kubeconfig(&kubeconfig).context("cannot write the kubeconfig")?;
    say(&format!("embedded API server  {}", serving.url()));
    say(&format!("kubeconfig           {}", kubeconfig.display()));
    say(&format!("try                  kubectl --kubeconfig {} get nodes -o wide", kubeconfig.display()));
    say("");

    let cloud = MockCloud::new(&CloudConfig::parse("demo", CLOUD)?)?;
    let stop = CancellationToken::new();
    let controllers = controllers(&kubeconfig, cloud.clone(), stop.clone());
    let show = async {
        let kubelets = Kubelets::new(server.client(), KubeletOptions::default());
        let result = tokio::time::timeout(LIMIT, show(&server, &kubelets, &cloud, usize::from(args.nodes))).await;
        result.unwrap_or_else(|_| bail!("not converged after {} s", LIMIT.as_secs()))?;
        if !args.once {
            say("\nThe controllers go on until Ctrl-C. An idea: kubectl get events, or kubectl describe node node-0.");
            std::future::pending::<()>().await;
        }
        kubelets.stop().await;
        anyhow::Ok(())
    };
    let mut controllers = Box::pin(controllers);
    let result = tokio::select! {
        result = Box::pin(show) => result,
        ended = &mut controllers => match ended {
            Ok(()) => Err(anyhow::anyhow!("the controllers ended")),
            Err(error) => Err(error.context("the controllers failed")),
        },
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
    };
    if !stop.is_cancelled() && result.is_ok() {
        stop.cancel();
        controllers.await?;
    }
    serving.stop().await;
    result
}

const CLOUD: &str = "region: demo-1\nzones: [demo-1a, demo-1b, demo-1c]\ninstanceType: m.large\nautoProvision: true\n\
                     latency: {instances: 200ms}\n";

/// Runs the manager as `main` would, but in this process and against this cloud.
async fn controllers(kubeconfig: &Path, cloud: MockCloud, stop: CancellationToken) -> anyhow::Result<()> {
    let mut kubeconfig_flag = OsString::from("--kubeconfig=");
    kubeconfig_flag.push(kubeconfig);
    // Shorter periods than in a cluster, so that nobody has to wait; no election, since there is nobody else.
    let flags = [
        "--cloud-provider=mock",
        "--leader-elect=false",
        "--node-monitor-period=1s",
        "--controllers=cloud-node,cloud-node-lifecycle",
    ];
    let rates = ["--kube-api-qps=1000", "--kube-api-burst=2000"];
    let args = flags.into_iter().chain(rates).map(OsString::from).chain([kubeconfig_flag]);
    let Invocation::Run(config) = config::parse(&manager::product(), args)? else { bail!("flags of the demo") };
    let provider = Arc::new(MockProvider::over(cloud));
    match Manager::from_config(manager::product(), *config, provider).await?.run(stop).await? {
        Exit::Stopped => Ok(()),
        Exit::LeadershipLost(why) => bail!("leadership lost: {why}"),
    }
}

/// Lets nodes join, and one instance vanish, and waits for what the controllers make of it.
async fn show(server: &ApiServer, kubelets: &Kubelets, cloud: &MockCloud, nodes: usize) -> anyhow::Result<()> {
    let api = Api::<Node>::all(server.client());
    let start = Instant::now();
    say(&format!("{nodes} nodes join, tainted as uninitialized"));
    kubelets.register_all((0..nodes).map(|i| NodeSpec::new(format!("node-{i}")))).await?;
    let mut shown = 0;
    wait(&api, nodes, |node| {
        shown += 1;
        if shown <= SHOWN {
            say(&format!("  {}", describe(node)));
        } else if shown == SHOWN + 1 {
            say("  …");
        }
    })
    .await?;
    say(&format!("all {nodes} nodes initialised after {:.1} s\n", start.elapsed().as_secs_f64()));

    let victim = format!("node-{}", nodes - 1);
    say(&format!("the instance of {victim} is deleted in the cloud, and its kubelet falls silent"));
    let before = Instant::now();
    cloud.delete_instance(&victim);
    kubelets.set_ready(&victim, Ready::Unknown).await?;
    if nodes == 1 {
        say(
            "  it is the only node: without a Ready node to compare with, the proof takes five minutes; not waited for",
        );
        return Ok(());
    }
    until_gone(&api, &victim).await?;
    say(&format!(
        "  Node {victim} deleted after {:.1} s: asked twice, with living nodes as controls",
        before.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Calls `seen` for each of so many nodes when it is initialised.
async fn wait(api: &Api<Node>, nodes: usize, mut seen: impl FnMut(&Node)) -> anyhow::Result<()> {
    let mut names = std::collections::HashSet::new();
    let mut events = api.watch(&WatchParams::default().labels(ZONE), "0").await?.boxed();
    while let Some(event) = events.try_next().await? {
        if let WatchEvent::Added(node) | WatchEvent::Modified(node) = event
            && names.insert(node.name_any())
        {
            seen(&node);
            if names.len() == nodes {
                return Ok(());
            }
        }
    }
    bail!("the watch ended with {} of {nodes} nodes initialised", names.len())
}

async fn until_gone(api: &Api<Node>, name: &str) -> anyhow::Result<()> {
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = api.watch(&params, "0").await?.boxed();
    while let Some(event) = events.try_next().await? {
        if let WatchEvent::Deleted(_) = event {
            return Ok(());
        }
    }
    bail!("the watch ended and Node {name} is still there")
}

fn describe(node: &Node) -> String {
    let label = |key: &str| node.labels().get(key).map_or("-", String::as_str);
    let addresses: Vec<String> = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten())
        .map(|address| format!("{}={}", address.type_, address.address))
        .collect();
    let (zone, kind) = (label(ZONE), label("node.kubernetes.io/instance-type"));
    format!("{}  initialised  zone={zone}  type={kind}  {}", node.name_any(), addresses.join("  "))
}

/// Writes a line for the person watching; a closed pipe is no reason to fail.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
