use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Standard, envelopes};
use crate::api::lenient::{nullable, or_default};

/// A router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Router {
    /// Identifier, a UUID.
    pub id: String,
    /// Name; not unique.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// `ACTIVE`, `ALLOCATING` or `ERROR`.
    #[serde(default, deserialize_with = "or_default")]
    pub status: String,
    /// Administrative state: false if it is switched off.
    #[serde(default, deserialize_with = "or_default")]
    pub admin_state_up: bool,
    /// Routes beside those to its subnets.
    #[serde(default, deserialize_with = "or_default")]
    pub routes: Vec<Route>,
    /// The way outside.
    #[serde(default)]
    pub external_gateway_info: Option<GatewayInfo>,
    /// True for a highly available router; shown only to administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ha: Option<bool>,
    /// True for a distributed router; shown only to administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distributed: Option<bool>,
    /// Zones it is in.
    #[serde(default, deserialize_with = "or_default")]
    pub availability_zones: Vec<String>,
    /// Zones asked for.
    #[serde(default, deserialize_with = "or_default")]
    pub availability_zone_hints: Vec<String>,
    /// Flavor.
    #[serde(default)]
    pub flavor_id: Option<String>,
    /// Project, times, revision, tags.
    #[serde(flatten)]
    pub standard: Standard,
}

envelopes!(RouterEnvelope, router: Router, Routers, routers, routers_links);

/// A route, as its user wrote it: two routes are the same when both texts are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Route {
    /// Range.
    pub destination: String,
    /// Address on a subnet of the router.
    pub nexthop: String,
}

/// Body and answer of `add_extraroutes` and `remove_extraroutes`, in a [`RouterEnvelope`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtraRoutes {
    /// Router; only in answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Name; only in responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// In requests what to add or remove, in answers what there is now.
    pub routes: Vec<Route>,
}

/// The way outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayInfo {
    /// External network.
    pub network_id: String,
    /// True if source addresses are translated (SNAT).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_snat: Option<bool>,
    /// Addresses of the router there.
    #[serde(default, deserialize_with = "or_default")]
    pub external_fixed_ips: Vec<ExternalFixedIp>,
}

/// An address of a router outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalFixedIp {
    /// Subnet.
    pub subnet_id: String,
    /// Address.
    pub ip_address: IpAddr,
}

/// Asks for a way outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayRequest {
    /// External network; an empty object means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_id: Option<String>,
    /// On unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_snat: Option<bool>,
    /// Any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_fixed_ips: Option<Vec<super::FixedIpRequest>>,
}

/// Asks for a router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterCreate {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// On unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_state_up: Option<bool>,
    /// The way outside; none when absent or null.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_gateway_info: Option<GatewayRequest>,
    /// For administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ha: Option<bool>,
    /// For administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distributed: Option<bool>,
    /// Zones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub availability_zone_hints: Option<Vec<String>>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// For administrators: project it shall belong to.
    #[serde(default, alias = "tenant_id", skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
}

/// Changes a router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterUpdate {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Administrative state: false if it is switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_state_up: Option<bool>,
    /// The way outside; none when null or an empty object.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub external_gateway_info: Option<Option<GatewayRequest>>,
    /// All extra routes; none when null.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub routes: Option<Option<Vec<Route>>>,
    /// For administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ha: Option<bool>,
    /// For administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distributed: Option<bool>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Body of `add_router_interface` and `remove_router_interface`, without envelope: a subnet, a
/// port, or (to remove) both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceRequest {
    /// Subnet, whose gateway address the router takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_id: Option<String>,
    /// Port, with whatever addresses it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_id: Option<String>,
}

/// Answer to that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterInterface {
    /// Router.
    pub id: String,
    /// Project.
    #[serde(default, deserialize_with = "or_default")]
    pub tenant_id: String,
    /// Project.
    #[serde(default, deserialize_with = "or_default")]
    pub project_id: String,
    /// Port of the router.
    #[serde(default, deserialize_with = "or_default")]
    pub port_id: String,
    /// Network of the port.
    #[serde(default, deserialize_with = "or_default")]
    pub network_id: String,
    /// First subnet of the port.
    #[serde(default, deserialize_with = "or_default")]
    pub subnet_id: String,
    /// All subnets of the port.
    #[serde(default, deserialize_with = "or_default")]
    pub subnet_ids: Vec<String>,
    /// Tags of the router.
    #[serde(default, deserialize_with = "or_default")]
    pub tags: Vec<String>,
}
