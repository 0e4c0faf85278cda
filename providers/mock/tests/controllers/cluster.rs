//! The whole manager against an API server and a cloud in this process, all in virtual time.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    config::{self, Invocation},
    manager::{ClientFactory, Explanations, Manager, ManagerError, ManagerExit},
    provider::CloudProvider,
    runtime::{events::WallClock, health::Health},
};
use ccm_mock::{
    CloudConfig, MockCloud, MockProvider,
    cloud::{CallHook, Fault, FaultError, FaultSpec, InstanceSpec, Operation},
    manager,
};
use ccm_testkit::{
    apiserver::{ApiServer, Change, LogEntry, Match, Options, User, resources},
    hooks::Hooks,
    kubelet::{KubeletOptions, Kubelets, NodeSpec, UNINITIALIZED_TAINT},
};
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

/// Part of the user agent of every client of the process under test.
pub(crate) const AGENT: &str = "ccm-mock";
/// Flags of every test: nobody else wants to lead, and the client's own rate limit is not the
/// subject.
const FLAGS: [&str; 4] = [
    "--cloud-provider=mock",
    "--leader-elect=false",
    "--kube-api-qps=10000",
    "--kube-api-burst=10000",
];
/// Unless the test says otherwise. Lists given twice add up, so this is not among the flags of
/// every test.
const CONTROLLERS: &str = "--controllers=cloud-node,cloud-node-lifecycle";
const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";
const NODES: (&str, &str) = ("", "nodes");

/// A cluster, its cloud and its kubelets.
pub(crate) struct TestCluster {
    pub(crate) server: ApiServer,
    pub(crate) cloud: MockCloud,
    pub(crate) kubelets: Kubelets,
    /// Around every write of the process under test.
    pub(crate) hooks: Hooks,
    /// Version of the store before anything happened.
    begin: u64,
    config: CloudConfig,
}

/// A running manager. Dropping it stops it at once.
pub(crate) struct Ccm {
    pub(crate) registry: Registry,
    /// What it printed.
    pub(crate) printed: Arc<Mutex<Vec<String>>>,
    pub(crate) health: Health,
    pub(crate) explanations: Explanations,
    stop: CancellationToken,
    task: JoinHandle<Result<ManagerExit, ManagerError>>,
}

impl TestCluster {
    /// A world whose cloud has this configuration (YAML). Must be called inside a runtime.
    pub(crate) fn new(cloud: &str) -> Self {
        let config = CloudConfig::parse("cloud", cloud).expect("cloud config of the test");
        let server = ApiServer::new(Options {
            history_limit: 100_000,
            log_limit: 100_000,
            ..Options::default()
        });
        Self {
            cloud: MockCloud::new(&config).expect("cloud of the test"),
            kubelets: Kubelets::new(server.client(), KubeletOptions::default()),
            hooks: Hooks::new(),
            begin: server.store().version(),
            server,
            config,
        }
    }

    /// Another cluster in the same cloud, without objects.
    pub(crate) fn beside(&self) -> Self {
        let mut other = Self::provisioned();
        other.cloud = self.cloud.clone();
        other
    }

    /// A world where every node has an instance.
    pub(crate) fn provisioned() -> Self {
        Self::new("region: r1\nzones: [r1a]\ninstanceType: m.large\nautoProvision: true\n")
    }

    /// Starts the manager with the mock provider and more flags.
    pub(crate) fn start(&self, flags: &[&str]) -> Ccm {
        self.start_with(Arc::new(self.provider()), flags)
    }

    /// The mock provider, with the configuration of the cloud.
    pub(crate) fn provider(&self) -> MockProvider {
        MockProvider::new_in_process(self.cloud.clone()).with_config(&self.config)
    }

    /// Starts the manager with any provider.
    pub(crate) fn start_with(&self, provider: Arc<dyn CloudProvider>, flags: &[&str]) -> Ccm {
        let printed: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = printed.clone();
        let output = Arc::new(move |line: &str| {
            lines.lock().push(line.to_owned());
            Ok(())
        });
        let manager = self.manager(provider, flags).with_output(output);
        let (registry, health, stop) =
            (manager.registry(), manager.health(), CancellationToken::new());
        let explanations = manager.explanations();
        let task = tokio::spawn(manager.run(stop.clone()));
        Ccm { registry, printed, health, explanations, stop, task }
    }

    /// Makes a manager with any provider.
    pub(crate) fn manager(&self, provider: Arc<dyn CloudProvider>, flags: &[&str]) -> Manager {
        self.manager_as(User::admin(), provider, flags)
    }

    /// Makes a manager that acts as this user.
    pub(crate) fn manager_as(
        &self,
        user: User,
        provider: Arc<dyn CloudProvider>,
        flags: &[&str],
    ) -> Manager {
        let chosen = flags.iter().any(|flag| flag.starts_with("--controllers="));
        let controllers = (!chosen).then_some(&CONTROLLERS);
        let args = FLAGS
            .iter()
            .chain(controllers)
            .chain(flags)
            .map(|flag| std::ffi::OsString::from(*flag));
        let Invocation::Run(config) =
            config::parse(&manager::product(), args).expect("flags of the test")
        else {
            panic!("the flags of the test ask for help")
        };
        let (server, hooks) = (self.server.clone(), self.hooks.clone());
        let clients: ClientFactory = Arc::new(move |name| {
            server
                .client_builder()
                .user(user.clone())
                .user_agent(&format!("{AGENT}/test {name}"))
                .hooks(&hooks)
                .build()
        });
        let clock = self.server.clock().clone();
        Manager::with_clients(manager::product(), *config, provider, clients, "api.test")
            .with_clock(WallClock::new(move || clock.now()))
    }

    /// Registers nodes through their kubelets.
    pub(crate) async fn join(&self, names: impl IntoIterator<Item = impl Into<String>>) {
        self.kubelets
            .register_all(names.into_iter().map(NodeSpec::new))
            .await
            .expect("nodes join");
    }

    /// Sets the instance of a node, from JSON.
    pub(crate) fn put_instance(&self, node: &str, spec: Value) {
        let spec: InstanceSpec = serde_json::from_value(spec).expect("instance of the test");
        self.cloud
            .put_instance(node, spec)
            .expect("instance of the test");
    }

    /// Lets questions about instances fail: of one node or of all, until the faults are set again.
    pub(crate) fn fail_instances(&self, error: FaultError, node: Option<&str>) {
        self.cloud
            .set_faults(vec![instance_fault(error, node, None)]);
    }

    /// The node as the server has it, or null.
    pub(crate) fn node(&self, name: &str) -> Value {
        self.server
            .store()
            .get(NODES, "", name)
            .map_or(Value::Null, |object| object.value())
    }

    /// Changes a node as another client would, here and now.
    pub(crate) fn edit(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        edit_node(&self.server, name, edit);
    }

    /// Does something when the cloud has made up its mind about its `number`-th call and the answer
    /// is on its way.
    pub(crate) fn after_cloud_call(&self, number: u64, act: impl Fn() + Send + Sync + 'static) {
        self.cloud
            .set_hook(Some(Arc::new(AfterCall { number, act })));
    }

    /// Every version that any node ever had, in order; those of a kind of change.
    pub(crate) fn history(&self) -> Vec<(Change, Value)> {
        self.history_of(NODES)
    }

    /// Every version that anything of a resource ever had, in order.
    pub(crate) fn history_of(
        &self,
        resource: (&'static str, &'static str),
    ) -> Vec<(Change, Value)> {
        let backlog = self
            .server
            .store()
            .backlog(resource, self.begin, usize::MAX)
            .expect("history is kept");
        backlog
            .events
            .iter()
            .map(|event| (event.change, event.object.value()))
            .collect()
    }

    /// What the process under test wrote and what took effect: `verb resource name`, in order,
    /// events last component only.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.write_log(Match::any())
            .iter()
            .map(|entry| line(entry))
            .collect()
    }

    /// Writes to nodes alone.
    pub(crate) fn node_writes(&self) -> Vec<String> {
        self.write_log(Match::resource("nodes"))
            .iter()
            .map(|entry| line(entry))
            .collect()
    }

    /// Writes of the process under test that took effect.
    pub(crate) fn write_log(&self, matching: Match) -> Vec<Arc<LogEntry>> {
        self.server.log().writes(&matching.user_agent(AGENT))
    }

    /// Events about nodes: reason and number of occurrences, in order of creation.
    pub(crate) fn events(&self) -> Vec<(String, u64)> {
        self.events_about("Node")
    }

    /// Events about objects of a kind: reason and number of occurrences, in order of creation.
    pub(crate) fn events_about(&self, kind: &str) -> Vec<(String, u64)> {
        let (mut objects, _) = self.server.store().list(("", "events"), None);
        objects.sort_by_key(|object| object.version);
        let events = objects.iter().map(|object| object.value());
        let about = events.filter(|event| event["involvedObject"]["kind"] == kind);
        about
            .map(|event| {
                (
                    event["reason"].as_str().unwrap_or_default().to_owned(),
                    event["count"].as_u64().unwrap_or(0),
                )
            })
            .collect()
    }

    /// Number of events with this reason, repetitions counted.
    pub(crate) fn event_count(&self, reason: &str) -> u64 {
        self.events()
            .iter()
            .filter(|(known, _)| known == reason)
            .map(|(_, count)| count)
            .sum()
    }

    /// Waits for a state of the world, at most so long; returns how long it took.
    pub(crate) async fn until(
        &self,
        what: &str,
        limit: Duration,
        mut is_so: impl FnMut() -> bool,
    ) -> Duration {
        let start = Instant::now();
        let mut changed = self.server.store().subscribe(NODES);
        let wait = async {
            while !is_so() {
                tokio::select! {
                    _ = changed.changed() => {}
                    () = tokio::time::sleep(Duration::from_millis(100)) => {}
                }
            }
        };
        assert!(tokio::time::timeout(limit, wait).await.is_ok(), "not within {limit:?}: {what}");
        start.elapsed()
    }

    /// Waits until these nodes have lost the taint.
    pub(crate) async fn until_initialized(
        &self,
        names: &[impl AsRef<str>],
        limit: Duration,
    ) -> Duration {
        let mut left: Vec<&str> = names.iter().map(AsRef::as_ref).rev().collect();
        let all = || {
            while left
                .last()
                .is_some_and(|name| is_initialized(&self.node(name)))
            {
                left.pop();
            }
            left.is_empty()
        };
        self.until("nodes are initialised", limit, all).await
    }

    /// Fails if any node was ever without the taint and without addresses.
    pub(crate) fn assert_never_untainted_without_addresses(&self) {
        for (_, node) in self.history() {
            assert!(
                !is_initialized(&node) || !addresses(&node).is_empty(),
                "untainted without addresses: {node}"
            );
        }
    }
}

struct AfterCall<F> {
    number: u64,
    act: F,
}

#[async_trait]
impl<F: Fn() + Send + Sync> CallHook for AfterCall<F> {
    async fn before(&self, _: u64, _: Operation) {}

    async fn after(&self, number: u64, _: Operation) {
        if number == self.number {
            (self.act)();
        }
    }
}

impl Ccm {
    /// Stops the manager in order and returns how it ended.
    pub(crate) async fn stop(mut self) -> ManagerExit {
        self.stop.cancel();
        (&mut self.task)
            .await
            .expect("the manager does not panic")
            .expect("the manager does not fail")
    }

    /// Waits until the manager ends by itself.
    pub(crate) async fn ended(mut self) -> Result<ManagerExit, ManagerError> {
        (&mut self.task).await.expect("the manager does not panic")
    }

    /// Tells whether it still runs.
    pub(crate) fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// The value of a counter or gauge with these labels; of a histogram the number of
    /// observations. Absent is zero.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let families = self.registry.gather();
        let metrics = families
            .iter()
            .filter(|family| family.name() == name)
            .flat_map(prometheus::proto::MetricFamily::get_metric);
        let fits = |metric: &&prometheus::proto::Metric| {
            labels.iter().all(|(key, value)| {
                metric
                    .get_label()
                    .iter()
                    .any(|l| l.name() == *key && l.value() == *value)
            })
        };
        metrics
            .filter(fits)
            .map(|metric| {
                let observed = metric.get_histogram().get_sample_count() as f64;
                metric.get_counter().get_value() + metric.get_gauge().get_value() + observed
            })
            .sum()
    }
}

impl Drop for Ccm {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

/// A fault of questions about instances: of one node or of all, so often or always.
pub(crate) fn instance_fault(error: FaultError, node: Option<&str>, times: Option<u64>) -> Fault {
    let spec = FaultSpec {
        operation: Some(Operation::DescribeInstances),
        error: Some(error),
        times,
        object: node.map(str::to_owned),
        ..FaultSpec::default()
    };
    Fault::new(spec).expect("fault of the test")
}

/// Changes a node as another client would, from a hook.
pub(crate) fn edit_node(server: &ApiServer, name: &str, edit: impl FnOnce(&mut Value)) {
    let def = resources::find("", "v1", "nodes").expect("nodes are served");
    server.store().write(|tx| {
        let mut node = tx.get(NODES, "", name).expect("the node is there").value();
        edit(&mut node);
        tx.put(def, node);
    });
}

fn line(entry: &LogEntry) -> String {
    let request = &entry.request;
    format!("{} {} {}", request.verb, request.target(), request.name)
        .trim_end()
        .to_owned()
}

/// Tells whether the node is there and without the taint.
pub(crate) fn is_initialized(node: &Value) -> bool {
    !node.is_null() && !taints(node).contains(&UNINITIALIZED_TAINT)
}

/// Keys of the node's taints, save the one that every new node gets from the server and keeps here.
pub(crate) fn taints(node: &Value) -> Vec<&str> {
    let keys = node["spec"]["taints"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|taint| taint["key"].as_str());
    keys.filter(|key| *key != NOT_READY_TAINT).collect()
}

/// Addresses of the node, `Type=address`.
pub(crate) fn addresses(node: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = node["status"]["addresses"].as_array().into_iter().flatten();
    list.map(|address| format!("{}={}", text(&address["type"]), text(&address["address"])))
        .collect()
}

/// An initialised node with an instance of that name, as its kubelet registers it.
pub(crate) fn initialized(name: &str) -> NodeSpec {
    NodeSpec::new(name)
        .initialized()
        .provider_id(format!("mock://r1/{name}"))
}

/// A label of the node.
pub(crate) fn label<'a>(node: &'a Value, key: &str) -> Option<&'a str> {
    node["metadata"]["labels"][key].as_str()
}

/// An InternalIP.
pub(crate) fn internal(address: &str) -> Value {
    json!({"type": "InternalIP", "address": address})
}

/// Seconds.
pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
