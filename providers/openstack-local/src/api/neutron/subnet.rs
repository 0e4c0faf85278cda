use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Standard, envelopes};
use crate::api::lenient::{nullable, or_default};

/// A range of addresses on a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subnet {
    /// Identifier, a UUID.
    pub id: String,
    /// Name; not unique.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Network.
    #[serde(default, deserialize_with = "or_default")]
    pub network_id: String,
    /// 4 or 6.
    #[serde(default, deserialize_with = "or_default")]
    pub ip_version: u8,
    /// The range, such as `10.0.0.0/24`.
    #[serde(default, deserialize_with = "or_default")]
    pub cidr: String,
    /// Gateway of the subnet.
    #[serde(default)]
    pub gateway_ip: Option<IpAddr>,
    /// True if DHCP assigns the addresses.
    #[serde(default, deserialize_with = "or_default")]
    pub enable_dhcp: bool,
    /// Ranges that addresses are allocated from.
    #[serde(default, deserialize_with = "or_default")]
    pub allocation_pools: Vec<AllocationPool>,
    /// Name servers.
    #[serde(default, deserialize_with = "or_default")]
    pub dns_nameservers: Vec<String>,
    /// Routes for its ports.
    #[serde(default, deserialize_with = "or_default")]
    pub host_routes: Vec<HostRoute>,
    /// `slaac`, `dhcpv6-stateful`, `dhcpv6-stateless` or null.
    #[serde(default)]
    pub ipv6_address_mode: Option<String>,
    /// Like `ipv6_address_mode`.
    #[serde(default)]
    pub ipv6_ra_mode: Option<String>,
    /// Segment.
    #[serde(default)]
    pub segment_id: Option<String>,
    /// Pool it was cut from.
    #[serde(default)]
    pub subnetpool_id: Option<String>,
    /// Owners of devices it is for; all when empty.
    #[serde(default, deserialize_with = "or_default")]
    pub service_types: Vec<String>,
    /// True if addresses get DNS names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_publish_fixed_ip: Option<bool>,
    /// Project, times, revision, tags.
    #[serde(flatten)]
    pub standard: Standard,
}

envelopes!(SubnetEnvelope, subnet: Subnet, Subnets, subnets, subnets_links);

/// Addresses from `start` to `end`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AllocationPool {
    /// First.
    pub start: IpAddr,
    /// Last.
    pub end: IpAddr,
}

/// A route for ports of a subnet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostRoute {
    /// Destination network.
    pub destination: String,
    /// Address of the next hop.
    pub nexthop: String,
}

/// Asks for a subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetCreate {
    /// Network.
    pub network_id: String,
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// 4 or 6.
    pub ip_version: u8,
    /// The range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr: Option<String>,
    /// The first address when absent, none when null.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub gateway_ip: Option<Option<IpAddr>>,
    /// On unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_dhcp: Option<bool>,
    /// Everything but the gateway when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation_pools: Option<Vec<AllocationPool>>,
    /// Name servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_nameservers: Option<Vec<String>>,
    /// Routes for its ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_routes: Option<Vec<HostRoute>>,
    /// `slaac`, `dhcpv6-stateful` or `dhcpv6-stateless`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_address_mode: Option<String>,
    /// Like `ipv6_address_mode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_ra_mode: Option<String>,
    /// Owners of devices it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_types: Option<Vec<String>>,
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

/// Changes a subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetUpdate {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// None when null.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub gateway_ip: Option<Option<IpAddr>>,
    /// True if DHCP assigns the addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_dhcp: Option<bool>,
    /// Ranges that addresses are allocated from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation_pools: Option<Vec<AllocationPool>>,
    /// Name servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_nameservers: Option<Vec<String>>,
    /// Routes for its ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_routes: Option<Vec<HostRoute>>,
    /// Owners of devices it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_types: Option<Vec<String>>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}
