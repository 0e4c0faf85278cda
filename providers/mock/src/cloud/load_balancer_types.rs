//! What the cloud's API speaks of load balancers, as JSON.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ccm_core::k8s;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A load balancer as the admin API shows it. `ports`, `nodes` and `address` repeat, for short scripts, what the
/// listeners, members and addresses say in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancer {
    /// Identifier that the cloud gave it; never used twice.
    pub id: String,
    /// Name: `a` and the UID of the Service.
    pub name: String,
    /// Owner: value of `--cluster-name`.
    pub cluster: String,
    /// Owner: UID of the Service.
    pub uid: String,
    /// Service that it was made for, `namespace/name`.
    pub service: String,
    /// Where in its life it is.
    pub state: LoadBalancerState,
    /// Ports, in the order of the Service.
    pub ports: Vec<u16>,
    /// Names of the nodes behind it, sorted; empty when endpoints are.
    pub nodes: Arc<[String]>,
    /// First address.
    pub address: IpAddr,
    /// Addresses, one per family, in the order of the families.
    pub addresses: Vec<IpAddr>,
    /// Everything else that was asked for; its keys stand beside the others.
    #[serde(flatten)]
    pub settings: LoadBalancerSettings,
    /// What is behind it.
    pub members: Members,
    /// Number of requests that made or changed it. One that found everything as it wants it does not count.
    pub generation: u64,
}

/// Where in its life a load balancer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadBalancerState {
    /// Is being made; takes changes, carries no traffic.
    Provisioning,
    /// Carries traffic.
    Active,
    /// Is being deleted; takes no changes, and its name is not free yet.
    Deleting,
}

/// What a load balancer can be told apart from its members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancerSettings {
    /// Listeners, in the order of the Service's ports.
    pub listeners: Vec<Listener>,
    /// Client networks that may connect; empty for everybody.
    pub source_ranges: Vec<IpNet>,
    /// Node port that tells whether a node has endpoints, with `externalTrafficPolicy: Local`.
    pub health_check_node_port: Option<u16>,
    /// Seconds for which a client keeps its backend; absent without affinity.
    pub affinity_seconds: Option<u64>,
    /// Address families, primary first; empty for that of the cloud's choice.
    pub families: Vec<Family>,
    /// Address that was asked for.
    pub requested_address: Option<IpAddr>,
    /// Whether only the cloud's own network reaches it.
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
    /// Port of the nodes; absent when the Service has none.
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

/// Address family, spelled as in the Kubernetes API.
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

/// What is behind a load balancer. Sorted and without duplicates once the cloud has it. Copies share the list: it is the same
/// for most balancers, and long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Members {
    /// Nodes, reached at the listeners' node ports.
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
    /// Makes members from the names of nodes, without provider IDs.
    pub fn nodes<N: Into<Arc<str>>>(names: impl IntoIterator<Item = N>) -> Self {
        Self::Nodes(names.into_iter().map(|name| NodeMember { name: name.into(), provider_id: None }).collect())
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

/// A node behind a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMember {
    /// Name of the node.
    pub name: Arc<str>,
    /// Its provider ID, if it has one.
    #[serde(rename = "providerID")]
    pub provider_id: Option<Arc<str>>,
}

/// A pod behind a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointMember {
    /// Address and port of the pod.
    pub address: SocketAddr,
    /// Protocol.
    pub protocol: Transport,
    /// Port of the load balancer that leads there.
    pub listener: u16,
}

/// What a load balancer shall be when it is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadBalancerSpec {
    /// Name and owner; the same on every call about this Service.
    pub key: LoadBalancerKey,
    /// Settings.
    pub settings: LoadBalancerSettings,
    /// Members.
    pub members: Members,
    /// How long it takes to become active. Default: `loadBalancerActivation` of the cloud.
    pub activation: Option<Duration>,
}

/// Names a load balancer and its owner. One of another owner is never seen, changed or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadBalancerKey {
    /// Owner: value of `--cluster-name`.
    pub cluster: String,
    /// Owner: UID of the Service.
    pub uid: String,
    /// Name of the balancer.
    pub name: String,
    /// `namespace/name` of the Service; what a fault's `match` is compared with.
    pub service: String,
}

/// Answer of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeleteResult {
    /// There is nothing any more.
    Gone,
    /// It takes its time, `loadBalancerDeletion` of the cloud.
    #[serde(rename = "underway")]
    InProgress,
}

/// A change by hand, behind the provider's back: body of `PUT /v1/load-balancers/{name}`. What is left out stays.
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
    /// Names of the nodes behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<String>>,
    /// Where in its life it is: `provisioning` for until it is put again, or `active`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<LoadBalancerState>,
}
