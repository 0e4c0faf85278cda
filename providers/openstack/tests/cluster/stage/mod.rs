//! A cluster on the local cloud for one test: nodes with kubelets and web servers, an API server, and the binary as a
//! process.

pub(crate) mod cloud;
pub(crate) mod web;
pub(crate) mod world;

use std::{
    cell::RefCell,
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use ccm_e2e::{
    ccm::{self, Ccm, Signal},
    manifests,
    server::{Kind, Server},
    stage as shared,
};
use ccm_testkit::{
    apiserver::{self, Access, Rule},
    control_plane::Binaries,
    kubelet::{KubeletOptions, Kubelets, NodeSpec},
};
use k8s_openapi::api::core::v1::{LoadBalancerIngress, Node, Service};
use kube::{
    ResourceExt as _,
    api::{Api, DeleteParams, Patch, PatchParams, PostParams},
};
use openstack_local::server::{Entry, Settings};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, time::Instant};

use self::{
    cloud::{Cloud, Instance, small},
    web::Web,
    world::World,
};

/// How long anything may take that needs a few round trips.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(50);
/// Name of the cluster.
pub(crate) const CLUSTER: &str = "test";
/// What an annotation of load balancers begins with.
pub(crate) const PREFIX: &str = "loadbalancer.openstack.org/";
/// User that the process runs as.
pub(crate) const USER: &str = "e2e-openstack";

/// Flags of every process: short periods, and no limit that a test would wait for. Nobody waits for a lease that the
/// process before could not give back.
const FLAGS: [&str; 8] = [
    "--cloud-provider=openstack",
    "--cluster-name=test",
    "--leader-elect=false",
    "--node-monitor-period=1s",
    "--node-status-update-frequency=10m",
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
    "--secure-port=0",
];

/// What all tests share: the API servers, which are started when the first test needs them.
pub(crate) struct House {
    binaries: Option<Binaries>,
    embedded: OnceCell<Arc<Server>>,
    real: OnceCell<Arc<Server>>,
}

impl House {
    pub(crate) fn new(binaries: Option<Binaries>) -> Self {
        Self { binaries, embedded: OnceCell::new(), real: OnceCell::new() }
    }

    async fn server(&self, kind: Kind) -> anyhow::Result<Arc<Server>> {
        if kind == Kind::Embedded {
            let options = || apiserver::Options { log_limit: 200_000, ..apiserver::Options::default() };
            return self.embedded.get_or_try_init(|| Server::embedded(options())).await.cloned();
        }
        let binaries = self.binaries.as_ref().context("the control plane is not built")?;
        let start = async || {
            let server = Server::real(kind, binaries, &[USER.to_owned()]).await?;
            shared::grant(&server.client(), USER, &rules()?).await?;
            anyhow::Ok(server)
        };
        self.real.get_or_try_init(start).await.cloned()
    }
}

/// What the folder `rbac` grants.
fn rules() -> anyhow::Result<Vec<Value>> {
    let roles = manifests::read(&manifests::rbac())?;
    Ok(roles.iter().filter_map(|role| role["rules"].as_array()).flatten().cloned().collect())
}

/// What a test writes into `cloud.conf` beside what every test needs: lines of sections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines {
    pub(crate) global: String,
    pub(crate) networking: String,
    pub(crate) balancer: String,
    /// Whole sections.
    pub(crate) more: String,
    /// In place of the password.
    pub(crate) password: Option<String>,
    /// In place of the subnet of load balancers; empty for none.
    pub(crate) subnet: Option<String>,
    /// In place of the router.
    pub(crate) router: Option<String>,
}

/// One test's cluster.
pub(crate) struct Stage {
    pub(crate) server: Arc<Server>,
    pub(crate) cloud: Cloud,
    pub(crate) kubelets: Kubelets,
    pub(crate) web: Web,
    /// Servers that were made, in order.
    pub(crate) servers: Vec<Instance>,
    pub(crate) config: Lines,
    directory: tempfile::TempDir,
    process: RefCell<Option<Ccm>>,
    started: usize,
}

/// Settings of a cloud where changes of load balancers take a moment.
pub(crate) fn quick() -> Settings {
    Settings { pending: Duration::from_millis(5), ..Settings::default() }
}

impl Stage {
    /// An empty cluster: a new cloud, and the API server without Nodes, Services and events.
    pub(crate) async fn new(house: &House, kind: Kind) -> anyhow::Result<Self> {
        Self::on(house, kind, Cloud::new(quick()).await?).await
    }

    async fn on(house: &House, kind: Kind, cloud: Cloud) -> anyhow::Result<Self> {
        let server = house.server(kind).await?;
        shared::clear(&server.client()).await.context("clear the API server")?;
        Ok(Self {
            kubelets: Kubelets::new(server.client(), KubeletOptions::default()),
            server,
            cloud,
            web: Web::default(),
            servers: Vec::new(),
            config: Lines::default(),
            directory: tempfile::Builder::new().prefix("ccm-openstack-").tempdir()?,
            process: RefCell::default(),
            started: 0,
        })
    }

    /// Ends what is left of it.
    pub(crate) async fn close(mut self) -> anyhow::Result<()> {
        self.process.take();
        self.cloud.stop().await
    }

    /// Puts a cloud in the place of this one that keeps its state in a folder.
    pub(crate) async fn on_disk(&mut self) -> anyhow::Result<()> {
        self.cloud.stop().await?;
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        self.cloud = Cloud::open(&self.directory.path().join("cloud"), quick(), None, any).await?;
        Ok(())
    }

    /// Starts the cloud [on disk](Self::on_disk) again, which was stopped.
    pub(crate) async fn restart_cloud(&mut self) -> anyhow::Result<()> {
        let (net, address) = (self.cloud.net.clone(), self.cloud.address);
        // The state is locked by whoever uses it.
        self.cloud = Cloud::new(quick()).await?;
        let folder = self.directory.path().join("cloud");
        let on_disk = Cloud::open(&folder, quick(), Some(net), address).await?;
        std::mem::replace(&mut self.cloud, on_disk).stop().await
    }

    /// Makes servers, and has their kubelets register nodes that are initialised already.
    pub(crate) async fn nodes(&mut self, count: usize) -> anyhow::Result<()> {
        for _ in 0..count {
            self.node(|spec| spec).await?;
        }
        Ok(())
    }

    /// Makes one server, with the node that `change` makes of an initialised one.
    pub(crate) async fn node(&mut self, change: impl FnOnce(NodeSpec) -> NodeSpec) -> anyhow::Result<Instance> {
        let made = self.make(format!("node-{}", self.servers.len())).await?;
        let spec = NodeSpec::new(&made.name).provided_ip(made.ip).provider_id(made.provider_id()).initialized();
        self.kubelets.register(change(spec)).await?;
        Ok(made)
    }

    /// Makes a server without a node.
    pub(crate) async fn make(&mut self, name: impl Into<String>) -> anyhow::Result<Instance> {
        let made = self.cloud.server(small(name)).await?;
        self.servers.push(made.clone());
        Ok(made)
    }

    /// Begins to serve on a port of every node, as kube-proxy does.
    pub(crate) async fn serve(&mut self, protocol: &str, port: u16) -> anyhow::Result<()> {
        for server in &self.servers {
            let address = SocketAddr::new(server.ip, port);
            match protocol {
                "UDP" => self.web.open_udp(&server.name, address).await?,
                _ => self.web.open(&server.name, address)?,
            }
        }
        Ok(())
    }

    /// Text of `cloud.conf`.
    pub(crate) fn cloud_config(&self) -> String {
        let (net, lines) = (&self.cloud.net, &self.config);
        let or = |given: &Option<String>, usual: &str| given.clone().unwrap_or_else(|| usual.to_owned());
        format!(
            "[Global]\nauth-url = \"http://{}/identity/v3\"\nusername = demo\npassword = \"{}\"\ntenant-name = demo\n\
             domain-id = default\nregion = RegionOne\n{}\n\
             [Networking]\n{}\n\
             [Route]\nrouter-id = {}\n\
             [LoadBalancer]\n{}member-subnet-id = {}\nfloating-network-id = {}\n{}\n\
             [Requests]\nread-qps = 1000\nread-burst = 10000\nwrite-qps = 1000\nwrite-burst = 10000\n{}\n",
            self.cloud.address,
            or(&lines.password, self.cloud.password().expose()),
            lines.global,
            lines.networking,
            or(&lines.router, &net.router),
            match or(&lines.subnet, &net.vips) {
                none if none.is_empty() => none,
                subnet => format!("subnet-id = {subnet}\n"),
            },
            net.nodes,
            net.external[0],
            lines.balancer,
            lines.more,
        )
    }

    /// Puts another `cloud.conf` in the place of that of the running process.
    pub(crate) fn rewrite_config(&self) -> anyhow::Result<()> {
        let next = self.directory.path().join("next.conf");
        std::fs::write(&next, self.cloud_config())?;
        Ok(std::fs::rename(next, self.directory.path().join("cloud.conf"))?)
    }

    /// Starts the process.
    pub(crate) async fn start(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        self.start_with(self.cloud_config(), flags).await
    }

    /// Starts the process with this text as `cloud.conf`.
    pub(crate) async fn start_with(&mut self, config: String, flags: &[&str]) -> anyhow::Result<()> {
        let args = self.args(config, &[], flags).await?;
        let name = format!("ccm-{}", self.started);
        self.started += 1;
        let program = Path::new(env!("CARGO_BIN_EXE_ccm-openstack"));
        let process = Ccm::start(program, self.directory.path(), &name, args).await?;
        self.process.replace(Some(process));
        Ok(())
    }

    /// Runs the subcommand `orphans` to its end: its exit code, and its report where it made one.
    pub(crate) async fn orphans(&self, flags: &[&str]) -> anyhow::Result<(Option<i32>, Value)> {
        let args = self.args(self.cloud_config(), &["orphans", "--output=json"], flags).await?;
        ccm::report(Path::new(env!("CARGO_BIN_EXE_ccm-openstack")), &args, SOON).await
    }

    /// Arguments of the program on this stage.
    async fn args(&self, config: String, first: &[&str], flags: &[&str]) -> anyhow::Result<Vec<OsString>> {
        let kubeconfig = self.directory.path().join("kubeconfig");
        self.server.write_kubeconfig(&kubeconfig, USER).await?;
        if let Ok(embedded) = self.server.as_embedded() {
            embedded.users().set_access(USER, Access::Rules(Rule::of_role(&json!({"rules": rules()?}))?));
        }
        let cloud_config = self.directory.path().join("cloud.conf");
        std::fs::write(&cloud_config, config)?;
        let mut args: Vec<OsString> = first.iter().map(Into::into).collect();
        args.extend(FLAGS.map(Into::into));
        args.push(format!("--kubeconfig={}", kubeconfig.display()).into());
        args.push(format!("--cloud-config={}", cloud_config.display()).into());
        args.extend(flags.iter().map(Into::into));
        Ok(args)
    }

    /// Whether a process was started and not ended by the test.
    pub(crate) fn is_running(&self) -> bool {
        self.process.borrow().is_some()
    }

    /// Ends the process in order.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        self.process.take().context("nothing runs")?.terminate().await
    }

    /// Ends the process at once.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        let mut process = self.process.take().context("nothing runs")?;
        process.signal(Signal::Kill).await?;
        process.exit(SOON).await.map(drop)
    }

    /// Waits until the process has ended by itself, and returns whether it did so well, and what it printed.
    pub(crate) async fn exit(&mut self) -> anyhow::Result<(bool, String)> {
        let mut process = self.process.take().context("nothing runs")?;
        let status = process.exit(SOON).await?;
        Ok((status.success(), process.log()))
    }

    /// What the running process printed.
    pub(crate) fn log(&self) -> String {
        self.process.borrow().as_ref().map(Ccm::log).unwrap_or_default()
    }

    /// Waits until the process prints a line with all of these texts, and returns it.
    pub(crate) async fn logged(&self, texts: &[&str]) -> anyhow::Result<String> {
        let has_all = |line: &&str| texts.iter().all(|text| line.contains(text));
        self.until(&format!("a line of the log with {texts:?}"), async || {
            Ok(self.log().lines().find(has_all).map(str::to_owned).ok_or_else(|| "there is none".to_owned()))
        })
        .await
    }

    /// Takes the requests of the process since the last time.
    pub(crate) fn take_requests(&self) -> Vec<Entry> {
        let journal = &self.cloud.local.cloud().journal;
        let taken = journal.entries();
        journal.clear();
        taken
    }

    /// Takes the requests that change something, without those for tokens: method and path.
    pub(crate) fn take_writes(&self) -> Vec<String> {
        let changes = |entry: &Entry| entry.method != "GET" && !entry.path.starts_with("/identity");
        self.take_requests()
            .into_iter()
            .filter(changes)
            .map(|entry| format!("{} {}", entry.method, entry.path))
            .collect()
    }

    /// What there is in the cloud.
    pub(crate) fn world(&self) -> World {
        self.cloud.peek(|state| World::read(state, &self.servers))
    }

    pub(crate) fn node_api(&self) -> Api<Node> {
        Api::all(self.server.client())
    }

    pub(crate) fn services(&self) -> Api<Service> {
        Api::namespaced(self.server.client(), "default")
    }

    /// Creates a Service of type LoadBalancer.
    pub(crate) async fn create(&self, manifest: &Value) -> anyhow::Result<Service> {
        Ok(self.services().create(&PostParams::default(), &serde_json::from_value(manifest.clone())?).await?)
    }

    /// Changes a Service by merge patch.
    pub(crate) async fn change(&self, name: &str, patch: Value) -> anyhow::Result<Service> {
        Ok(self.services().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    /// Changes annotations, named by suffix or in full; `Value::Null` takes one away.
    pub(crate) async fn annotate(&self, name: &str, annotations: &[(&str, Value)]) -> anyhow::Result<()> {
        let map: serde_json::Map<_, _> = annotations.iter().map(|(key, value)| (full(key), value.clone())).collect();
        self.change(name, json!({"metadata": {"annotations": map}})).await.map(drop)
    }

    /// Begins to delete a Service.
    pub(crate) async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.services().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// What a Service publishes.
    pub(crate) async fn ingress(&self, name: &str) -> anyhow::Result<Option<LoadBalancerIngress>> {
        let status = self.services().get(name).await?.status.and_then(|status| status.load_balancer?.ingress);
        Ok(status.and_then(|ingress| ingress.into_iter().next()))
    }

    /// Waits until these Services publish an address or a name.
    pub(crate) async fn served(&self, names: &[&str]) -> anyhow::Result<()> {
        self.until("served", async || {
            for name in names {
                if self.ingress(name).await?.is_none() {
                    return Ok(Err(format!("{name} has no address, but {:#?}", self.events(name).await?)));
                }
            }
            Ok(Ok(()))
        })
        .await
    }

    /// Waits until a Service publishes an address, and returns it.
    pub(crate) async fn address(&self, name: &str) -> anyhow::Result<IpAddr> {
        self.served(&[name]).await?;
        let ip = self.ingress(name).await?.and_then(|ingress| ingress.ip);
        ip.context("an address")?.parse().context("of the usual form")
    }

    /// Address of the load balancer itself, floating or not.
    pub(crate) fn vip(&self, name: &str) -> anyhow::Result<IpAddr> {
        let name = format!("kube_service_{CLUSTER}_default_{name}");
        let vip = self.cloud.peek(|state| {
            let mut balancers = state.octavia.load_balancers.iter();
            balancers.find(|row| row.body.name == name).and_then(|row| row.body.vip_address.clone())
        });
        vip.with_context(|| format!("no balancer {name}"))?.parse().context("of the usual form")
    }

    /// Waits until these Services are no more.
    pub(crate) async fn vanished(&self, names: &[&str]) -> anyhow::Result<()> {
        self.until("vanished", async || {
            for name in names {
                if let Some(service) = self.services().get_opt(name).await? {
                    let events = self.events(name).await?;
                    return Ok(Err(format!("{name} has finalizers {:?}: {events:#?}", service.finalizers())));
                }
            }
            Ok(Ok(()))
        })
        .await
    }

    /// Events about an object: reason and message, in the order of their first time.
    pub(crate) async fn events(&self, name: &str) -> anyhow::Result<Vec<(String, String)>> {
        shared::events(&self.server.client(), name).await
    }

    /// Waits for an event of this reason (of any, if empty) with all of these texts, and returns its message.
    pub(crate) async fn event(&self, name: &str, reason: &str, texts: &[&str]) -> anyhow::Result<String> {
        self.until(&format!("event {reason} about {name} with {texts:?}"), async || {
            let events = self.events(name).await?;
            let is = |(of, message): &&(String, String)| {
                (reason.is_empty() || of == reason) && texts.iter().all(|text| message.contains(text))
            };
            Ok(events.iter().find(is).map(|(_, message)| message.clone()).ok_or_else(|| format!("only {events:#?}")))
        })
        .await
    }

    /// Waits until the cloud is as `judge` wants it, and returns it.
    pub(crate) async fn settles(
        &self,
        what: &str,
        judge: impl Fn(&World) -> Result<(), String>,
    ) -> anyhow::Result<World> {
        self.until(what, async || {
            let world = self.world();
            Ok(judge(&world).map(|()| world))
        })
        .await
    }

    /// Waits until each of these lines holds.
    pub(crate) async fn holds<L: AsRef<str>>(&self, lines: &[L]) -> anyhow::Result<World> {
        self.settles("what is wanted", |world| world.has(lines)).await
    }

    /// Waits until something holds, and returns it; the answer says what is still wrong.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        judge: impl AsyncFn() -> anyhow::Result<Result<T, String>>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + SOON;
        loop {
            match judge().await? {
                Ok(found) => return Ok(found),
                Err(wrong) if self.has_died()? => bail!("{what}: the process has ended: {wrong}{}", self.tail()),
                Err(wrong) if Instant::now() >= deadline => {
                    bail!("{what}: not within {SOON:?}: {wrong}{}", self.tail())
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Whether the process that was started has ended by itself.
    fn has_died(&self) -> anyhow::Result<bool> {
        match self.process.borrow_mut().as_mut() {
            Some(process) => Ok(!process.is_running()?),
            None => Ok(false),
        }
    }

    /// The end of what the process printed.
    fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().rev().take(30).collect();
        lines.into_iter().rev().fold("\nlog of the process:".to_owned(), |text, line| format!("{text}\n{line}"))
    }
}

/// The full name of an annotation that is given by its suffix, or in full.
pub(crate) fn full(annotation: &str) -> String {
    if annotation.contains('/') { annotation.to_owned() } else { format!("{PREFIX}{annotation}") }
}

/// Annotation of Services without a floating IP.
pub(crate) const INTERNAL: &str = "service.beta.kubernetes.io/openstack-internal-load-balancer";

/// A Service of type LoadBalancer. Ports have a node port 30000 more; annotations are named by suffix or in full.
pub(crate) fn service(name: &str, ports: &[(&str, u16)], annotations: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<_, _> =
        annotations.iter().map(|(key, value)| (full(key), Value::from(*value))).collect();
    shared::balanced(name, ports, &annotations)
}
