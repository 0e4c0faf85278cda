//! `ccm-mock demo`: everything in one process, with no cluster and no cloud.
//!
//! An embedded API server, simulated kubelets and a mock cloud; the controllers are the real ones and reach the API
//! server through a kubeconfig over TLS, as in a cluster.

mod environment;
mod nodes;
mod services;

use std::{ffi::OsString, io::Write, path::Path, sync::Arc};

use anyhow::{Context, bail};
use ccm_core::{
    config::{self, Invocation},
    manager::{Manager, ManagerExit},
};
use ccm_testkit::{
    apiserver::{ApiServer, Options},
    kubelet::{KubeletOptions, Kubelets},
};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::environment::DemoEnvironment;

use crate::{CloudConfig, MockCloud, MockProvider, manager};

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
    print(&format!("embedded API server  {}", serving.url()));
    print(&format!("kubeconfig           {}", kubeconfig.display()));
    print(&format!("try                  kubectl --kubeconfig {} get nodes,services -o wide", kubeconfig.display()));
    print("");

    let cloud = MockCloud::new(&CloudConfig::parse("demo", CLOUD)?)?;
    let stop = CancellationToken::new();
    let controllers = controllers(&kubeconfig, cloud.clone(), stop.clone());
    let show = async {
        let kubelets = Kubelets::new(server.client(), KubeletOptions::default());
        let stage = DemoEnvironment {
            client: server.client(),
            kubelets: &kubelets,
            cloud: &cloud,
            nodes: usize::from(args.nodes),
        };
        run_scenes(&stage).await?;
        if !args.once {
            print(
                "\nThe controllers go on until Ctrl-C. An idea: kubectl get services, or kubectl describe service web.",
            );
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
                     latency: {instances: 200ms, routes: 20ms, loadBalancers: 100ms}\nloadBalancerActivation: 2s\n";

/// Runs the manager as `main` would, but in this process and against this cloud.
async fn controllers(kubeconfig: &Path, cloud: MockCloud, stop: CancellationToken) -> anyhow::Result<()> {
    let mut kubeconfig_flag = OsString::from("--kubeconfig=");
    kubeconfig_flag.push(kubeconfig);
    // Shorter periods than in a cluster, so that nobody has to wait; no election, since there is nobody else.
    let flags = [
        "--cloud-provider=mock",
        "--leader-elect=false",
        "--node-monitor-period=1s",
        // Node-IPAM is off unless named: in most clusters kube-controller-manager gives the pod CIDRs.
        "--controllers=*,node-ipam-controller",
        "--allocate-node-cidrs=true",
        // Room for the most nodes that the demo takes.
        "--cluster-cidr=100.64.0.0/10",
    ];
    let rates = ["--kube-api-qps=1000", "--kube-api-burst=2000"];
    let args = flags.into_iter().chain(rates).map(OsString::from).chain([kubeconfig_flag]);
    let Invocation::Run(config) = config::parse(&manager::product(), args)? else { bail!("flags of the demo") };
    let provider = Arc::new(MockProvider::new_in_process(cloud));
    match Manager::from_config(manager::product(), *config, provider).await?.run(stop).await? {
        ManagerExit::Stopped | ManagerExit::Compared(_) => Ok(()),
        ManagerExit::LeadershipLost(why) => bail!("leadership lost: {why}"),
    }
}

/// Plays all scenes.
async fn run_scenes(stage: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    nodes::join(stage).await?;
    nodes::routes(stage).await?;
    services::create(stage).await?;
    if stage.nodes == 1 {
        print("there is one node only: no other could take over, so that none is taken away");
        return Ok(());
    }
    services::exclude_a_node(stage).await?;
    nodes::lose_an_instance(stage).await
}

/// Writes a line for the person watching; a closed pipe is no reason to fail.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
