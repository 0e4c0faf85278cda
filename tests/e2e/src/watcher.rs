//! Watches all nodes and Services of a server all the time: the state that scenarios wait on, and
//! the history that they are judged by.

mod follow;
mod services;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ccm_testkit::kubelet::UNINITIALIZED_TAINT;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Api;
use parking_lot::Mutex;
use tokio::sync::watch;

use self::follow::{WatchChange, follow};
use self::services::History;
pub use self::services::{Services, has_finalizer, ingress_addresses, wants_balancer};

/// Label that says whose cloud a node is in, before anybody has initialised it.
pub const REGION: &str = "topology.kubernetes.io/region";

/// Namespace of the Services of all scenarios.
pub const NAMESPACE: &str = "default";

/// Nodes by name.
pub type Nodes = BTreeMap<String, Arc<Node>>;

/// What was seen so far; cheap to clone, all clones are one.
#[derive(Clone)]
pub struct ClusterWatcher {
    shared: Arc<WatcherInner>,
}

struct WatcherInner {
    state: Mutex<WatcherState>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct WatcherState {
    nodes: Nodes,
    /// UIDs of nodes that were seen with the uninitialized taint.
    tainted: BTreeSet<String>,
    deleted: Vec<ObjectState>,
    exposed: Vec<ObjectState>,
    renetworked: Vec<ObjectState>,
    services: History,
}

/// An object in a state worth remembering.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectState {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl ClusterWatcher {
    /// An observer that has seen nothing; [`run`](Self::run) makes it look.
    #[expect(clippy::new_without_default, reason = "an observer is made to run")]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(WatcherInner {
                state: Mutex::default(),
                changed: watch::Sender::new(0),
            }),
        }
    }

    /// Watches for ever, over broken connections and expired positions.
    pub async fn run(self, client: kube::Client) {
        let nodes =
            follow(Api::<Node>::all(client.clone()), |news| self.change(|state| state.hear(news)));
        // Scenarios have their Services in one namespace, told apart by name like nodes.
        let services = Api::<Service>::namespaced(client, NAMESPACE);
        let services = follow(services, |news| self.change(|state| state.services.hear(news)));
        tokio::join!(nodes, services);
    }

    fn change(&self, change: impl FnOnce(&mut WatcherState)) {
        change(&mut self.shared.state.lock());
        self.shared.changed.send_modify(|count| *count += 1);
    }

    /// Resolves when something changed after the receiver last looked.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// The nodes whose names begin so, as last seen.
    pub fn nodes(&self, prefix: &str) -> Nodes {
        let state = self.shared.state.lock();
        state
            .nodes
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    /// Nodes with such names that were seen to go, in order.
    pub fn deleted(&self, prefix: &str) -> Vec<ObjectState> {
        self.shared
            .state
            .lock()
            .deleted
            .iter()
            .filter(|seen| seen.name.starts_with(prefix))
            .cloned()
            .collect()
    }

    /// Nodes with such names whose pod networks changed after they had been given, or were another
    /// living node's.
    pub fn renetworked(&self, prefix: &str) -> Vec<ObjectState> {
        self.shared
            .state
            .lock()
            .renetworked
            .iter()
            .filter(|seen| seen.name.starts_with(prefix))
            .cloned()
            .collect()
    }

    /// The Services whose names begin so, as last seen.
    pub fn services(&self, prefix: &str) -> Services {
        self.shared.state.lock().services.with_prefix(prefix)
    }

    /// How often each Service, by UID, ceased to want a load balancer: by its type, or because it
    /// was deleted.
    pub fn farewells(&self) -> BTreeMap<String, usize> {
        self.shared.state.lock().services.farewells.clone()
    }

    /// UIDs of Services that the server deleted although they had the finalizer. It reads an object
    /// and deletes it in a second step, unless a finalizer was on it at the first.
    pub fn unheld(&self) -> BTreeSet<String> {
        self.shared.state.lock().services.unheld.clone()
    }

    /// Services with such names that lost finalizer or address although they wanted a load balancer
    /// all along.
    pub fn bereft(&self, prefix: &str) -> Vec<ObjectState> {
        self.shared
            .state
            .lock()
            .services
            .bereft
            .iter()
            .filter(|seen| seen.name.starts_with(prefix))
            .cloned()
            .collect()
    }

    /// Nodes with such names that were once seen without their taint and without addresses: pods
    /// could have been scheduled to them.
    pub fn exposed(&self, prefix: &str) -> Vec<ObjectState> {
        self.shared
            .state
            .lock()
            .exposed
            .iter()
            .filter(|seen| seen.name.starts_with(prefix))
            .cloned()
            .collect()
    }
}

impl WatcherState {
    fn hear(&mut self, news: WatchChange<Node>) {
        match news {
            WatchChange::Here(node) => self.see(node),
            WatchChange::Gone(node) => self.forget(&node),
            WatchChange::All(list) => {
                let uids: BTreeSet<_> = list
                    .iter()
                    .filter_map(|node| node.metadata.uid.clone())
                    .collect();
                let gone = |node: &&Arc<Node>| {
                    node.metadata
                        .uid
                        .as_ref()
                        .is_some_and(|uid| !uids.contains(uid))
                };
                for node in self
                    .nodes
                    .values()
                    .filter(gone)
                    .cloned()
                    .collect::<Vec<_>>()
                {
                    self.forget(&node);
                }
                for node in list {
                    self.see(node);
                }
            }
        }
    }

    fn see(&mut self, node: Node) {
        let seen = ObjectState::of(&node.metadata);
        if is_tainted(&node, UNINITIALIZED_TAINT) {
            self.tainted.insert(seen.uid.clone());
        } else if self.tainted.contains(&seen.uid) && addresses(&node).is_empty() {
            self.exposed.push(seen.clone());
        }
        self.see_networks(&seen, &node);
        if let Some(old) = self.nodes.insert(seen.name.clone(), Arc::new(node)) {
            let old = ObjectState::of(&old.metadata);
            // Deleted and registered again between two looks.
            if old.uid != seen.uid {
                self.deleted.push(old);
            }
        }
    }

    fn see_networks(&mut self, seen: &ObjectState, node: &Node) {
        let cidrs = pod_cidrs(node);
        let before = self
            .nodes
            .get(&seen.name)
            .filter(|old| old.metadata.uid == node.metadata.uid);
        let before = before.map(|old| pod_cidrs(old)).unwrap_or_default();
        if before == cidrs {
            return;
        }
        // Nodes of other scenarios are in other clusters, as it were.
        let region = label(node, REGION);
        let mut others = self
            .nodes
            .iter()
            .filter(|(name, other)| **name != seen.name && label(other, REGION) == region);
        let taken =
            others.any(|(_, other)| pod_cidrs(other).iter().any(|cidr| cidrs.contains(cidr)));
        if taken || !before.is_empty() {
            self.renetworked.push(seen.clone());
        }
    }

    fn forget(&mut self, node: &Node) {
        let seen = ObjectState::of(&node.metadata);
        if self
            .nodes
            .get(&seen.name)
            .is_some_and(|known| known.metadata.uid == node.metadata.uid)
        {
            self.nodes.remove(&seen.name);
            self.deleted.push(seen);
        }
    }
}

impl ObjectState {
    fn of(metadata: &ObjectMeta) -> Self {
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
        }
    }
}

/// Whether the node has a taint with this key.
pub fn is_tainted(node: &Node, key: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.is_some_and(|taints| taints.iter().any(|taint| taint.key == key))
}

/// The node's addresses, as `type=address`.
pub fn addresses(node: &Node) -> Vec<String> {
    let list = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.as_ref());
    list.into_iter()
        .flatten()
        .map(|address| format!("{}={}", address.type_, address.address))
        .collect()
}

/// A label of the node.
pub fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// The node's pod networks.
pub fn pod_cidrs(node: &Node) -> Vec<String> {
    node.spec
        .as_ref()
        .and_then(|spec| spec.pod_cidrs.clone())
        .unwrap_or_default()
}

/// The node's provider ID.
pub fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref()
}

#[cfg(test)]
mod tests;
