//! `ccm-mock demo`, which runs the controllers in one process, without a cluster or a cloud.
//!
//! The API server is embedded, the kubelets are simulated, and the cloud is the mock cloud. The
//! controllers are the real ones; they connect to the API server with a kubeconfig over TLS, as in
//! a cluster.

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
    demo_server::{DemoAddress, DemoServer},
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
    /// End when everything has happened, instead of at Ctrl-C: code 0 if it did, another one with
    /// the reason if not.
    #[arg(long)]
    pub once: bool,
}

/// Runs the demo.
///
/// # Errors
/// Returns an error if something could not be started, or did not happen in time.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    // Install the signal handlers before anything starts, so that Ctrl-C always cleans up.
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let folder = tempfile::Builder::new()
        .prefix("ccm-mock-demo-")
        .tempdir()
        .context("cannot create a folder")?;
    // First, start the API server. It must not add the not-ready taint to new nodes, because
    // nothing here would remove it.
    let server = ApiServer::new(Options { taint_new_nodes: false, ..Options::default() });
    let serving = server.serve(([127, 0, 0, 1], 0).into()).await?;
    let kubeconfig = folder.path().join("kubeconfig");
    serving
        .write_kubeconfig(&kubeconfig)
        .context("cannot write the kubeconfig")?;
    print(&format!("embedded API server  {}", serving.url()));
    print(&format!("kubeconfig           {}", kubeconfig.display()));
    print(&format!(
        "try                  kubectl --kubeconfig {} get nodes,services -o wide",
        kubeconfig.display()
    ));
    let address = DemoAddress::choose().context("no port is free")?;
    print(&format!("explanations         {}  (the certificate is self-signed)", address.page()));
    print("");

    // Then run the controllers and the scenes, until the scenes or the controllers end, or a signal
    // arrives.
    let cloud = MockCloud::new(&CloudConfig::parse("demo", CLOUD)?)?;
    let stop = CancellationToken::new();
    let controllers = controllers(&kubeconfig, cloud.clone(), address, stop.clone());
    let show = async {
        let kubelets = Kubelets::new(server.client(), KubeletOptions::default());
        let demo = DemoEnvironment {
            client: server.client(),
            kubelets: &kubelets,
            cloud: &cloud,
            nodes: usize::from(args.nodes),
        };
        run_scenes(&demo).await?;
        if !args.once {
            print(
                "\nThe controllers run until Ctrl-C. Try kubectl get services, or kubectl describe service web.",
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
    // Finally, stop the controllers and the API server.
    if !stop.is_cancelled() && result.is_ok() {
        stop.cancel();
        controllers.await?;
    }
    serving.stop().await;
    result
}

const CLOUD: &str = "region: demo-1\nzones: [demo-1a, demo-1b, demo-1c]\ninstanceType: m.large\nautoProvision: true\n\
                     latency: {instances: 200ms, routes: 20ms, loadBalancers: 100ms}\nloadBalancerActivation: 2s\n";

/// Runs the manager as `main` does, but in this process and with this cloud.
async fn controllers(
    kubeconfig: &Path,
    cloud: MockCloud,
    address: DemoAddress,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut kubeconfig_flag = OsString::from("--kubeconfig=");
    kubeconfig_flag.push(kubeconfig);
    // Shorter periods than in a cluster, so that the demo is fast. No leader election, because
    // there is only one process.
    let flags = [
        "--cloud-provider=mock",
        "--leader-elect=false",
        "--node-monitor-period=1s",
        // Node IPAM is off unless named: in most clusters, kube-controller-manager allocates the
        // pod CIDRs.
        "--controllers=*,node-ipam-controller",
        "--allocate-node-cidrs=true",
        // Large enough for the maximum number of nodes of the demo.
        "--cluster-cidr=100.64.0.0/10",
    ];
    let rates = ["--kube-api-qps=1000", "--kube-api-burst=2000"];
    let args = flags
        .into_iter()
        .chain(rates)
        .map(OsString::from)
        .chain(address.flags().map(OsString::from))
        .chain([kubeconfig_flag]);
    let product = manager::product();
    let Invocation::Run(config) = config::parse(&product, args)? else {
        bail!("flags of the demo")
    };
    let server = DemoServer::bind(&product, &config).map_err(|error| anyhow::anyhow!(error))?;
    let provider = Arc::new(MockProvider::new_in_process(cloud));
    let manager = Manager::from_config(product, *config, provider)
        .await?
        .with_observability(server.observability());
    let exit = server.serve_during(Box::pin(manager.run(stop))).await;
    match exit.map_err(|error| anyhow::anyhow!(error))?? {
        ManagerExit::Stopped | ManagerExit::Compared(_) => Ok(()),
        ManagerExit::LeadershipLost(reason) => bail!("leadership lost: {reason}"),
    }
}

/// Runs all scenes.
async fn run_scenes(demo: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    nodes::join(demo).await?;
    nodes::routes(demo).await?;
    services::create(demo).await?;
    if demo.nodes == 1 {
        print("with only one node, the scenes that remove a node are skipped");
        return Ok(());
    }
    services::exclude_a_node(demo).await?;
    nodes::lose_an_instance(demo).await
}

/// Prints a line. A closed pipe is not an error.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
