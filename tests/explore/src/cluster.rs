//! A cluster, its cloud, its kubelets, and the processes under test.

use std::{ffi::OsString, sync::Arc, time::Duration};

use ccm_core::{
    config::{self, Invocation},
    manager::{ClientFactory, Manager, ManagerError},
    provider::CloudProvider,
    runtime::events::WallClock,
};
use ccm_mock::{
    CloudConfig, MockCloud, MockProvider,
    cloud::{Fault, FaultError, FaultSpec, InstanceSpec, Operation, PowerState},
    manager,
};
use ccm_testkit::{
    apiserver::{Action, ApiServer, Match, Options, resources},
    kubelet::{KubeletOptions, Kubelets, NodeSpec, Ready},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    api_connection::ApiConnection,
    cloud::InterceptedCloud,
    cluster_conditions::Way,
    interceptor::Interceptor,
    invariants::InvariantChecker,
    mutants::{Bug, MutantClient},
    process::Process,
    scenario::Scenario,
};

/// Cluster IPs of both families, so that a Service can have either.
const RANGES: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];
const FLAGS: [&str; 3] =
    ["--cloud-provider=mock", "--kube-api-qps=10000", "--kube-api-burst=10000"];
/// How soon a process that ended is started again.
const RESTART: Duration = Duration::from_secs(1);
/// How long a scenario waits for a leader.
const WAIT: Duration = Duration::from_secs(600);

/// One cluster with its cloud, for one run.
pub struct SimulatedCluster {
    /// The API server.
    pub server: ApiServer,
    /// The cloud.
    pub cloud: MockCloud,
    /// The nodes' kubelets.
    pub kubelets: Kubelets,
    /// Where all requests of the processes pass.
    pub seam: Interceptor,
    /// What stands between them and the API server besides.
    pub way: Way,
    /// Who sees all changes.
    pub witness: InvariantChecker,
    /// The scenario.
    pub scenario: &'static Scenario,
    bug: Option<Bug>,
    config: CloudConfig,
    /// Processes so far, each with what ends it in order and for good.
    processes: Mutex<Vec<(Arc<Process>, CancellationToken)>>,
    /// Ends of processes that nobody asked for.
    ends: Mutex<Vec<String>>,
    /// Services that were taken out, as they were.
    taken: Mutex<Vec<Value>>,
}

impl SimulatedCluster {
    /// The world of a scenario before anything happened. Must be called inside a runtime.
    ///
    /// # Errors
    /// The scenario's configuration of the cloud cannot be used.
    pub fn new(scenario: &'static Scenario, bug: Option<Bug>) -> Result<Self, String> {
        let text = format!("region: r1\nzones: [r1a]\nautoProvision: true\n{}", scenario.cloud);
        let config = CloudConfig::parse("cloud", &text).map_err(|error| error.to_string())?;
        let cloud = MockCloud::new(&config).map_err(|error| error.to_string())?;
        let service_ranges = RANGES
            .iter()
            .filter_map(|range| range.parse().ok())
            .collect();
        let server = ApiServer::new(Options {
            history_limit: 100_000,
            service_ranges,
            ..Options::default()
        });
        let witness = InvariantChecker::new(server.clone(), cloud.clone());
        Ok(Self {
            kubelets: Kubelets::new(server.client(), KubeletOptions::default()),
            seam: Interceptor::new(server.clone(), witness.clone()),
            witness,
            server,
            cloud,
            scenario,
            bug,
            config,
            processes: Mutex::default(),
            way: Way::default(),
            ends: Mutex::default(),
            taken: Mutex::default(),
        })
    }

    /// Starts as many processes as the scenario has, and starts each again when it ends, until
    /// stopped.
    pub fn run_processes(self: &Arc<Self>) -> Running {
        let stop = CancellationToken::new();
        let mut slots = JoinSet::new();
        for _ in 0..self.scenario.processes {
            slots.spawn(keep_running(self.clone(), stop.clone()));
        }
        Running { stop, slots }
    }

    fn start(
        &self,
        stop: &CancellationToken,
    ) -> (Arc<Process>, JoinHandle<Result<(), ManagerError>>) {
        let process = {
            let mut processes = self.processes.lock();
            let process = Arc::new(Process::new(processes.len() + 1));
            processes.push((process.clone(), stop.clone()));
            process
        };
        let (seam, witness, lies) =
            (self.seam.clone(), self.witness.clone(), MutantClient::of(self.bug));
        let reach = InterceptedCloud {
            cloud: self.cloud.clone(),
            process: process.clone(),
            seam: seam.clone(),
            witness: witness.clone(),
            bug: self.bug,
        };
        let provider = MockProvider::new_in_process(self.cloud.clone())
            .with_config(&self.config)
            .with_api(Arc::new(reach));
        let provider: Arc<dyn CloudProvider> = match self.bug {
            Some(bug) => bug.in_provider(Arc::new(provider)),
            None => Arc::new(provider),
        };
        let (server, way) = (self.server.clone(), self.way.clone());
        let wire = ApiConnection { server, process: process.clone(), seam, way, witness, lies };
        let clients: ClientFactory = Arc::new(move |_| wire.clone().client());
        let clock = self.server.clock().clone();
        let elect = format!("--leader-elect={}", self.scenario.is_elected());
        let flags = FLAGS
            .iter()
            .copied()
            .chain([&*elect])
            .chain(self.scenario.flags.iter().copied());
        let parsed = config::parse(&manager::product(), flags.map(OsString::from));
        let stop = stop.clone();
        let task = tokio::spawn(async move {
            let config = match parsed {
                Ok(Invocation::Run(config)) => *config,
                other => unreachable!("flags of the scenario: {other:?}"),
            };
            let manager =
                Manager::with_clients(manager::product(), config, provider, clients, "api.test")
                    .with_clock(WallClock::new(move || clock.now()));
            manager.run(stop).await.map(drop)
        });
        (process, task)
    }

    /// Ends of processes that nobody asked for.
    pub fn ends(&self) -> Vec<String> {
        self.ends.lock().clone()
    }

    /// The number of a process that does not lead beside one that does, when there is one.
    ///
    /// # Errors
    /// There is none for long.
    pub async fn standby(&self) -> Result<usize, String> {
        let standby = |world: &Self| {
            let leader = world.leader()?;
            let processes = world.processes.lock();
            let mut others = processes
                .iter()
                .filter(|(process, _)| process.number != leader && process.is_alive());
            others.next_back().map(|(process, _)| process.number)
        };
        self.until(WAIT, |world| {
            standby(world)
                .is_none()
                .then(|| "there is no leader and standby".to_owned())
        })
        .await?;
        standby(self).ok_or_else(|| "the standby is gone".to_owned())
    }

    /// Stops the process that leads, in order and for good, as when a replica is taken away.
    ///
    /// # Errors
    /// None leads for long.
    pub async fn take_away_leader(&self) -> Result<(), String> {
        self.until(WAIT, |world| {
            world
                .leader()
                .is_none()
                .then(|| "no process leads".to_owned())
        })
        .await?;
        let leader = self.leader();
        let processes = self.processes.lock();
        let (_, stop) = processes
            .iter()
            .find(|(process, _)| Some(process.number) == leader)
            .ok_or("it ended")?;
        stop.cancel();
        Ok(())
    }

    /// The number of the process that holds the lease and lives.
    fn leader(&self) -> Option<usize> {
        let holder = self.witness.holder()?;
        let holds = |process: &Process| {
            process
                .tenure()
                .is_some_and(|tenure| tenure.identity == holder)
        };
        let processes = self.processes.lock();
        let mut living = processes
            .iter()
            .filter(|(process, stop)| process.is_alive() && !stop.is_cancelled());
        living
            .find(|(process, _)| holds(process))
            .map(|(process, _)| process.number)
    }

    /// Registers a node that has an instance.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn join(&self, spec: NodeSpec) -> Result<(), String> {
        self.kubelets
            .register(spec)
            .await
            .map_err(|error| format!("{error:?}"))?;
        self.witness.check_changes(None);
        Ok(())
    }

    /// Deletes the instance of a node, whose kubelet falls silent.
    ///
    /// # Errors
    /// There is no such node.
    pub async fn destroy(&self, node: &str) -> Result<(), String> {
        self.cloud.delete_instance(node);
        self.silence(node).await
    }

    /// Stops the instance of a node or starts it again.
    ///
    /// # Errors
    /// There is no such node.
    pub async fn power(&self, node: &str, state: PowerState) -> Result<(), String> {
        let instance = self
            .cloud
            .instance(node)
            .ok_or_else(|| format!("node {node} has no instance"))?;
        let spec = InstanceSpec { power_state: Some(state), ..InstanceSpec::from(instance) };
        self.cloud
            .put_instance(node, spec)
            .map_err(|error| error.to_string())?;
        if state != PowerState::Running {
            return self.silence(node).await;
        }
        self.kubelets
            .set_ready(node, Ready::True)
            .await
            .map_err(|error| format!("{error:?}"))?;
        self.witness.check_changes(None);
        Ok(())
    }

    /// Has the cloud say of every instance that it is not there, as with the credentials of another
    /// project, or ends that.
    ///
    /// # Errors
    /// There is none.
    pub fn deny_instances(&self, deny: bool) -> Result<(), String> {
        let all = FaultSpec {
            operation: Some(Operation::DescribeInstances),
            error: Some(FaultError::NotFound),
            ..FaultSpec::default()
        };
        let faults = if deny {
            vec![Fault::new(all).map_err(|error| error.to_string())?]
        } else {
            Vec::new()
        };
        self.cloud.set_faults(faults);
        Ok(())
    }

    /// Lets a node's kubelet fall silent, as when its machine is gone.
    ///
    /// # Errors
    /// There is no such node.
    pub async fn silence(&self, node: &str) -> Result<(), String> {
        self.kubelets
            .set_ready(node, Ready::Unknown)
            .await
            .map_err(|error| format!("{error:?}"))?;
        self.witness.check_changes(None);
        Ok(())
    }

    /// Deletes a Node, as an operator does who takes it out of the cluster.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn delete_node(&self, name: &str) -> Result<(), String> {
        drop(self.kubelets.stop_node(name));
        self.request("DELETE", &format!("/api/v1/nodes/{name}"), Value::Null)
            .await
    }

    /// Deletes a Node that may be gone by now.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn delete_node_if_there(&self, name: &str) -> Result<(), String> {
        match self.server.store().get(("", "nodes"), "", name) {
            Some(_) => self.delete_node(name).await,
            None => {
                drop(self.kubelets.stop_node(name));
                Ok(())
            }
        }
    }

    /// Merges into a Node.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn patch_node(&self, name: &str, patch: Value) -> Result<(), String> {
        self.request("PATCH", &format!("/api/v1/nodes/{name}"), patch)
            .await
    }

    /// Creates a Service with one port.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn create_service(&self, name: &str) -> Result<(), String> {
        self.serve_with(name, json!({})).await
    }

    /// Creates a Service with one port and more in its spec.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn serve_with(&self, name: &str, more: Value) -> Result<(), String> {
        let mut spec = json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
        if let (Some(spec), Value::Object(more)) = (spec.as_object_mut(), more) {
            spec.extend(more);
        }
        let body = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
        self.request("POST", "/api/v1/namespaces/default/services", body)
            .await
    }

    /// Merges into a Service.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn patch_service(&self, name: &str, patch: Value) -> Result<(), String> {
        self.request("PATCH", &format!("/api/v1/namespaces/default/services/{name}"), patch)
            .await
    }

    /// Deletes a Service.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn delete_service(&self, name: &str) -> Result<(), String> {
        self.request("DELETE", &format!("/api/v1/namespaces/default/services/{name}"), Value::Null)
            .await
    }

    /// Deletes a Service of type ClusterIP, which becomes LoadBalancer just after the server has
    /// looked for finalizers. It carries the deletion out this much later, whatever finalizer the
    /// Service has been given in between.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn serve_unheld(&self, name: &str, late: Duration) -> Result<(), String> {
        self.serve_with(name, json!({"type": "ClusterIP"})).await?;
        self.witness.expect_unheld(name);
        let this = Match::resource("services").verb("delete").name(name);
        self.server
            .faults()
            .add_times(this, Action::LateDelete(late), 1);
        let change = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.patch_service(name, json!({"spec": {"type": "LoadBalancer"}}))
                .await
        };
        tokio::try_join!(self.delete_service(name), change).map(drop)
    }

    /// Merges into the status of a Service, as its controller does.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn patch_service_status(&self, name: &str, patch: Value) -> Result<(), String> {
        self.request("PATCH", &format!("/api/v1/namespaces/default/services/{name}/status"), patch)
            .await
    }

    /// Takes a Service out of the store whatever holds it there, as when its finalizers were taken
    /// off by hand, or the store was restored from before there was such a Service.
    ///
    /// # Errors
    /// There is none.
    pub fn remove_from_store(&self, name: &str) -> Result<(), String> {
        let kind = resources::find("", "v1", "services").ok_or("services are not served")?;
        let service = self.server.store().write(|tx| {
            let service = tx.get(("", "services"), "default", name)?;
            tx.remove(kind, &service, service.value());
            Some(service.value())
        });
        self.taken
            .lock()
            .push(service.ok_or(format!("there is no Service {name}"))?);
        self.witness.check_changes(None);
        Ok(())
    }

    /// Puts back a Service that was taken out: the same one, by its UID.
    ///
    /// # Errors
    /// None of this name was taken out.
    pub fn put_back(&self, name: &str) -> Result<(), String> {
        let kind = resources::find("", "v1", "services").ok_or("services are not served")?;
        let mut taken = self.taken.lock();
        let at = taken
            .iter()
            .position(|service| service["metadata"]["name"] == name);
        let service = taken.swap_remove(at.ok_or(format!("Service {name} was not taken out"))?);
        drop(taken);
        self.server.store().write(|tx| tx.put(kind, service));
        self.witness.check_changes(None);
        Ok(())
    }

    /// Takes its pod networks from a Node, as when the store was restored from before it had any.
    ///
    /// # Errors
    /// There is none.
    pub fn take_networks(&self, name: &str) -> Result<(), String> {
        let kind = resources::find("", "v1", "nodes").ok_or("nodes are not served")?;
        self.server.store().write(|tx| {
            let mut node = tx
                .get(("", "nodes"), "", name)
                .ok_or(format!("there is no Node {name}"))?
                .value();
            let spec = node["spec"]
                .as_object_mut()
                .ok_or(format!("Node {name} has no spec"))?;
            spec.retain(|key, _| !key.starts_with("podCIDR"));
            tx.put(kind, node);
            Ok::<_, String>(())
        })?;
        self.witness.check_changes(None);
        Ok(())
    }

    async fn request(&self, method: &str, path: &str, body: Value) -> Result<(), String> {
        let content = if method == "PATCH" {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content);
        let request = request
            .body(kube::client::Body::from(bytes))
            .map_err(|error| error.to_string())?;
        let answer = self
            .server
            .client()
            .send(request)
            .await
            .map_err(|error| error.to_string())?;
        self.witness.check_changes(None);
        match answer.status().is_success() {
            true => Ok(()),
            false => Err(format!("{method} {path}: {}", answer.status())),
        }
    }

    /// Waits until this is so, and returns what is still wrong after `limit`.
    ///
    /// # Errors
    /// The last thing that was wrong.
    pub async fn until(
        &self,
        limit: Duration,
        wrong: impl Fn(&Self) -> Option<String>,
    ) -> Result<(), String> {
        let end = self.seam.now() + limit;
        let mut pause = Duration::from_millis(100);
        while let Some(wrong) = wrong(self) {
            if self.seam.now() >= end {
                return Err(format!("after {} s: {wrong}", limit.as_secs()));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 11 / 10).min(Duration::from_secs(2));
        }
        Ok(())
    }

    /// All objects of a kind.
    pub fn objects(&self, kind: &'static str) -> Vec<Value> {
        self.server
            .store()
            .list(("", kind), None)
            .0
            .iter()
            .map(|object| object.value())
            .collect()
    }
}

/// Processes that run. Dropping it ends them at once.
pub struct Running {
    stop: CancellationToken,
    slots: JoinSet<()>,
}

impl Running {
    /// Stops them in order.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.slots.join_next().await.is_some() {}
    }
}

async fn keep_running(world: Arc<SimulatedCluster>, stop: CancellationToken) {
    while !stop.is_cancelled() {
        let own = stop.child_token();
        let (process, task) = world.start(&own);
        let mut task = AbortOnDrop(task);
        tokio::select! {
            () = process.crashed() => {}
            end = &mut task.0 => match end {
                Ok(_) if own.is_cancelled() => return process.crash(),
                Ok(Ok(())) => world.ends.lock().push(format!("process {} ended", process.number)),
                Ok(Err(error)) => world.ends.lock().push(format!("process {}: {error}", process.number)),
                Err(error) => world.witness.report(None, &format!("process {} panicked: {error}", process.number)),
            },
        }
        // What it has begun does not go on, and nothing that it asks for happens.
        process.crash();
        drop(task);
        if stop
            .run_until_cancelled(tokio::time::sleep(RESTART))
            .await
            .is_none()
        {
            return;
        }
    }
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
