use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};

/// A port of a server, as Nova tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceAttachment {
    /// Port.
    pub port_id: String,
    /// Network.
    #[serde(default)]
    pub net_id: String,
    /// Hardware address.
    #[serde(default)]
    pub mac_addr: String,
    /// Status of the port.
    #[serde(default)]
    pub port_state: String,
    /// Addresses.
    #[serde(default)]
    pub fixed_ips: Vec<FixedIp>,
    /// From 2.70: name of the device.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::api::lenient::nullable"
    )]
    pub tag: Option<Option<String>>,
}

/// An address on a subnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedIp {
    /// Subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_id: Option<String>,
    /// Address.
    pub ip_address: IpAddr,
}

/// `{"interfaceAttachment": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceAttachmentEnvelope<T = InterfaceAttachment> {
    /// The port.
    #[serde(rename = "interfaceAttachment")]
    pub interface_attachment: T,
}

/// Ports of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceAttachments {
    /// Ports.
    #[serde(rename = "interfaceAttachments")]
    pub interface_attachments: Vec<InterfaceAttachment>,
}

/// Gives a server another port: one that exists, or a new one on a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceAttach {
    /// A port that exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_id: Option<String>,
    /// Network for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net_id: Option<String>,
    /// Addresses of the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_ips: Option<Vec<FixedIp>>,
    /// From 2.49: name of the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// `{"metadata": …}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// Pairs.
    pub metadata: BTreeMap<String, String>,
}

/// `{"availabilityZoneInfo": […]}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvailabilityZones {
    /// Zones.
    #[serde(rename = "availabilityZoneInfo")]
    pub zones: Vec<AvailabilityZone>,
}

/// A zone of hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvailabilityZone {
    /// Name.
    #[serde(rename = "zoneName")]
    pub name: String,
    /// Whether the zone takes new servers.
    #[serde(rename = "zoneState")]
    pub state: ZoneState,
    /// Hosts with their services, in the detailed list; null otherwise.
    #[serde(default)]
    pub hosts: Option<serde_json::Value>,
}

/// State of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneState {
    /// True if the zone takes new servers.
    pub available: bool,
}

/// Quotas of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaSet {
    /// Project; absent in defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Servers; -1 is no limit, as everywhere here.
    pub instances: i64,
    /// Processors.
    pub cores: i64,
    /// MiB.
    pub ram: i64,
    /// Pairs per server.
    pub metadata_items: i64,
    /// Key pairs per user.
    pub key_pairs: i64,
    /// Groups of servers.
    pub server_groups: i64,
    /// Servers per group.
    pub server_group_members: i64,
    /// Before 2.57: files put into a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub injected_files: Option<i64>,
    /// Before 2.57: bytes of such a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub injected_file_content_bytes: Option<i64>,
    /// Before 2.57: bytes of its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub injected_file_path_bytes: Option<i64>,
    /// Before 2.36: floating IPs, no more in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floating_ips: Option<i64>,
    /// Before 2.36: fixed IPs, no more in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_ips: Option<i64>,
    /// Before 2.36: security groups, no more in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<i64>,
    /// Before 2.36: security-group rules, no more in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_group_rules: Option<i64>,
}

/// Changes quotas; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaSetUpdate {
    /// Servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<i64>,
    /// Processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<i64>,
    /// MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram: Option<i64>,
}

/// `{"quota_set": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaSetEnvelope<T = QuotaSet> {
    /// The quotas.
    pub quota_set: T,
}

/// `{"limits": …}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsEnvelope {
    /// The limits.
    pub limits: Limits,
}

/// Limits of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Always empty.
    #[serde(default)]
    pub rate: Vec<serde_json::Value>,
    /// Quotas and their use.
    pub absolute: AbsoluteLimits,
}

/// Quotas and their use; -1 is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AbsoluteLimits {
    /// Servers.
    pub max_total_instances: i64,
    /// Servers in use.
    pub total_instances_used: i64,
    /// Processors.
    pub max_total_cores: i64,
    /// Processors in use.
    pub total_cores_used: i64,
    /// MiB.
    #[serde(rename = "maxTotalRAMSize")]
    pub max_total_ram_size: i64,
    /// MiB in use.
    #[serde(rename = "totalRAMUsed")]
    pub total_ram_used: i64,
    /// Pairs per server.
    pub max_server_meta: i64,
    /// Key pairs.
    pub max_total_keypairs: i64,
    /// Groups of servers.
    pub max_server_groups: i64,
    /// Servers per group.
    pub max_server_group_members: i64,
    /// Groups of servers in use.
    pub total_server_groups_used: i64,
}
