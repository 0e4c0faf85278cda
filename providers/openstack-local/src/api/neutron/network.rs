use serde::{Deserialize, Serialize};

use super::{Standard, envelopes};
use crate::api::lenient::or_default;

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Identifier, a UUID.
    pub id: String,
    /// Name; not unique.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// `ACTIVE`, `BUILD`, `DOWN` or `ERROR`.
    #[serde(default, deserialize_with = "or_default")]
    pub status: String,
    /// Administrative state: false if it is switched off.
    #[serde(default, deserialize_with = "or_default")]
    pub admin_state_up: bool,
    /// True if every project may use it.
    #[serde(default, deserialize_with = "or_default")]
    pub shared: bool,
    /// True for an external network, which provides floating IPs and gateways of routers.
    #[serde(default, rename = "router:external", deserialize_with = "or_default")]
    pub external: bool,
    /// Subnets, by identifier.
    #[serde(default, deserialize_with = "or_default")]
    pub subnets: Vec<String>,
    /// Bytes.
    #[serde(default, deserialize_with = "or_default")]
    pub mtu: u32,
    /// Default port security of new ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_security_enabled: Option<bool>,
    /// Zones it is in.
    #[serde(default, deserialize_with = "or_default")]
    pub availability_zones: Vec<String>,
    /// Zones asked for.
    #[serde(default, deserialize_with = "or_default")]
    pub availability_zone_hints: Vec<String>,
    /// Address scope.
    #[serde(default)]
    pub ipv4_address_scope: Option<String>,
    /// Address scope.
    #[serde(default)]
    pub ipv6_address_scope: Option<String>,
    /// For administrators: `flat`, `vlan`, `geneve` and so on.
    #[serde(
        default,
        rename = "provider:network_type",
        skip_serializing_if = "Option::is_none"
    )]
    pub network_type: Option<String>,
    /// For administrators.
    #[serde(
        default,
        rename = "provider:physical_network",
        skip_serializing_if = "Option::is_none"
    )]
    pub physical_network: Option<String>,
    /// For administrators.
    #[serde(
        default,
        rename = "provider:segmentation_id",
        skip_serializing_if = "Option::is_none"
    )]
    pub segmentation_id: Option<u32>,
    /// Project, times, revision, tags.
    #[serde(flatten)]
    pub standard: Standard,
}

envelopes!(NetworkEnvelope, network: Network, Networks, networks, networks_links);

/// Asks for a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkCreate {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// On unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_state_up: Option<bool>,
    /// For administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
    /// For administrators.
    #[serde(
        default,
        rename = "router:external",
        skip_serializing_if = "Option::is_none"
    )]
    pub external: Option<bool>,
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// On unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_security_enabled: Option<bool>,
    /// Zones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub availability_zone_hints: Option<Vec<String>>,
    /// For administrators.
    #[serde(
        default,
        rename = "provider:network_type",
        skip_serializing_if = "Option::is_none"
    )]
    pub network_type: Option<String>,
    /// For administrators.
    #[serde(
        default,
        rename = "provider:physical_network",
        skip_serializing_if = "Option::is_none"
    )]
    pub physical_network: Option<String>,
    /// For administrators.
    #[serde(
        default,
        rename = "provider:segmentation_id",
        skip_serializing_if = "Option::is_none"
    )]
    pub segmentation_id: Option<u32>,
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

/// Changes a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkUpdate {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Administrative state: false if it is switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_state_up: Option<bool>,
    /// For administrators.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
    /// For administrators.
    #[serde(
        default,
        rename = "router:external",
        skip_serializing_if = "Option::is_none"
    )]
    pub external: Option<bool>,
    /// Bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Default port security of new ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_security_enabled: Option<bool>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}
