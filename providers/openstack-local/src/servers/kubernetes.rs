//! A Kubernetes cluster: simulated kubelets, and the node ports of its Services.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ccm_testkit::kubelet::{KubeletError, KubeletOptions, Kubelets, NodeSpec, Ready};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, future::BoxFuture};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    RETRY,
    cluster::{Cluster, Ports, Transport},
};

/// Label of Nodes with the ID of their server. A Node without it belongs to somebody else.
const SERVER: &str = "openstack-local/server";
/// Interval between two renewals of a node's Lease, as of a kubelet.
const LEASE: Duration = Duration::from_secs(10);
/// Timeout for reporting that a node is off.
const LEAVE: Duration = Duration::from_secs(10);
/// Delay between two watches.
const PAUSE: Duration = Duration::from_millis(200);

/// Why the cluster cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the kubeconfig {path}")]
pub struct KubeconfigError {
    path: PathBuf,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// A Kubernetes cluster. Required permissions: get, create and patch Nodes and their status; get,
/// create and update Leases in `kube-node-lease`; list and watch Services.
pub struct Kubernetes {
    nodes: Api<Node>,
    services: Api<Service>,
    kubelets: Kubelets,
    /// ID of the server by the node's name, for servers that are nodes or may be.
    joined: Mutex<BTreeMap<String, String>>,
    ports: watch::Sender<Arc<Ports>>,
}

impl std::fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kubernetes")
            .field("nodes", &self.kubelets.names())
            .finish_non_exhaustive()
    }
}

/// Node ports by Service.
type ByService = BTreeMap<String, Ports>;

impl Kubernetes {
    /// Creates one that is reached by this client.
    pub fn new(client: Client) -> Self {
        let options = KubeletOptions { lease_period: Some(LEASE), ..KubeletOptions::default() };
        Self {
            nodes: Api::all(client.clone()),
            services: Api::all(client.clone()),
            kubelets: Kubelets::new(client, options),
            joined: Mutex::default(),
            ports: watch::Sender::default(),
        }
    }

    /// Creates one that is reached by a kubeconfig. It need not answer yet.
    ///
    /// # Errors
    /// The file cannot be read, or is invalid.
    pub async fn from_kubeconfig(path: &Path) -> Result<Self, KubeconfigError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
            let path = path.to_owned();
            KubeconfigError { path, source }
        };
        let kubeconfig = Kubeconfig::read_from(path).map_err(|error| failed(error.into()))?;
        let config =
            kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.map_err(|error| failed(error.into()))?);
        Ok(Self::new(client.map_err(|error| failed(error.into()))?))
    }

    /// Keeps the ports up to date as long as the watches succeed.
    async fn follow(&self) -> kube::Result<()> {
        let list = self.services.list(&ListParams::default()).await?;
        let mut version = list.metadata.resource_version.unwrap_or_default();
        let mut known: ByService = list.items.iter().map(entry).collect();
        loop {
            self.publish(&known);
            let mut events = self
                .services
                .watch(&WatchParams::default(), &version)
                .await?
                .boxed();
            while let Some(event) = events.try_next().await? {
                match event {
                    WatchEvent::Added(service) | WatchEvent::Modified(service) => {
                        version = service.resource_version().unwrap_or(version);
                        known.extend([entry(&service)]);
                        self.publish(&known);
                    }
                    WatchEvent::Deleted(service) => {
                        version = service.resource_version().unwrap_or(version);
                        known.remove(&entry(&service).0);
                        self.publish(&known);
                    }
                    WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                    WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
                }
            }
            sleep(PAUSE).await;
        }
    }

    fn publish(&self, known: &ByService) {
        let all: Ports = known
            .values()
            .flatten()
            .map(|(port, what)| (*port, what.clone()))
            .collect();
        self.ports.send_if_modified(|ports| {
            let differs = **ports != all;
            if differs {
                *ports = Arc::new(all);
            }
            differs
        });
    }

    async fn try_join(&self, name: &str, server: &str) -> Result<(), String> {
        let chain = |error: &dyn std::error::Error| {
            let mut text = error.to_string();
            let mut cause = error.source();
            while let Some(error) = cause {
                text = format!("{text}: {error}");
                cause = error.source();
            }
            text
        };
        let other = self
            .joined
            .lock()
            .get(name)
            .filter(|other| *other != server)
            .cloned();
        if let Some(other) = other {
            return Err(format!("the server {other} is the node {name} already"));
        }
        let node = self
            .nodes
            .get_opt(name)
            .await
            .map_err(|error| chain(&error))?;
        if node.is_some_and(|node| !is_of(&node, server)) {
            return Err(format!(
                "the Node {name} is not this server's: it lacks the label {SERVER}={server}"
            ));
        }
        self.joined
            .lock()
            .insert(name.to_owned(), server.to_owned());
        match self
            .kubelets
            .register(NodeSpec::new(name).label(SERVER, server))
            .await
        {
            Ok(()) | Err(KubeletError::Running(_)) => Ok(()),
            Err(error) => Err(chain(&error)),
        }
    }

    async fn try_leave(&self, name: &str, server: &str) {
        if self
            .joined
            .lock()
            .get(name)
            .is_none_or(|joined| joined != server)
        {
            return;
        }
        // In a cluster with a kube-controller-manager, that would set the status after 40 seconds
        // without a heartbeat.
        match timeout(LEAVE, self.kubelets.set_ready(name, Ready::Unknown)).await {
            Ok(Ok(())) => {}
            // Somebody has deleted it.
            Ok(Err(KubeletError::Api { source: kube::Error::Api(status), .. }))
                if status.code == 404 => {}
            _ => {
                tracing::warn!(node = name, "the cluster could not be told that the server is off");
            }
        }
        drop(self.kubelets.stop_node(name));
        self.joined.lock().remove(name);
    }
}

fn is_of(node: &Node, server: &str) -> bool {
    node.labels()
        .get(SERVER)
        .is_some_and(|label| label == server)
}

/// Returns a Service's name and node ports.
fn entry(service: &Service) -> (String, Ports) {
    let name = format!("{}/{}", service.namespace().unwrap_or_default(), service.name_any());
    let mut ports = Ports::new();
    let number = |port: i32| u16::try_from(port).ok().filter(|port| *port > 0);
    for port in service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten())
    {
        let transport = match port.protocol.as_deref() {
            None | Some("TCP") => Transport::Tcp,
            Some("UDP") => Transport::Udp,
            Some(_) => continue,
        };
        if let Some(number) = port.node_port.and_then(number) {
            ports.insert((transport, number), name.clone());
        }
    }
    let health = service
        .spec
        .as_ref()
        .and_then(|spec| spec.health_check_node_port)
        .and_then(number);
    if let Some(number) = health {
        ports.insert((Transport::Tcp, number), format!("the health of {name}"));
    }
    (name, ports)
}

impl Cluster for Kubernetes {
    fn ports(&self) -> watch::Receiver<Arc<Ports>> {
        self.ports.subscribe()
    }

    fn join<'a>(&'a self, name: &'a str, server: &'a str) -> BoxFuture<'a, Result<(), String>> {
        self.try_join(name, server).boxed()
    }

    fn leave<'a>(&'a self, name: &'a str, server: &'a str) -> BoxFuture<'a, ()> {
        self.try_leave(name, server).boxed()
    }

    /// While the cluster does not answer, the ports stay as they were, as with kube-proxy.
    fn run(&self, cancel: CancellationToken) -> BoxFuture<'_, ()> {
        async move {
            let mut failing = false;
            let follow = async {
                loop {
                    if let Err(error) = self.follow().await {
                        if !failing {
                            tracing::warn!(%error, "the cluster's Services cannot be watched; trying again");
                        }
                        failing = true;
                    }
                    sleep(RETRY).await;
                }
            };
            let _ = cancel.run_until_cancelled(follow).await;
        }
        .boxed()
    }
}
