//! Requests to the network service (Neutron v2.0), and its words.
//!
//! In an update, what is absent stays. Where null means something, a field is an
//! `Option<Option<_>>` with the inner `None` for null.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::words::words;

/// Asks for a floating IP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FloatingIpCreate {
    /// External network.
    pub floating_network_id: String,
    /// Port to lead to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_id: Option<String>,
    /// Fixed address of the port; required if the port has more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed_ip_address: Option<IpAddr>,
    /// Subnet to take the address from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet_id: Option<String>,
    /// This very address; for administrators unless policy says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floating_ip_address: Option<IpAddr>,
    /// Free text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// For administrators: project it shall belong to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
}

/// Changes a floating IP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FloatingIpUpdate {
    /// Port to lead to; null detaches. Absent stays, except that an empty body detaches as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_id: Option<Option<String>>,
    /// Fixed address of the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed_ip_address: Option<IpAddr>,
    /// Free text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

impl FloatingIpUpdate {
    /// Leads nowhere.
    pub fn detach() -> Self {
        Self { port_id: Some(None), ..Self::default() }
    }

    /// Leads to a port.
    pub fn attach(port_id: impl Into<String>) -> Self {
        Self { port_id: Some(Some(port_id.into())), ..Self::default() }
    }
}

/// A route, as its user wrote it: two routes are the same when both texts are. It is read as well,
/// because it is sent back as it was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Route {
    /// Range.
    pub destination: String,
    /// Address on a subnet of the router.
    pub nexthop: String,
}

/// Body of `add_extraroutes` and `remove_extraroutes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExtraRoutes {
    /// What to add or remove.
    pub routes: Vec<Route>,
}

/// Change of a router.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouterUpdate {
    /// Routes, which replace all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routes: Option<Vec<Route>>,
}

/// An address that a port may use besides its own. It is read as well, because it is sent back as it
/// was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AddressPair {
    /// Address or range, as its user wrote it.
    pub ip_address: String,
    /// Hardware address; the port's own when a request does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
}

/// Change of a port. A list replaces the whole list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortUpdate {
    /// Security groups, by ID.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<String>>,
    /// Address pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_address_pairs: Option<Vec<AddressPair>>,
}

/// Asks for a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SecurityGroupCreate {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Free text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// True when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stateful: Option<bool>,
    /// For administrators: project it shall belong to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
}

/// Asks for a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SecurityGroupRuleCreate {
    /// Group.
    pub security_group_id: String,
    /// Into or out of the port.
    pub direction: Direction,
    /// IP version; 4 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<EtherType>,
    /// Name or number; any when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// First port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_range_min: Option<u16>,
    /// Last port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_range_max: Option<u16>,
    /// Range at the other end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_ip_prefix: Option<String>,
    /// Group at the other end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_group_id: Option<String>,
    /// Free text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// For administrators: project it shall belong to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
}

words! {
    /// Direction of the traffic.
    Direction {
        /// Into the port.
        Ingress = "ingress",
        /// Out of the port.
        Egress = "egress",
    }
}

words! {
    /// Address family of the traffic.
    EtherType {
        /// IPv4.
        Ipv4 = "IPv4",
        /// IPv6.
        Ipv6 = "IPv6",
    }
}
