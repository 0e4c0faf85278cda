//! `ccm-openstack demo`: everything in one process and on loopback, with no cluster and no cloud.
//!
//! There is an embedded API server and a local cloud, whose servers are simulated nodes that answer
//! at their node ports and whose load balancers carry traffic. The controllers are the real ones:
//! they reach the API server through a kubeconfig over TLS and the cloud through a cloud.conf over
//! HTTP, as in a cluster.

mod addresses;
mod environment;
mod http_client;
mod nodes;
mod operator;
mod services;

use std::{
    ffi::OsString,
    io::Write,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use ccm_core::{
    config::{self, Config, Invocation},
    manager::{Manager, ManagerExit},
};
use ccm_testkit::{
    apiserver::{ApiServer, Options},
    demo_server::{DemoAddress, DemoServer},
};
use clap::Args;
use ipnet::Ipv4Net;
use openstack_local::{
    server::{LocalCloud, Settings, TimeSource},
    servers::Kubernetes,
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use self::{addresses::DemoAddresses, environment::DemoEnvironment, operator::Operator};
use crate::{config::Environment, manager};

/// Maximum number of nodes: all of them listen in this process.
const MAX_NODES: i64 = 50;
/// How long a load balancer is in a PENDING state after each change.
const PENDING: Duration = Duration::from_millis(500);
/// User of the local cloud, with no special permissions.
const USER: &str = "demo";

/// Arguments of `ccm-openstack demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Servers, each a node.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=MAX_NODES))]
    pub nodes: u16,
    /// End when everything has happened, instead of at Ctrl-C: code 0 if it did, another one with
    /// the reason if not.
    #[arg(long)]
    pub once: bool,
    /// Network of servers and load balancers, inside 127.0.0.0/8 and at least a /24.
    #[arg(long, value_name = "CIDR", default_value = "127.77.0.0/24", value_parser = addresses::network)]
    pub network: Ipv4Net,
    /// Port of the Service.
    #[arg(long, default_value_t = 8080, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Address and port of the local cloud, on loopback. Port 0: a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = addresses::loopback)]
    pub listen: SocketAddr,
}

/// Runs the demo.
///
/// # Errors
/// Something could not be started, or did not happen in time.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    // Signals are caught before anything is started, so that Ctrl-C always cleans up.
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let place = DemoAddresses::new(args.network, args.nodes, args.port);
    place.check().await?;
    let folder = tempfile::Builder::new()
        .prefix("ccm-openstack-demo-")
        .tempdir()
        .context("cannot create a folder")?;
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener
        .with_context(|| format!("cannot listen on {}: --listen chooses another", args.listen))?;
    let address = listener.local_addr()?;
    // Nothing here would remove the taint that a real API server puts on new nodes until they are
    // Ready.
    let server = ApiServer::new(Options { taint_new_nodes: false, ..Options::default() });
    let serving = server.serve((Ipv4Addr::LOCALHOST, 0).into()).await?;
    let files = Files::new(folder.path());
    serving
        .write_kubeconfig(&files.kubeconfig)
        .context("cannot write the kubeconfig")?;
    let settings = Settings {
        time: TimeSource::System,
        pending: PENDING,
        ..Settings::default()
    };
    let cluster = Kubernetes::new(server.client_builder().user_agent("kubelet").build());
    let cloud = LocalCloud::in_memory(settings).with_cluster(Arc::new(cluster));
    let exports = cloud
        .credentials()
        .exports(USER, &address.to_string())
        .context("the user of the local cloud")?;
    Files::write(&files.openrc, &exports)?;
    let page = DemoAddress::choose().context("no port is free")?;
    print_introduction(&files, &serving.url(), address, page);

    let quit = CancellationToken::new();
    let cloud_stop = CancellationToken::new();
    let demo = Demo {
        once: args.once,
        place,
        server,
        cloud: cloud.clone(),
        address,
        page,
        files,
    };
    let mut local = Box::pin(cloud.serve(listener, cloud_stop.clone()));
    let mut work = Box::pin(demo.work(quit.clone()));
    let result = loop {
        tokio::select! {
            result = &mut work => break result,
            ended = &mut local => break Err(cloud_stopped(ended)),
            _ = term.recv() => quit.cancel(),
            _ = int.recv() => quit.cancel(),
        }
    };
    // The cloud runs until its users have ended.
    cloud_stop.cancel();
    if result.is_ok() {
        local.await?;
    }
    serving.stop().await;
    result
}

/// What was started.
struct Demo {
    once: bool,
    place: DemoAddresses,
    server: ApiServer,
    cloud: LocalCloud,
    /// Where the cloud listens.
    address: SocketAddr,
    /// Where the manager serves its explanations.
    page: DemoAddress,
    files: Files,
}

impl Demo {
    /// Prepares the cloud, starts the controllers and runs all steps; then waits for `quit`, unless
    /// the demo runs only once. Stops everything in order.
    async fn work(&self, quit: CancellationToken) -> anyhow::Result<()> {
        let prepare = async {
            let operator = Operator::authenticate(&self.cloud, USER, self.address).await?;
            let ground = operator.prepare(&self.place).await?;
            Files::write(&self.files.cloud_conf, &cloud_conf(&self.cloud, self.address, &ground)?)?;
            print(&format!("cloud.conf           {}\n", self.files.cloud_conf.display()));
            anyhow::Ok((operator, ground))
        };
        let Some(prepared) = quit.run_until_cancelled(prepare).await else {
            return Ok(());
        };
        let (operator, ground) = prepared.context("the local cloud could not be prepared")?;
        let stop = CancellationToken::new();
        let mut controllers = Box::pin(run_controllers(&self.files, self.page, stop.clone()));
        let client = self.server.client_builder().user_agent("demo").build();
        let Self { place, server, cloud, .. } = self;
        let stage = DemoEnvironment {
            client,
            server,
            cloud,
            operator,
            resources: ground,
            addresses: place,
        };
        let show = async {
            run_scenes(&stage).await?;
            if !self.once {
                services::recreate(&stage, &self.files).await?;
                std::future::pending::<()>().await;
            }
            anyhow::Ok(())
        };
        tokio::select! {
            result = Box::pin(show) => result?,
            ended = &mut controllers => return match ended {
                Ok(()) => Err(anyhow::anyhow!("the controllers ended")),
                Err(error) => Err(error.context("the controllers failed")),
            },
            () = quit.cancelled() => {}
        }
        stop.cancel();
        controllers.await
    }
}

fn cloud_stopped(ended: std::io::Result<()>) -> anyhow::Error {
    match ended {
        Ok(()) => anyhow::anyhow!("the local cloud ended"),
        Err(error) => anyhow::Error::from(error).context("the local cloud failed"),
    }
}

/// Files for the user.
struct Files {
    kubeconfig: PathBuf,
    openrc: PathBuf,
    cloud_conf: PathBuf,
}

impl Files {
    fn new(folder: &Path) -> Self {
        let file = |name| folder.join(name);
        Self {
            kubeconfig: file("kubeconfig"),
            openrc: file("openrc"),
            cloud_conf: file("cloud.conf"),
        }
    }

    /// Writes a file that only its owner may read.
    fn write(file: &Path, content: &str) -> anyhow::Result<()> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let open = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file);
        let written = open.and_then(|mut open| open.write_all(content.as_bytes()));
        written.with_context(|| format!("cannot write {}", file.display()))
    }
}

fn print_introduction(files: &Files, server: &str, cloud: SocketAddr, page: DemoAddress) {
    print(&format!("embedded API server  {server}"));
    print(&format!("kubeconfig           {}", files.kubeconfig.display()));
    print(&format!("local cloud          http://{cloud}/identity/v3"));
    print(&format!("credentials          {}", files.openrc.display()));
    print(&format!("explanations         {}  (the certificate is self-signed)", page.page()));
    print(
        "in another terminal  (kubectl, and pip install python-openstackclient python-octaviaclient)",
    );
    print(&format!(
        "  kubectl --kubeconfig {} get nodes,services -o wide",
        files.kubeconfig.display()
    ));
    print(&format!(
        "  . {}; openstack server list; openstack loadbalancer status show …",
        files.openrc.display()
    ));
}

/// Returns the cloud.conf for the controllers. Load balancers have addresses of the network itself,
/// which is loopback: a floating IP would be unreachable here.
fn cloud_conf(
    cloud: &LocalCloud,
    address: SocketAddr,
    ground: &operator::CloudResources,
) -> anyhow::Result<String> {
    let password = cloud
        .credentials()
        .password(USER)
        .context("the user of the local cloud")?
        .expose();
    let region = &cloud.credentials().region;
    let router = &ground.router;
    let subnet = &ground.subnet;
    Ok(format!(
        "[Global]\nauth-url = http://{address}/identity/v3\nregion = {region}\nusername = {USER}\n\
         password = \"{password}\"\ntenant-name = {USER}\ndomain-id = default\n\n\
         [Route]\nrouter-id = {router}\n\n\
         [LoadBalancer]\nsubnet-id = {subnet}\ninternal-lb = true\ncreate-monitor = true\nmonitor-delay = 1s\n\
         monitor-timeout = 1s\nmonitor-max-retries-down = 1\n"
    ))
}

/// Runs the manager as `main` would, but in this process.
async fn run_controllers(
    files: &Files,
    page: DemoAddress,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let flag = |name: &str, value: &Path| {
        let mut flag = OsString::from(format!("--{name}="));
        flag.push(value);
        flag
    };
    let paths = [flag("kubeconfig", &files.kubeconfig), flag("cloud-config", &files.cloud_conf)];
    // Periods are shorter than in a cluster, so that nobody has to wait. There is no leader
    // election, because there is no other manager.
    let flags = [
        "--cloud-provider=openstack",
        "--cluster-name=demo",
        "--leader-elect=false",
        "--node-monitor-period=1s",
        // Node-IPAM is off unless named: in most clusters kube-controller-manager assigns the pod
        // CIDRs.
        "--controllers=*,node-ipam-controller",
        "--allocate-node-cidrs=true",
        "--cluster-cidr=10.244.0.0/16",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
    ];
    let args = flags
        .into_iter()
        .map(OsString::from)
        .chain(page.flags().map(OsString::from))
        .chain(paths);
    let product = manager::product();
    let Invocation::Run(config) = config::parse(&product, args)? else {
        bail!("flags of the demo")
    };
    let server = DemoServer::bind(&product, &config).map_err(|error| anyhow::anyhow!(error))?;
    let building = manager::build(Config::clone(&config), Environment::default(), manager::connect);
    let provider = tokio::select! {
        provider = building => Arc::new(provider.map_err(|error| anyhow::anyhow!(error))?),
        () = stop.cancelled() => return Ok(()),
    };
    let manager = Manager::from_config(product, *config, provider)
        .await?
        .with_observability(server.observability());
    let exit = server.serve_during(Box::pin(manager.run(stop))).await;
    match exit.map_err(|error| anyhow::anyhow!(error))?? {
        ManagerExit::Stopped | ManagerExit::Compared(_) => Ok(()),
        ManagerExit::LeadershipLost(why) => bail!("leadership lost: {why}"),
    }
}

/// Runs all steps.
async fn run_scenes(stage: &DemoEnvironment<'_>) -> anyhow::Result<()> {
    nodes::join(stage).await?;
    nodes::routes(stage).await?;
    let web = services::create(stage).await?;
    if stage.addresses.nodes.len() == 1 {
        print("there is one node only: no other could take over, so that none is stopped\n");
    } else {
        services::stop_a_backend(stage, &web).await?;
        nodes::lose_a_server(stage, &web).await?;
    }
    services::delete(stage, &web).await
}

/// Writes a line for the user; a closed pipe is no reason to fail.
fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
