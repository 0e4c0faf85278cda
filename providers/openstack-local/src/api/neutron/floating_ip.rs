use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Standard, envelopes};
use crate::api::lenient::{nullable, or_default};

/// An address outside that leads to a port inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FloatingIp {
    /// Identifier, a UUID.
    pub id: String,
    /// The address outside.
    #[serde(default)]
    pub floating_ip_address: Option<IpAddr>,
    /// Network of the address.
    #[serde(default, deserialize_with = "or_default")]
    pub floating_network_id: String,
    /// Address of the port; null when detached.
    #[serde(default)]
    pub fixed_ip_address: Option<IpAddr>,
    /// Port; null when detached.
    #[serde(default)]
    pub port_id: Option<String>,
    /// Router between the two; null when detached.
    #[serde(default)]
    pub router_id: Option<String>,
    /// `ACTIVE`, `DOWN` or `ERROR`.
    #[serde(default, deserialize_with = "or_default")]
    pub status: String,
    /// The port; null when detached.
    #[serde(default)]
    pub port_details: Option<PortDetails>,
    /// Single ports that are forwarded.
    #[serde(default, deserialize_with = "or_default")]
    pub port_forwardings: Vec<serde_json::Value>,
    /// Quality of service.
    #[serde(default)]
    pub qos_policy_id: Option<String>,
    /// Name to register.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_name: Option<String>,
    /// Domain to register the name in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_domain: Option<String>,
    /// Project, times, revision, tags.
    #[serde(flatten)]
    pub standard: Standard,
}

envelopes!(FloatingIpEnvelope, floatingip: FloatingIp, FloatingIps, floatingips, floatingips_links);

/// A port, as its floating IP tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortDetails {
    /// Name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Network.
    #[serde(default, deserialize_with = "or_default")]
    pub network_id: String,
    /// Hardware address.
    #[serde(default, deserialize_with = "or_default")]
    pub mac_address: String,
    /// Administrative state: false if it is switched off.
    #[serde(default, deserialize_with = "or_default")]
    pub admin_state_up: bool,
    /// Status.
    #[serde(default, deserialize_with = "or_default")]
    pub status: String,
    /// Device.
    #[serde(default, deserialize_with = "or_default")]
    pub device_id: String,
    /// Owner of the device, which shows its kind.
    #[serde(default, deserialize_with = "or_default")]
    pub device_owner: String,
}

/// Asks for a floating IP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FloatingIpCreate {
    /// External network.
    pub floating_network_id: String,
    /// Port to lead to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_id: Option<String>,
    /// Fixed address of the port; required if the port has more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_ip_address: Option<IpAddr>,
    /// Subnet to take the address from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_id: Option<String>,
    /// This very address; for administrators unless policy says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floating_ip_address: Option<IpAddr>,
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

/// Changes a floating IP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FloatingIpUpdate {
    /// Port to lead to; null detaches. Absent stays, except that an empty body detaches as well.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub port_id: Option<Option<String>>,
    /// Fixed address of the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_ip_address: Option<IpAddr>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
