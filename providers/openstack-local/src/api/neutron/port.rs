use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Standard, envelopes};
use crate::api::lenient::{nullable, or_default};

/// A port, which connects a device to a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Identifier, a UUID.
    pub id: String,
    /// Name; not unique.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Network.
    #[serde(default, deserialize_with = "or_default")]
    pub network_id: String,
    /// `ACTIVE`, `DOWN`, `BUILD`, `ERROR` or `N/A`.
    #[serde(default, deserialize_with = "or_default")]
    pub status: String,
    /// Administrative state: false if it is switched off.
    #[serde(default, deserialize_with = "or_default")]
    pub admin_state_up: bool,
    /// Hardware address.
    #[serde(default, deserialize_with = "or_default")]
    pub mac_address: String,
    /// Addresses.
    #[serde(default, deserialize_with = "or_default")]
    pub fixed_ips: Vec<FixedIp>,
    /// Device, such as a server; empty when there is none.
    #[serde(default, deserialize_with = "or_default")]
    pub device_id: String,
    /// Owner of the device, such as `compute:<zone>`; empty if there is none.
    #[serde(default, deserialize_with = "or_default")]
    pub device_owner: String,
    /// Groups, by identifier.
    #[serde(default, deserialize_with = "or_default")]
    pub security_groups: Vec<String>,
    /// Addresses that the port may use besides its own; empty without the extension.
    #[serde(default, deserialize_with = "or_default")]
    pub allowed_address_pairs: Vec<AddressPair>,
    /// True if security groups and address pairs are enforced; absent without the extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_security_enabled: Option<bool>,
    /// Only on the parent of a trunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk_details: Option<TrunkDetails>,
    /// Such as `normal`.
    #[serde(
        default,
        rename = "binding:vnic_type",
        skip_serializing_if = "Option::is_none"
    )]
    pub vnic_type: Option<String>,
    /// For administrators: where it is; empty when not bound.
    #[serde(
        default,
        rename = "binding:host_id",
        skip_serializing_if = "Option::is_none"
    )]
    pub host_id: Option<String>,
    /// For administrators: such as `ovs` or `unbound`.
    #[serde(
        default,
        rename = "binding:vif_type",
        skip_serializing_if = "Option::is_none"
    )]
    pub vif_type: Option<String>,
    /// DHCP options beside the usual ones.
    #[serde(default, deserialize_with = "or_default")]
    pub extra_dhcp_opts: Vec<serde_json::Value>,
    /// Project, times, revision, tags.
    #[serde(flatten)]
    pub standard: Standard,
}

envelopes!(PortEnvelope, port: Port, Ports, ports, ports_links);

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedIp {
    /// Subnet.
    pub subnet_id: String,
    /// Address.
    pub ip_address: IpAddr,
}

/// Asks for an address: any of a subnet, or this one (of this subnet, or whichever holds it).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedIpRequest {
    /// Subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_id: Option<String>,
    /// Address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<IpAddr>,
}

/// An address that a port may use besides its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AddressPair {
    /// Address or range, as its user wrote it.
    pub ip_address: String,
    /// Hardware address; the port's own when a request does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
}

/// A trunk, as its parent tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrunkDetails {
    /// Trunk.
    pub trunk_id: String,
    /// Ports on it.
    #[serde(default, deserialize_with = "or_default")]
    pub sub_ports: Vec<SubPortDetails>,
}

/// A port on a trunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubPortDetails {
    /// Port.
    pub port_id: String,
    /// Number on the wire.
    #[serde(default, deserialize_with = "or_default")]
    pub segmentation_id: u32,
    /// `vlan` or `inherit`.
    #[serde(default, deserialize_with = "or_default")]
    pub segmentation_type: String,
    /// Hardware address.
    #[serde(default, deserialize_with = "or_default")]
    pub mac_address: String,
}

/// Asks for a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCreate {
    /// Network.
    pub network_id: String,
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// On unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_state_up: Option<bool>,
    /// Made up when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
    /// One of each IP version when absent, none when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_ips: Option<Vec<FixedIpRequest>>,
    /// Device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
    /// Owner of the device, which shows its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_owner: Option<String>,
    /// The project's `default` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<String>>,
    /// None when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_address_pairs: Option<Vec<AddressPair>>,
    /// As the network says when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_security_enabled: Option<bool>,
    /// `normal` when absent.
    #[serde(
        default,
        rename = "binding:vnic_type",
        skip_serializing_if = "Option::is_none"
    )]
    pub vnic_type: Option<String>,
    /// For administrators: where it is.
    #[serde(
        default,
        rename = "binding:host_id",
        skip_serializing_if = "Option::is_none"
    )]
    pub host_id: Option<String>,
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

/// Changes a port. A list takes the place of the whole list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortUpdate {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Administrative state: false if it is switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_state_up: Option<bool>,
    /// For administrators: hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
    /// Addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_ips: Option<Vec<FixedIpRequest>>,
    /// Device; none when empty or null.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub device_id: Option<Option<String>>,
    /// Owner of the device; empty or null for none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub device_owner: Option<Option<String>>,
    /// Groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<String>>,
    /// Address pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_address_pairs: Option<Vec<AddressPair>>,
    /// True if security groups and address pairs are enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_security_enabled: Option<bool>,
    /// Such as `normal`.
    #[serde(
        default,
        rename = "binding:vnic_type",
        skip_serializing_if = "Option::is_none"
    )]
    pub vnic_type: Option<String>,
    /// For administrators: where it is; nowhere when empty or null.
    #[serde(
        default,
        rename = "binding:host_id",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "nullable"
    )]
    pub host_id: Option<Option<String>>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}
