//! One scenario in its own corner of a cluster: region, cloud, nodes, lease, users and processes.

mod accounts;
mod network;
mod programs;
mod services;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use ccm_mock::cloud::{Fault, FaultSpec, InstanceSpec, PowerState};
use ccm_mock::{CloudConfig, HostPort, MockCloud, bind_admin, serve_admin};
use ccm_testkit::kubelet::{KubeletOptions, Kubelets, NodeSpec, UNINITIALIZED_TAINT};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ccm::{Ccm, log_file};
use crate::server::{Server, Write};
use crate::watcher::{Nodes, addresses, is_tainted, provider_id};

pub use self::accounts::account_user;
pub use self::network::condition;

/// How long a condition may take that only needs a few round trips.
pub const SOON: Duration = Duration::from_secs(30);
/// How often a condition is looked at when nothing seems to change.
const POLL: Duration = Duration::from_millis(100);
/// Pause after a change, for those that come with it.
const BREATH: Duration = Duration::from_millis(10);
/// How many times longer than a look the pause after it is, so that looking is not what keeps the
/// machine busy.
const REST: u32 = 4;
/// Lines of a process's log that a failure shows.
const LOG_LINES: usize = 80;

pub use crate::watcher::REGION;

/// Flags of every process: short periods, and no limit that the tests would wait for.
const FLAGS: [&str; 6] = [
    "--cloud-provider=mock",
    "--node-monitor-period=300ms",
    "--node-status-update-frequency=1s",
    "--kube-api-qps=1000",
    "--kube-api-burst=2000",
    "--secure-port=0",
];

/// A scenario that runs.
pub struct Scenario {
    /// The server it runs on.
    pub server: Arc<Server>,
    /// Its cloud.
    pub cloud: MockCloud,
    /// Its kubelets.
    pub kubelets: Kubelets,
    slug: String,
    program: PathBuf,
    directory: tempfile::TempDir,
    endpoint: String,
    processes: Mutex<Vec<String>>,
    /// Names and UIDs of nodes that may go.
    mortal: Mutex<BTreeSet<String>>,
    /// Names of nodes that may lose their taint before they have addresses.
    exposable: Mutex<BTreeSet<String>>,
    /// Names of Services that may lose what they want.
    bereft: Mutex<BTreeSet<String>>,
    _tasks: JoinSet<std::io::Result<()>>,
}

/// Short name of the scenario beside this one.
pub fn neighbour(slug: &str) -> String {
    format!("{slug}x")
}

/// Name of the user that a scenario's process runs as.
pub fn user(slug: &str, process: &str) -> String {
    format!("e2e-{slug}-{process}")
}

impl Scenario {
    /// Prepares a scenario: its cloud is served, nothing runs yet. `slug` is its short name,
    /// `program` the binary.
    pub async fn new(server: Arc<Server>, slug: &str, program: &Path) -> anyhow::Result<Self> {
        let region = slug.to_owned();
        let zones = Some(
            ["a", "b", "c"]
                .map(|zone| format!("{region}{zone}"))
                .to_vec(),
        );
        let config = CloudConfig { region: Some(region), zones, ..CloudConfig::default() };
        let cloud = MockCloud::new(&config)?;
        let listener = bind_admin(&HostPort { host: "127.0.0.1".to_owned(), port: 0 }).await?;
        let endpoint = listener.local_addr()?.to_string();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_admin(cloud.clone(), listener, CancellationToken::new()));
        let kubelets = Kubelets::new(server.client(), KubeletOptions::default());
        Ok(Self {
            server,
            cloud,
            kubelets,
            slug: slug.to_owned(),
            program: program.to_owned(),
            directory: tempfile::Builder::new().prefix("ccm-e2e-").tempdir()?,
            endpoint,
            processes: Mutex::default(),
            mortal: Mutex::default(),
            exposable: Mutex::default(),
            bereft: Mutex::default(),
            _tasks: tasks,
        })
    }

    /// Another scenario beside this one, with a cloud of its own.
    pub async fn neighbour(&self) -> anyhow::Result<Self> {
        Self::new(self.server.clone(), &neighbour(&self.slug), &self.program).await
    }

    /// Region of this scenario's cloud.
    pub fn region(&self) -> &str {
        &self.slug
    }

    /// Name of the n-th node.
    pub fn name(&self, n: usize) -> String {
        format!("{}-{n:03}", self.slug)
    }

    /// Names of the first nodes.
    pub fn names(&self, count: usize) -> Vec<String> {
        (0..count).map(|n| self.name(n)).collect()
    }

    /// What every node of this scenario begins with, and no other's.
    pub fn prefix(&self) -> String {
        format!("{}-", self.slug)
    }

    /// A node of this scenario's region, as its kubelet registers it.
    pub fn spec(&self, name: &str) -> NodeSpec {
        NodeSpec::new(name).label(REGION, self.region())
    }

    /// Makes running instances and registers their nodes.
    pub async fn register(&self, names: &[String]) -> anyhow::Result<()> {
        for name in names {
            self.cloud.put_instance(name, InstanceSpec::default())?;
        }
        self.kubelets
            .register_all(names.iter().map(|name| self.spec(name)))
            .await?;
        self.seen(names).await
    }

    /// Registers one node; its instance is the caller's business.
    pub async fn register_one(&self, spec: NodeSpec) -> anyhow::Result<()> {
        let name = spec.name.clone();
        self.kubelets.register(spec).await?;
        self.seen(&[name]).await
    }

    /// Waits until the observer has seen nodes that the server has.
    pub async fn seen(&self, names: &[String]) -> anyhow::Result<()> {
        self.eventually("seen", SOON, |nodes| each(nodes, names, |_| Ok(())))
            .await
    }

    /// Registers nodes with instances, and waits until they are initialised.
    pub async fn register_initialized(&self, names: &[String]) -> anyhow::Result<()> {
        self.register(names).await?;
        self.initialized(names, SOON).await
    }

    /// Changes the power state of an instance.
    pub fn set_power(&self, name: &str, power: PowerState) -> anyhow::Result<()> {
        let instance = self
            .cloud
            .instance(name)
            .with_context(|| format!("no instance {name}"))?;
        self.cloud
            .put_instance(name, InstanceSpec { power_state: Some(power), ..instance.into() })?;
        Ok(())
    }

    /// Replaces the cloud's faults.
    pub fn set_faults(&self, faults: impl IntoIterator<Item = FaultSpec>) -> anyhow::Result<()> {
        let faults: Result<Vec<_>, _> = faults.into_iter().map(Fault::new).collect();
        self.cloud.set_faults(faults?);
        Ok(())
    }

    /// Starts a cloud-controller-manager for this scenario's cloud. Processes of other names are
    /// replicas: they share the lease and have users of their own. Flags given here win.
    pub async fn start(&self, process: &str, flags: &[&str]) -> anyhow::Result<Ccm> {
        self.start_with("", process, flags).await
    }

    /// The same with more lines in the cloud config.
    pub async fn start_with(
        &self,
        config: &str,
        process: &str,
        flags: &[&str],
    ) -> anyhow::Result<Ccm> {
        let kubeconfig = self.path(process, "kubeconfig");
        self.server
            .write_kubeconfig(&kubeconfig, &self.user(process))
            .await?;
        self.launch(kubeconfig, config, process, flags).await
    }

    /// The same for a cloud at another address, which alone knows its region.
    pub async fn start_for(
        &self,
        endpoint: SocketAddr,
        process: &str,
        flags: &[&str],
    ) -> anyhow::Result<Ccm> {
        let kubeconfig = self.path(process, "kubeconfig");
        self.server
            .write_kubeconfig(&kubeconfig, &self.user(process))
            .await?;
        self.launch_program(
            &self.program,
            kubeconfig,
            &format!("endpoint: {endpoint}\n"),
            process,
            flags,
        )
        .await
    }

    fn path(&self, process: &str, what: &str) -> PathBuf {
        self.directory.path().join(format!("{process}.{what}"))
    }

    /// Starts the cloud-controller-manager on Go's framework for this scenario's cloud; see
    /// `tests/control-plane/kubernetes/ccm`. Its writes are more than the role of ours grants.
    pub async fn start_go(
        &self,
        program: &Path,
        process: &str,
        flags: &[&str],
    ) -> anyhow::Result<Ccm> {
        let kubeconfig = self.path(process, "kubeconfig");
        self.server
            .write_kubeconfig(&kubeconfig, &self.user(process))
            .await?;
        let config = json!({"region": self.region(), "endpoint": self.endpoint}).to_string();
        self.launch_program(program, kubeconfig, &config, process, flags)
            .await
    }

    async fn launch(
        &self,
        kubeconfig: PathBuf,
        config: &str,
        process: &str,
        flags: &[&str],
    ) -> anyhow::Result<Ccm> {
        let config = format!("{}{config}", self.cloud_config());
        self.launch_program(&self.program, kubeconfig, &config, process, flags)
            .await
    }

    fn cloud_config(&self) -> String {
        format!("region: {}\nendpoint: {}\n", self.region(), self.endpoint)
    }

    /// Runs the subcommand `orphans` as a process of this name, to its end: its exit code, and its
    /// report where it made one.
    pub async fn orphans(
        &self,
        process: &str,
        flags: &[&str],
    ) -> anyhow::Result<(Option<i32>, Value)> {
        let kubeconfig = self.path(process, "kubeconfig");
        self.server
            .write_kubeconfig(&kubeconfig, &self.user(process))
            .await?;
        let flags: Vec<&str> = ["--output=json"].iter().chain(flags).copied().collect();
        self.subcommand(&["orphans"], kubeconfig, process, &flags)
            .await
    }

    /// Runs a subcommand, which these words begin, as the user of a kubeconfig and to its end: its
    /// exit code, and its report where it made one in JSON, otherwise what it said of its errors.
    pub async fn subcommand(
        &self,
        words: &[&str],
        kubeconfig: PathBuf,
        process: &str,
        flags: &[&str],
    ) -> anyhow::Result<(Option<i32>, Value)> {
        let mut args: Vec<OsString> = words.iter().map(OsString::from).collect();
        args.extend(self.arguments(kubeconfig, &self.cloud_config(), process, flags)?);
        crate::ccm::report(&self.program, &args, SOON).await
    }

    async fn launch_program(
        &self,
        program: &Path,
        kubeconfig: PathBuf,
        config: &str,
        process: &str,
        flags: &[&str],
    ) -> anyhow::Result<Ccm> {
        let args = self.arguments(kubeconfig, config, process, flags)?;
        let name = format!("{process}{}", self.processes.lock().len());
        self.processes.lock().push(name.clone());
        Ccm::start(program, self.directory.path(), &name, args).await
    }

    fn arguments(
        &self,
        kubeconfig: PathBuf,
        config: &str,
        process: &str,
        flags: &[&str],
    ) -> anyhow::Result<Vec<OsString>> {
        let cloud_config = self.path(process, "cloud.yaml");
        std::fs::write(&cloud_config, config)?;
        let file = |flag: &str, path: PathBuf| {
            let mut argument = OsString::from(flag);
            argument.push(path);
            argument
        };
        let mut args: Vec<OsString> = FLAGS.iter().map(OsString::from).collect();
        args.push(file("--kubeconfig=", kubeconfig));
        args.push(file("--cloud-config=", cloud_config));
        args.push(format!("--leader-elect-resource-name={}", self.lease()).into());
        args.extend(flags.iter().map(OsString::from));
        Ok(args)
    }

    /// Name of the Lease, in kube-system.
    pub fn lease(&self) -> String {
        format!("e2e-{}", self.slug)
    }

    /// User that a process of this scenario runs as.
    pub fn user(&self, process: &str) -> String {
        user(&self.slug, process)
    }

    /// Writes of a process to Nodes with names of this scenario.
    pub async fn node_writes(&self, process: &str) -> anyhow::Result<Vec<Write>> {
        let mut writes = self.server.writes(&self.user(process)).await?;
        writes.retain(|write| {
            write.resource.starts_with("nodes") && write.name.starts_with(&self.prefix())
        });
        Ok(writes)
    }

    /// This scenario's nodes as last seen.
    pub fn nodes(&self) -> Nodes {
        self.server.observer.nodes(&self.prefix())
    }

    /// A node as last seen.
    pub fn node(&self, name: &str) -> anyhow::Result<Arc<Node>> {
        self.nodes()
            .get(name)
            .cloned()
            .with_context(|| format!("no node {name}"))
    }

    /// Waits until the nodes are as they should be; `judge` says what is still wrong.
    pub async fn eventually(
        &self,
        what: &str,
        limit: Duration,
        judge: impl Fn(&Nodes) -> Result<(), String>,
    ) -> anyhow::Result<()> {
        self.becomes(what, limit, || judge(&self.nodes())).await
    }

    /// Makes sure that the nodes stay as they should be while the cloud is asked about instances so
    /// many times more.
    pub async fn throughout(
        &self,
        what: &str,
        times: u64,
        judge: impl Fn(&Nodes) -> Result<(), String>,
    ) -> anyhow::Result<()> {
        self.stays_while_asked(what, times, || judge(&self.nodes()))
            .await
    }

    /// Waits until cluster and cloud are as they should be; `judge` says what is still wrong.
    pub async fn becomes(
        &self,
        what: &str,
        limit: Duration,
        judge: impl Fn() -> Result<(), String>,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        let mut changes = self.server.observer.changes();
        loop {
            changes.mark_unchanged();
            let began = Instant::now();
            let Err(wrong) = judge() else { return Ok(()) };
            let cost = began.elapsed();
            if Instant::now() >= deadline {
                bail!("{what}: not within {limit:?}: {wrong}");
            }
            // The cloud is no part of what is watched, so silence is looked into as well.
            let _ = tokio::time::timeout(POLL, changes.changed()).await;
            // One look for a burst of changes.
            tokio::time::sleep(BREATH.max(cost * REST)).await;
        }
    }

    /// Makes sure for some time that cluster and cloud stay as they should be.
    pub async fn stays(
        &self,
        what: &str,
        time: Duration,
        judge: impl Fn() -> Result<(), String>,
    ) -> anyhow::Result<()> {
        let end = Instant::now() + time;
        self.stays_until(what, judge, || Instant::now() >= end)
            .await
    }

    /// Makes sure that cluster and cloud stay as they should be while the cloud is asked about
    /// instances so many times more, and what it said the last time but one has been acted on.
    pub async fn stays_while_asked(
        &self,
        what: &str,
        times: u64,
        judge: impl Fn() -> Result<(), String>,
    ) -> anyhow::Result<()> {
        let asked = || self.cloud.calls().describe_instances;
        let (wanted, deadline) = (asked() + times, Instant::now() + SOON);
        self.stays_until(what, judge, || asked() >= wanted || Instant::now() >= deadline)
            .await?;
        anyhow::ensure!(
            asked() >= wanted,
            "{what}: the cloud was asked {} times less than {times}",
            wanted - asked()
        );
        Ok(())
    }

    async fn stays_until(
        &self,
        what: &str,
        judge: impl Fn() -> Result<(), String>,
        is_over: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let mut changes = self.server.observer.changes();
        loop {
            changes.mark_unchanged();
            let (over, began) = (is_over(), Instant::now());
            if let Err(wrong) = judge() {
                bail!("{what}: {wrong}");
            }
            if over {
                return Ok(());
            }
            tokio::time::sleep(began.elapsed() * REST).await;
            let _ = tokio::time::timeout(POLL, changes.changed()).await;
        }
    }

    /// Waits until something outside the cluster holds.
    pub async fn until(
        &self,
        what: &str,
        limit: Duration,
        holds: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let wait = async {
            while !holds() {
                tokio::time::sleep(POLL / 4).await;
            }
        };
        tokio::time::timeout(limit, wait)
            .await
            .with_context(|| format!("{what}: not within {limit:?}"))
    }

    /// Waits until these nodes are initialised: addresses, provider ID, taint gone.
    pub async fn initialized(&self, names: &[String], limit: Duration) -> anyhow::Result<()> {
        self.eventually("initialised", limit, |nodes| each(nodes, names, is_initialized))
            .await
    }

    /// Waits until exactly these nodes are left.
    pub async fn only(&self, names: &[String], limit: Duration) -> anyhow::Result<()> {
        let wanted: BTreeSet<_> = names.iter().collect();
        self.eventually("only these nodes are left", limit, |nodes| {
            let there: BTreeSet<_> = nodes.keys().collect();
            let (surplus, missing) =
                (there.difference(&wanted).count(), wanted.difference(&there).count());
            if surplus + missing == 0 {
                Ok(())
            } else {
                Err(format!("{surplus} too many, {missing} missing"))
            }
        })
        .await
    }

    /// Makes sure that all these nodes stay while the cloud is asked about instances so many times
    /// more.
    pub async fn none_deleted(&self, names: &[String], times: u64) -> anyhow::Result<()> {
        self.throughout("no node may be deleted", times, |nodes| each(nodes, names, |_| Ok(())))
            .await
    }

    /// Deletes a node by hand.
    pub async fn delete_node(&self, name: &str) -> anyhow::Result<()> {
        // By UID: a namesake that is registered later has to live.
        let uid = self.node(name)?.metadata.uid.clone().unwrap_or_default();
        self.mortal.lock().insert(uid);
        self.nodes_api()
            .delete(name, &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// The nodes, with all rights.
    pub fn nodes_api(&self) -> Api<Node> {
        Api::all(self.server.client())
    }

    /// Sets labels of a node by hand.
    pub async fn set_labels(&self, name: &str, labels: &[(&str, &str)]) -> anyhow::Result<()> {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        let patched = self
            .nodes_api()
            .patch(name, &PatchParams::default(), &patch)
            .await?;
        // What is judged from now on must not be the state before.
        let version = |node: &Node| {
            node.metadata
                .resource_version
                .as_ref()
                .and_then(|version| version.parse::<u64>().ok())
        };
        self.eventually("the change is seen", SOON, |nodes| {
            each(nodes, &[name.to_owned()], |node| match version(node) >= version(&patched) {
                true => Ok(()),
                false => Err("an older state".to_owned()),
            })
        })
        .await
    }

    /// These nodes may be seen to go; the end of any other is a failure.
    pub fn may_go<'a>(&self, names: impl IntoIterator<Item = &'a String>) {
        self.mortal.lock().extend(names.into_iter().cloned());
    }

    /// This node may be seen without its taint and without addresses, as managers on Go's framework
    /// leave them.
    pub fn may_be_exposed(&self, name: &str) {
        self.exposable.lock().insert(name.to_owned());
    }

    /// Events about a node, the newest of each kind.
    pub async fn events(&self, node: &str) -> anyhow::Result<Vec<Event>> {
        self.events_about("Node", node).await
    }

    async fn events_about(&self, kind: &str, name: &str) -> anyhow::Result<Vec<Event>> {
        let events: Api<Event> = Api::namespaced(self.server.client(), "default");
        let selector = format!("involvedObject.name={name},involvedObject.kind={kind}");
        Ok(events
            .list(&ListParams::default().fields(&selector))
            .await?
            .items)
    }

    /// Waits for an event of this reason about a node.
    pub async fn event(&self, node: &str, reason: &str, limit: Duration) -> anyhow::Result<Event> {
        self.event_about("Node", node, reason, limit).await
    }

    /// Waits for an event of this reason about an object of a kind.
    pub async fn event_about(
        &self,
        kind: &str,
        name: &str,
        reason: &str,
        limit: Duration,
    ) -> anyhow::Result<Event> {
        let deadline = Instant::now() + limit;
        loop {
            let events = self.events_about(kind, name).await?;
            if let Some(event) = events
                .iter()
                .find(|event| event.reason.as_deref() == Some(reason))
            {
                return Ok(event.clone());
            }
            if Instant::now() >= deadline {
                let seen: Vec<_> = events
                    .iter()
                    .filter_map(|event| event.reason.clone())
                    .collect();
                bail!("no event {reason} about {name} within {limit:?}, only {seen:?}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Judges what was seen all along: no node without addresses lost its taint, none went that
    /// should live, no Service lost the finalizer or the address of a balancer that it wanted all
    /// along, no pod network changed or belonged to two nodes, and no process panicked.
    pub fn verdict(&self) -> anyhow::Result<()> {
        let observer = &self.server.observer;
        let mut exposed = observer.exposed(&self.prefix());
        exposed.retain(|seen| !self.exposable.lock().contains(&seen.name));
        anyhow::ensure!(
            exposed.is_empty(),
            "nodes lost their taint before they had addresses: {exposed:?}"
        );
        let mut bereft = observer.bereft(&self.prefix());
        bereft.retain(|seen| !self.bereft.lock().contains(&seen.name));
        anyhow::ensure!(
            bereft.is_empty(),
            "Services lost finalizer or address that wanted both: {bereft:?}"
        );
        let renetworked = observer.renetworked(&self.prefix());
        anyhow::ensure!(
            renetworked.is_empty(),
            "pod networks changed, or belong to two nodes: {renetworked:?}"
        );
        let mortal = self.mortal.lock();
        let mut killed = observer.deleted(&self.prefix());
        killed.retain(|seen| !mortal.contains(&seen.name) && !mortal.contains(&seen.uid));
        anyhow::ensure!(killed.is_empty(), "nodes were deleted that should live: {killed:?}");
        for (name, log) in self.logs() {
            anyhow::ensure!(!log.contains("panicked"), "{name} panicked");
        }
        Ok(())
    }

    /// The end of every process's log, for a failure.
    pub fn log_tails(&self) -> String {
        let tail = |(name, log): (String, String)| {
            let lines: Vec<_> = log.lines().collect();
            format!("--- {name}:\n{}\n", lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"))
        };
        self.logs().into_iter().map(tail).collect()
    }

    fn logs(&self) -> Vec<(String, String)> {
        let read = |name: &String| {
            let bytes = std::fs::read(log_file(self.directory.path(), name)).unwrap_or_default();
            (name.clone(), String::from_utf8_lossy(&bytes).into_owned())
        };
        self.processes.lock().iter().map(read).collect()
    }
}

/// Judges each of these nodes.
pub fn each(
    nodes: &Nodes,
    names: &[String],
    judge: impl Fn(&Node) -> Result<(), String>,
) -> Result<(), String> {
    let mut wrong = names.iter().filter_map(|name| match nodes.get(name) {
        Some(node) => judge(node).err().map(|why| format!("{name}: {why}")),
        None => Some(format!("{name}: is not there")),
    });
    match wrong.next() {
        None => Ok(()),
        Some(first) => Err(format!("{first} (and {} more)", wrong.count())),
    }
}

/// Whether a node is initialised.
pub fn is_initialized(node: &Node) -> Result<(), String> {
    let (tainted, id, known) =
        (is_tainted(node, UNINITIALIZED_TAINT), provider_id(node), addresses(node));
    if !tainted && id.is_some() && !known.is_empty() {
        return Ok(());
    }
    Err(format!("tainted: {tainted}, provider ID: {id:?}, addresses: {known:?}"))
}
