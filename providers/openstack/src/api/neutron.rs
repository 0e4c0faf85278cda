//! Answers of the network service.

use std::net::IpAddr;

use openstack_api::neutron::{AddressPair, Direction, EtherType, Route};
use serde::Deserialize;

use super::optional_text;

/// Something that the service offers beyond its core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Extension {
    /// Name for programs, such as `extraroute-atomic`.
    pub alias: String,
}

/// A router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Router {
    /// The static routes. Without them the answer is an error, because a router without routes would
    /// lose those of others when the list is replaced.
    pub routes: Vec<Route>,
    /// One more after each change; 0 where the extension is missing.
    #[serde(default)]
    pub revision_number: u64,
}

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Network {
    /// ID of the network.
    pub id: String,
    /// Name of the network; not unique.
    #[serde(default)]
    pub name: String,
    /// True for an external network, which floating IPs come from.
    #[serde(default, rename = "router:external")]
    pub external: bool,
    /// IDs of its subnets.
    #[serde(default)]
    pub subnets: Vec<String>,
}

/// A subnet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Subnet {
    /// ID of the subnet.
    pub id: String,
    /// Name of the subnet; not unique.
    #[serde(default)]
    pub name: String,
    /// ID of its network.
    #[serde(default)]
    pub network_id: String,
    /// 4 or 6.
    #[serde(default)]
    pub ip_version: u8,
    /// Its range, such as `10.0.0.0/24`.
    #[serde(default)]
    pub cidr: String,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// A port, which connects a device to a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Port {
    /// ID of the port.
    pub id: String,
    /// ID of its network.
    #[serde(default)]
    pub network_id: String,
    /// `ACTIVE`, `DOWN`, `BUILD`, `ERROR` or `N/A`. Required, because only addresses of active ports
    /// count.
    pub status: String,
    /// Addresses. Required, because a server lacks the addresses of a port that does not show them.
    pub fixed_ips: Vec<FixedIp>,
    /// ID of the device, such as a server; empty if there is none. Required, because a server lacks
    /// the addresses of a port that does not show it.
    pub device_id: String,
    /// Kind of the device, such as `compute:<zone>`; empty if there is none.
    #[serde(default)]
    pub device_owner: String,
    /// IDs of its security groups. A list that is absent must not be replaced.
    #[serde(default)]
    pub security_groups: Option<Vec<String>>,
    /// Addresses that the port may use besides its own; absent without the extension. A list that is
    /// absent must not be replaced.
    #[serde(default)]
    pub allowed_address_pairs: Option<Vec<AddressPair>>,
    /// True if security groups and address pairs are enforced; absent without the extension.
    #[serde(default)]
    pub port_security_enabled: Option<bool>,
    /// The trunk whose parent this port is.
    #[serde(default)]
    pub trunk_details: Option<TrunkDetails>,
    /// One more after each change; 0 where the extension is missing.
    #[serde(default)]
    pub revision_number: u64,
    /// Tags.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// The network of a port, where a list is asked for nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct PortNetwork {
    /// ID of the network.
    pub network_id: String,
}

impl Port {
    /// Returns true if a security group is on the port.
    pub fn has_security_group(&self, group: &str) -> bool {
        self.security_groups.iter().flatten().any(|id| id == group)
    }
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct FixedIp {
    /// ID of its subnet. Required, because rules and members are for an address on its subnet.
    pub subnet_id: String,
    /// The address.
    pub ip_address: IpAddr,
}

/// A trunk, as its parent shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct TrunkDetails {
    /// Ports on it. Required, because a server lacks the addresses of those that are not shown.
    pub sub_ports: Vec<SubPort>,
}

/// A port on a trunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct SubPort {
    /// ID of the port.
    pub port_id: String,
}

/// A floating IP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct FloatingIp {
    /// ID of the floating IP.
    pub id: String,
    /// The address.
    #[serde(default)]
    pub floating_ip_address: Option<IpAddr>,
    /// Port that it leads to; none when it is detached.
    #[serde(default)]
    pub port_id: Option<String>,
    /// Description, which names the Service it was created for.
    #[serde(default)]
    pub description: String,
}

/// A security group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct SecurityGroup {
    /// ID of the group.
    pub id: String,
    /// Name of the group; not unique. Required, because a group without it could be the one that is
    /// looked for.
    pub name: String,
    /// Description, which names the Service it was created for.
    #[serde(default)]
    pub description: String,
    /// Time of its creation.
    #[serde(default)]
    pub created_at: String,
    /// Rules of the group.
    #[serde(default)]
    pub security_group_rules: Vec<SecurityGroupRule>,
}

/// A rule of a security group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct SecurityGroupRule {
    /// ID of the rule.
    pub id: String,
    /// Into or out of the port.
    #[serde(default)]
    pub direction: Direction,
    /// Address family.
    #[serde(default)]
    pub ethertype: EtherType,
    /// Name or number of the protocol; absent for any.
    #[serde(default, deserialize_with = "optional_text")]
    pub protocol: Option<String>,
    /// First port, or type of ICMP; absent for any.
    #[serde(default)]
    pub port_range_min: Option<u16>,
    /// Last port, or code of ICMP; absent for any.
    #[serde(default)]
    pub port_range_max: Option<u16>,
    /// Network at the other end; absent for any.
    #[serde(default)]
    pub remote_ip_prefix: Option<String>,
    /// Group at the other end; absent for any.
    #[serde(default)]
    pub remote_group_id: Option<String>,
    /// Address group at the other end; absent for any.
    #[serde(default)]
    pub remote_address_group_id: Option<String>,
}

/// Quotas of a project that Services need, with their use. One that is absent is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct QuotaDetails {
    /// Floating IPs.
    pub floatingip: Option<QuotaDetail>,
    /// Ports.
    pub port: Option<QuotaDetail>,
    /// Security groups.
    pub security_group: Option<QuotaDetail>,
    /// Rules of security groups.
    pub security_group_rule: Option<QuotaDetail>,
}

/// A quota with its use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct QuotaDetail {
    /// Maximum number; -1 for no limit.
    pub limit: i64,
    /// Number in use.
    pub used: i64,
    /// Number that requests in progress will use.
    #[serde(default)]
    pub reserved: i64,
}
