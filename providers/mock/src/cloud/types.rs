//! JSON types of the cloud's API for instances and routes.

use std::collections::BTreeMap;

use ccm_core::k8s::{AddressType, NodeAddress};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// An instance as the admin API returns it. Every key is always present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Provider ID; `mock://<region of the cloud>/<node>` unless another one was set.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// Instance type; empty for none.
    pub instance_type: String,
    /// Zone; empty for none.
    pub zone: String,
    /// Region; empty for none.
    pub region: String,
    /// Addresses, in the order in which they are written to the node.
    pub addresses: Vec<Address>,
    /// Power state.
    pub power_state: PowerState,
    /// Labels in addition to those that the framework derives itself.
    pub additional_labels: BTreeMap<String, String>,
}

/// Specification of an instance: body of `PUT /v1/instances/{node}`, and entry of the
/// configuration. Every key is optional and has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstanceSpec {
    /// Provider ID, with scheme `mock`. Default: `mock://<region of the cloud>/<node>`.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Instance type. Default: the cloud's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// Zone. Default: one of the cloud's zones, chosen by a hash of the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Region. Default: the cloud's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Addresses. Default: an IPv4 InternalIP from 10.0.0.0/8, chosen by a hash of the name, and
    /// the name as Hostname.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<Address>>,
    /// Power state. Default: `running`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_state: Option<PowerState>,
    /// Additional labels. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub additional_labels: Option<BTreeMap<String, String>>,
}

impl From<Instance> for InstanceSpec {
    fn from(instance: Instance) -> Self {
        Self {
            provider_id: Some(instance.provider_id),
            instance_type: Some(instance.instance_type),
            zone: Some(instance.zone),
            region: Some(instance.region),
            addresses: Some(instance.addresses),
            power_state: Some(instance.power_state),
            additional_labels: Some(instance.additional_labels),
        }
    }
}

/// Power state of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PowerState {
    /// Running.
    #[default]
    Running,
    /// Shut down; can be started again.
    Stopped,
    /// Shut down permanently, but still listed.
    Terminated,
}

/// One address of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Address {
    /// Type, spelled as in the Kubernetes API.
    #[serde(rename = "type")]
    pub kind: AddressKind,
    /// Address or name.
    pub address: String,
}

impl Address {
    /// Creates an address.
    pub fn new(kind: AddressType, address: impl Into<String>) -> Self {
        Self { kind: AddressKind(kind), address: address.into() }
    }
}

impl From<Address> for NodeAddress {
    fn from(address: Address) -> Self {
        Self::new(address.kind.0, address.address)
    }
}

impl From<&NodeAddress> for Address {
    fn from(address: &NodeAddress) -> Self {
        Self::new(address.kind, &*address.address)
    }
}

/// Serialized form of an [`AddressType`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressKind(pub AddressType);

impl TryFrom<String> for AddressKind {
    type Error = ccm_core::k8s::UnknownAddressType;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

impl From<AddressKind> for String {
    fn from(kind: AddressKind) -> Self {
        kind.0.as_str().to_owned()
    }
}

/// A query for one instance: by provider ID if there is one, otherwise by node name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudInstanceQuery {
    /// Name of the node; compared with the `match` of a fault.
    pub node: String,
    /// Provider ID of the node.
    pub provider_id: Option<String>,
}

/// A route as the admin API returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Name in the route table.
    pub name: String,
    /// Target node.
    pub node: String,
    /// Destination.
    #[serde(rename = "destinationCIDR")]
    pub destination: IpNet,
    /// Whether the route is a black hole, because the admin API set this, or because the instance
    /// for which a cluster created the route is terminated or no longer exists.
    pub blackhole: bool,
    /// Addresses of the node, if the creator gave them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_addresses: Option<Vec<Address>>,
}

/// Body of `PUT /v1/routes/{name}`. `name`, if given, must equal the name in the path; `blackhole`
/// is `false` by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteBody {
    /// Name in the route table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Target node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Destination.
    #[serde(rename = "destinationCIDR", skip_serializing_if = "Option::is_none")]
    pub destination: Option<IpNet>,
    /// Whether the route is a black hole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blackhole: Option<bool>,
}

/// A route with its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnedRoute {
    /// Cluster that created it; `None` for a route created through the admin API.
    pub cluster: Option<String>,
    /// The route.
    pub route: Route,
}

/// One change of the route table, for one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteEdit {
    /// Create a route.
    Create {
        /// Target node.
        node: String,
        /// Destination.
        destination: IpNet,
        /// Addresses of the node, for providers that compare them.
        #[serde(default)]
        node_addresses: Option<Vec<Address>>,
    },
    /// Delete a route.
    Delete(Route),
}

/// Changes of the route table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteBatch {
    /// Owner: value of `--cluster-name`.
    pub cluster: String,
    /// Changes, in order.
    pub edits: Vec<RouteEdit>,
}
