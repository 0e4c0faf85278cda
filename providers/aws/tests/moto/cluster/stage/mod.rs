//! A cluster on AWS for one test: a VPC on moto, nodes with kubelets, an API server, and the binary as a process.

pub(crate) mod world;

use std::{
    ffi::OsString,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use ccm_aws::{
    api::{AwsError, Reply, Request, Transport},
    config::{OverriddenService, ServiceOverride, Settings},
    sdk,
};
use ccm_e2e::{
    ccm::{self, Ccm, Signal},
    manifests,
    secrets::Secrets,
    server::{Kind, Server},
    stage as shared,
};
use ccm_testkit::{
    apiserver::{self, Access, Rule},
    control_plane::Binaries,
    kubelet::{KubeletOptions, Kubelets, NodeSpec},
    moto::{
        Moto,
        fixture::{Fixture, Instance, Subnet, Vpc},
        overlay::{Overlay, Recorded},
        wire::{EC2, REGION},
    },
};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    ResourceExt as _,
    api::{Api, DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{sync::OnceCell, time::Instant};

use world::World;

/// How long anything may take that needs a few round trips.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(100);
/// ID of the cluster.
pub(crate) const CLUSTER: &str = "test";
/// Tag of what belongs to the cluster.
pub(crate) const CLUSTER_TAG: &str = "kubernetes.io/cluster/test";
/// What an annotation of load balancers begins with.
pub(crate) const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";
/// User that the process runs as.
const USER: &str = "e2e-aws";

/// Flags of every process: short periods, and no limit that a test would wait for. Nobody waits for a lease that the
/// process before could not give back.
const FLAGS: [&str; 7] = [
    "--cloud-provider=aws",
    "--leader-elect=false",
    "--node-monitor-period=1s",
    "--node-status-update-frequency=10m",
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
    "--secure-port=0",
];

/// Credentials of the process; moto takes any. Nobody may ever see them.
const SECRET_KEY: &str = "key.Sk3/Qn8+Vr5=Zt2";
const SESSION_TOKEN: &str = "session.Wd4/Hm7+Xk2=";

/// Budgets of requests that nobody waits for.
const LIMITS: &str = "EC2ReadQPS = 1000\nEC2WriteQPS = 1000\nEC2TopologyQPS = 1000\nELBReadQPS = 1000\n\
                      ELBRegisterQPS = 1000\nELBWriteQPS = 1000\n";

/// What all cases share: moto, and the API servers, which are started when the first case needs them.
pub(crate) struct House {
    moto: Arc<Moto>,
    /// The tests' own way to moto, so that the other's record has the process' requests alone.
    around: Overlay,
    binaries: Option<Binaries>,
    embedded: OnceCell<Arc<Server>>,
    real: OnceCell<Arc<Server>>,
    /// Every request of a process so far.
    recorded: Mutex<Vec<Recorded>>,
    /// How many cases passed.
    successes: AtomicUsize,
}

impl House {
    pub(crate) async fn new(moto: Arc<Moto>, binaries: Option<Binaries>) -> anyhow::Result<Self> {
        let around = Overlay::start(moto.direct().clone()).await?;
        // What other suites asked for is none of the process' requests.
        moto.overlay().reset();
        let (embedded, real) = (OnceCell::new(), OnceCell::new());
        let (recorded, successes) = (Mutex::default(), AtomicUsize::new(0));
        Ok(Self { moto, around, binaries, embedded, real, recorded, successes })
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

    /// Counts a case that passed.
    pub(crate) fn note_success(&self) {
        self.successes.fetch_add(1, Ordering::Relaxed);
    }

    /// How many cases passed.
    pub(crate) fn successes(&self) -> usize {
        self.successes.load(Ordering::Relaxed)
    }

    /// Every request of a process so far.
    pub(crate) fn recorded(&self) -> MutexGuard<'_, Vec<Recorded>> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the folder `rbac` grants, with what pods as targets take.
fn rules() -> anyhow::Result<Vec<Value>> {
    let mut roles = manifests::read(&manifests::rbac())?;
    roles.extend(manifests::read(&manifests::rbac().join("optional"))?);
    Ok(roles.iter().filter_map(|role| role["rules"].as_array()).flatten().cloned().collect())
}

fn secrets() -> Secrets {
    let mut secrets = Secrets::default();
    secrets.add("the secret access key", SECRET_KEY);
    secrets.add("the session token", SESSION_TOKEN);
    secrets.add("the token for the API server", &format!("token-of-{USER}"));
    secrets
}

/// Networks, and the group of the nodes.
pub(crate) struct Network {
    pub(crate) vpc: Vpc,
    /// Public subnets in zones a and b.
    pub(crate) public: [Subnet; 2],
    /// Private ones in the same zones.
    pub(crate) private: [Subnet; 2],
    /// Security group of the nodes.
    pub(crate) group: String,
}

/// One test's cluster.
pub(crate) struct Stage<'a> {
    pub(crate) house: &'a House,
    pub(crate) server: Arc<Server>,
    pub(crate) fixture: Fixture,
    pub(crate) network: Network,
    pub(crate) kubelets: Kubelets,
    /// Instances that were launched, in order.
    pub(crate) instances: Vec<Instance>,
    /// Further lines of the section `[Global]`.
    pub(crate) config: String,
    /// Environment of the process alone.
    pub(crate) environment: Vec<String>,
    /// What nobody may ever see.
    pub(crate) secrets: Secrets,
    transport: Arc<dyn Transport>,
    directory: tempfile::TempDir,
    process: Option<Ccm>,
    started: usize,
}

impl<'a> Stage<'a> {
    /// An empty cluster: moto is emptied, and the API server of Nodes, Services and events.
    pub(crate) async fn new(house: &'a House, kind: Kind) -> anyhow::Result<Self> {
        house.recorded().extend(house.moto.overlay().take());
        house.moto.reset().await?;
        let server = house.server(kind).await?;
        shared::clear(&server.client()).await.context("clear the API server")?;
        let fixture = Fixture::new(house.moto.direct().clone());
        let network = network(&fixture).await.context("make the network")?;
        let service = |service| ServiceOverride {
            service,
            region: REGION.into(),
            url: house.around.url().into(),
            signing_region: REGION.into(),
            signing_name: None,
        };
        let overrides = [OverriddenService::Ec2, OverriddenService::Elb, OverriddenService::Classic].map(service);
        let settings = Settings { region: Some(REGION.into()), overrides: overrides.into(), ..Settings::default() };
        let connection = sdk::connect_with_keys(&settings, "AKIATEST", "secret").await.context("connect")?;
        Ok(Self {
            house,
            kubelets: Kubelets::new(server.client(), KubeletOptions::default()),
            server,
            fixture,
            network,
            instances: Vec::new(),
            config: String::new(),
            environment: vec![
                "AWS_ACCESS_KEY_ID=AKIATEST".into(),
                format!("AWS_SECRET_ACCESS_KEY={SECRET_KEY}"),
                format!("AWS_SESSION_TOKEN={SESSION_TOKEN}"),
            ],
            secrets: secrets(),
            transport: connection.transport,
            directory: tempfile::Builder::new().prefix("ccm-aws-").tempdir()?,
            process: None,
            started: 0,
        })
    }

    /// Launches instances, by turns in the public subnets.
    pub(crate) async fn launch(&mut self, count: usize, kind: &str) -> anyhow::Result<()> {
        for _ in 0..count {
            let subnet = &self.network.public[self.instances.len() % 2];
            let tags = [(CLUSTER_TAG, "owned")];
            let made = self.fixture.instance(subnet, kind, &[&self.network.group], &tags).await?;
            self.instances.push(made);
        }
        Ok(())
    }

    /// Launches instances and has their kubelets register nodes that are initialised already.
    pub(crate) async fn nodes(&mut self, count: usize) -> anyhow::Result<()> {
        let from = self.instances.len();
        self.launch(count, "m5.large").await?;
        let specs = (from..self.instances.len()).map(|at| {
            let id = format!("aws:///{}/{}", self.network.public[at % 2].zone, self.instances[at].id);
            NodeSpec::new(self.instances[at].private_dns_name.clone()).provider_id(id).initialized()
        });
        self.kubelets.register_all(specs).await?;
        Ok(())
    }

    /// Text of `cloud.conf`.
    pub(crate) fn cloud_config(&self) -> String {
        let global = format!(
            "[Global]\nRegion = {REGION}\nVPC = {}\nKubernetesClusterID = {CLUSTER}\n{LIMITS}{}\n",
            self.network.vpc.id, self.config
        );
        let services = ["EC2", "Elastic Load Balancing v2", "Elastic Load Balancing"].map(|service| {
            format!(
                "[ServiceOverride \"{service}\"]\nService = {service}\nRegion = {REGION}\nURL = {}\n\
                 SigningRegion = {REGION}\n",
                self.house.moto.url()
            )
        });
        global + &services.concat()
    }

    /// Starts the process.
    pub(crate) async fn start(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        self.start_program(Path::new(env!("CARGO_BIN_EXE_ccm-aws")), flags).await
    }

    /// Starts another program in the place of ours, with flags of its own.
    pub(crate) async fn start_program(&mut self, program: &Path, flags: &[&str]) -> anyhow::Result<()> {
        let args = self.args(program, None, flags).await?;
        let name = format!("ccm-{}", self.started);
        self.started += 1;
        self.process = Some(Ccm::start(Path::new("/usr/bin/env"), self.directory.path(), &name, args).await?);
        Ok(())
    }

    /// Runs the subcommand `orphans` to its end: its exit code, and its report where it made one.
    pub(crate) async fn orphans(&self, flags: &[&str]) -> anyhow::Result<(Option<i32>, Value)> {
        let program = Path::new(env!("CARGO_BIN_EXE_ccm-aws"));
        let flags: Vec<&str> = ["--output=json"].iter().chain(flags).copied().collect();
        let args = self.args(program, Some("orphans"), &flags).await?;
        ccm::report(Path::new("/usr/bin/env"), &args, SOON).await
    }

    /// Arguments for `env` that make it a program on this stage.
    async fn args(&self, program: &Path, word: Option<&str>, flags: &[&str]) -> anyhow::Result<Vec<OsString>> {
        let kubeconfig = self.directory.path().join("kubeconfig");
        self.server.write_kubeconfig(&kubeconfig, USER).await?;
        if let Ok(embedded) = self.server.as_embedded() {
            embedded.users().set_access(USER, Access::Rules(Rule::of_role(&json!({"rules": rules()?}))?));
        }
        let cloud_config = self.directory.path().join("cloud.conf");
        std::fs::write(&cloud_config, self.cloud_config())?;
        let mut args: Vec<OsString> = self.environment.iter().map(Into::into).collect();
        args.push(program.into());
        args.extend(word.map(Into::into));
        args.extend(FLAGS.map(Into::into));
        args.push(format!("--kubeconfig={}", kubeconfig.display()).into());
        args.push(format!("--cloud-config={}", cloud_config.display()).into());
        args.extend(flags.iter().map(Into::into));
        Ok(args)
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

    /// Checks that no process printed a credential.
    pub(crate) fn check_logs(&self) -> anyhow::Result<()> {
        for process in 0..self.started {
            let file = ccm::log_file(self.directory.path(), &format!("ccm-{process}"));
            self.secrets.check(&file.display().to_string(), &std::fs::read_to_string(&file)?)?;
        }
        Ok(())
    }

    /// What the running process printed.
    pub(crate) fn log(&self) -> String {
        self.process.as_ref().map(Ccm::log).unwrap_or_default()
    }

    /// Writes a file for the process; returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> anyhow::Result<String> {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    }

    /// The proxy that the process' requests go through.
    pub(crate) fn overlay(&self) -> &Overlay {
        self.house.moto.overlay()
    }

    /// Takes the requests of the process since the last time.
    pub(crate) fn take_requests(&self) -> Vec<Recorded> {
        let taken = self.overlay().take();
        self.house.recorded().extend(taken.iter().cloned());
        taken
    }

    /// Takes the requests that change something.
    pub(crate) fn take_writes(&self) -> Vec<String> {
        let changes = |request: &Recorded| !request.action.starts_with("Describe");
        self.take_requests().into_iter().filter(changes).map(|request| request.action).collect()
    }

    /// Sends a request that the process' record does not have.
    pub(crate) async fn ask<R: Request>(&self, request: R) -> Result<R::Reply, AwsError> {
        let reply: Reply = self.transport.send(request.into_call()).await?;
        Ok(R::from_reply(reply).expect("the reply is of the request's kind"))
    }

    /// What there is in AWS. Read anew when something went while it was read.
    pub(crate) async fn world(&self) -> anyhow::Result<World> {
        let went = |error: &anyhow::Error| {
            let error = error.downcast_ref::<AwsError>();
            error.is_some_and(|error| error.code().ends_with("NotFound"))
        };
        let deadline = Instant::now() + SOON;
        loop {
            match World::read(self).await {
                Err(error) if went(&error) && Instant::now() < deadline => {}
                read => return read,
            }
        }
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

    /// Host name that a Service publishes.
    pub(crate) async fn host_name(&self, name: &str) -> anyhow::Result<Option<String>> {
        let status = self.services().get(name).await?.status.and_then(|status| status.load_balancer?.ingress);
        Ok(status.and_then(|ingress| ingress.first()?.hostname.clone()))
    }

    /// Waits until these Services publish a host name.
    pub(crate) async fn served(&self, names: &[&str]) -> anyhow::Result<()> {
        self.until("served", async || {
            for name in names {
                if self.host_name(name).await?.is_none() {
                    return Ok(Err(format!("{name} has no host name")));
                }
            }
            Ok(Ok(()))
        })
        .await
    }

    /// Waits until these Services are no more.
    pub(crate) async fn vanished(&self, names: &[&str]) -> anyhow::Result<()> {
        self.until("vanished", async || {
            for name in names {
                if let Some(service) = self.services().get_opt(name).await? {
                    return Ok(Err(format!("{name} is there, with finalizers {:?}", service.finalizers())));
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

    /// Waits for an event of this reason with all of these texts.
    pub(crate) async fn event(&self, name: &str, reason: &str, texts: &[&str]) -> anyhow::Result<String> {
        let found = std::cell::RefCell::new(String::new());
        self.until(&format!("event {reason} about {name}"), async || {
            let events = self.events(name).await?;
            let is =
                |(of, message): &&(String, String)| of == reason && texts.iter().all(|text| message.contains(text));
            match events.iter().find(is) {
                Some((_, message)) => {
                    found.replace(message.clone());
                    Ok(Ok(()))
                }
                None => Ok(Err(format!("only {events:#?}"))),
            }
        })
        .await?;
        Ok(found.into_inner())
    }

    /// Waits until AWS is as `judge` wants it, and returns it.
    pub(crate) async fn settles(
        &self,
        what: &str,
        judge: impl Fn(&World) -> Result<(), String>,
    ) -> anyhow::Result<World> {
        let deadline = Instant::now() + SOON;
        loop {
            let world = self.world().await?;
            match judge(&world) {
                Ok(()) => return Ok(world),
                Err(wrong) if Instant::now() >= deadline => {
                    bail!("{what}: not within {SOON:?}: {wrong}{}", self.tail())
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Waits until something holds; the answer says what is still wrong.
    pub(crate) async fn until(
        &self,
        what: &str,
        judge: impl AsyncFn() -> anyhow::Result<Result<(), String>>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + SOON;
        loop {
            match judge().await? {
                Ok(()) => return Ok(()),
                Err(wrong) if Instant::now() >= deadline => {
                    bail!("{what}: not within {SOON:?}: {wrong}{}", self.tail())
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
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

/// A Service of type LoadBalancer. Ports have a node port 30000 more; annotations are named by suffix or in full.
pub(crate) fn service(name: &str, ports: &[(&str, u16)], annotations: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<_, _> =
        annotations.iter().map(|(key, value)| (full(key), Value::from(*value))).collect();
    shared::balanced(name, ports, &annotations)
}

async fn network(fixture: &Fixture) -> anyhow::Result<Network> {
    let vpc = fixture.vpc("10.0.0.0/16", &[]).await?;
    fixture.tag(&vpc.main_table, &[(CLUSTER_TAG, "owned")]).await?;
    let ipv6 = fixture.ipv6_network(&vpc).await?;
    let mut made = Vec::new();
    for (at, (zone, public)) in [("a", true), ("b", true), ("a", false), ("b", false)].iter().enumerate() {
        let (role, kind) =
            if *public { ("kubernetes.io/role/elb", "public") } else { ("kubernetes.io/role/internal-elb", "private") };
        let name = format!("{kind}-{zone}");
        let tags = [(CLUSTER_TAG, "shared"), (role, "1"), ("Name", &*name)];
        let subnet = fixture.subnet(&vpc, zone, &format!("10.0.{at}.0/24"), *public, &tags).await?;
        let block = ipv6.replace("00::/56", &format!("{at:02}::/64"));
        let associate = [("SubnetId", &*subnet.id), ("Ipv6CidrBlock", &*block)];
        fixture.wire().ask(EC2, "AssociateSubnetCidrBlock", associate).await?;
        made.push(subnet);
    }
    let group = fixture.security_group(&vpc, "nodes", &[(CLUSTER_TAG, "owned")]).await?;
    let subnets: [Subnet; 4] = made.try_into().map_err(|_| anyhow::anyhow!("four subnets"))?;
    let [a, b, c, d] = subnets;
    Ok(Network { vpc, public: [a, b], private: [c, d], group })
}
