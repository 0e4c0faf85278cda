//! JSON types of the cloud's API for load balancers.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ccm_core::k8s;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A load balancer as the admin API returns it. `ports`, `nodes` and `address` are short forms of
/// the listeners, members and addresses, for simple scripts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancer {
    /// Identifier that the cloud assigned; never reused.
    pub id: String,
    /// Name. The provider uses `a` and the UID of the Service without dashes, truncated to 32
    /// characters.
    pub name: String,
    /// Owner: value of `--cluster-name`.
    pub cluster: String,
    /// Owner: UID of the Service.
    pub uid: String,
    /// Service that it was created for, `namespace/name`.
    pub service: String,
    /// True if its owner has let go of it. It belongs to nobody then, and the owner is only shown as
    /// its last one.
    #[serde(default)]
    pub retained: bool,
    /// Lifecycle state.
    pub state: LoadBalancerState,
    /// Ports, in the order of the Service.
    pub ports: Vec<u16>,
    /// Names of the nodes among the members, sorted; empty if the members are endpoints.
    pub nodes: Arc<[String]>,
    /// First address.
    pub address: IpAddr,
    /// Addresses, one per family, in the order of the families.
    pub addresses: Vec<IpAddr>,
    /// The settings. In JSON, their keys are on the same level as the other keys.
    #[serde(flatten)]
    pub settings: LoadBalancerSettings,
    /// The members.
    pub members: Members,
    /// Number of the provider's requests that created or changed it. A request that changed nothing
    /// does not count.
    pub generation: u64,
}

/// Lifecycle state of a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadBalancerState {
    /// Being created; can be changed, carries no traffic.
    Provisioning,
    /// Carries traffic.
    Active,
    /// Being deleted; cannot be changed, and its name is not free yet.
    Deleting,
}

/// The settings of a load balancer: everything that a request can set except its members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerSettings {
    /// Listeners, in the order of the Service's ports.
    pub listeners: Vec<Listener>,
    /// Client networks that may connect; empty for all clients.
    pub source_ranges: Vec<IpNet>,
    /// Node port at which a node's health check reports whether the node has endpoints, for
    /// `externalTrafficPolicy: Local`.
    pub health_check_node_port: Option<u16>,
    /// Timeout of the session affinity in seconds; absent without affinity.
    pub affinity_seconds: Option<u64>,
    /// IP families, primary first; empty to let the cloud choose.
    pub families: Vec<Family>,
    /// Requested address.
    pub requested_address: Option<IpAddr>,
    /// Whether the load balancer is reachable only from the cloud's own network.
    pub internal: bool,
}

/// One listener of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// Protocol.
    pub protocol: Transport,
    /// Port.
    pub port: u16,
    /// Node port; absent if the Service has none.
    pub node_port: Option<u16>,
}

/// Transport protocol, spelled as in the Kubernetes API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl From<k8s::Protocol> for Transport {
    fn from(protocol: k8s::Protocol) -> Self {
        match protocol {
            k8s::Protocol::Tcp => Self::Tcp,
            k8s::Protocol::Udp => Self::Udp,
            k8s::Protocol::Sctp => Self::Sctp,
        }
    }
}

/// IP family, spelled as in the Kubernetes API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    V6,
}

impl Family {
    /// Returns the family of an address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl From<k8s::IpFamily> for Family {
    fn from(family: k8s::IpFamily) -> Self {
        match family {
            k8s::IpFamily::V4 => Self::V4,
            k8s::IpFamily::V6 => Self::V6,
        }
    }
}

/// The members of a load balancer, which the cloud keeps sorted and without duplicates. Clones
/// share the list, because it is long and the same for most load balancers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Members {
    /// Nodes, which get traffic at the listeners' node ports.
    Nodes(Arc<[NodeMember]>),
    /// Pods.
    Endpoints(Arc<[EndpointMember]>),
}

impl Default for Members {
    fn default() -> Self {
        Self::Nodes(Arc::default())
    }
}

impl Members {
    /// Creates node members from names, without provider IDs.
    pub fn nodes<N: Into<Arc<str>>>(names: impl IntoIterator<Item = N>) -> Self {
        Self::Nodes(
            names
                .into_iter()
                .map(|name| NodeMember { name: name.into(), provider_id: None })
                .collect(),
        )
        .sorted()
    }

    /// Returns the names of the nodes; none for endpoints.
    pub fn node_names(&self) -> Vec<String> {
        match self {
            Self::Nodes(nodes) => nodes.iter().map(|node| node.name.to_string()).collect(),
            Self::Endpoints(_) => Vec::new(),
        }
    }

    /// Sorts and removes duplicates.
    #[must_use]
    pub fn sorted(self) -> Self {
        match self {
            Self::Nodes(nodes) => Self::Nodes(sorted(nodes)),
            Self::Endpoints(endpoints) => Self::Endpoints(sorted(endpoints)),
        }
    }
}

fn sorted<T: Ord + Clone>(list: Arc<[T]>) -> Arc<[T]> {
    if list.is_sorted_by(|a, b| a < b) {
        return list;
    }
    let mut list = list.to_vec();
    list.sort();
    list.dedup();
    list.into()
}

/// A node as a member of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMember {
    /// Name of the node.
    pub name: Arc<str>,
    /// Its provider ID, if it has one.
    #[serde(rename = "providerID")]
    pub provider_id: Option<Arc<str>>,
}

/// A pod as a member of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointMember {
    /// Address and port of the pod.
    pub address: SocketAddr,
    /// Protocol.
    pub protocol: Transport,
    /// Port of the listener that sends traffic to it.
    pub listener: u16,
}

/// Specification of a load balancer to create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadBalancerSpec {
    /// Name and owner; the same in all calls for a Service.
    pub key: LoadBalancerKey,
    /// Settings.
    pub settings: LoadBalancerSettings,
    /// Members.
    pub members: Members,
    /// Time until the load balancer is active. Default: `loadBalancerActivation` of the cloud.
    pub activation: Option<Duration>,
}

/// Name and owner of a load balancer. Calls never return, change or delete a load balancer of
/// another owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadBalancerKey {
    /// Owner: value of `--cluster-name`.
    pub cluster: String,
    /// Owner: UID of the Service.
    pub uid: String,
    /// Name of the load balancer.
    pub name: String,
    /// `namespace/name` of the Service; compared with the `match` of a fault.
    pub service: String,
}

/// Result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeleteResult {
    /// The load balancer does not exist any more.
    Gone,
    /// The deletion takes time: `loadBalancerDeletion` of the cloud.
    #[serde(rename = "underway")]
    InProgress,
}

/// A change of a load balancer without the provider: body of `PUT /v1/load-balancers/{name}`. Keys
/// that are not given stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoadBalancerEdit {
    /// Owner: another cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Owner: UID of another Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Listeners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listeners: Option<Vec<Listener>>,
    /// Client networks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_ranges: Option<Vec<IpNet>>,
    /// Names of the nodes to use as members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<String>>,
    /// Lifecycle state: `active`, or `provisioning`, which then lasts until the state is put again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LoadBalancerState>,
}
