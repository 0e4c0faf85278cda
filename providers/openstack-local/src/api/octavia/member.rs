use serde::{Deserialize, Serialize};

use super::{OperatingStatus, Patch, ProvisioningStatus, envelopes, or_default};

envelopes!(member: MemberBody, members: Members, members_links of Member);

/// Member of a pool as answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Identifier.
    pub id: String,
    /// Name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Operating status: whether it works.
    pub operating_status: OperatingStatus,
    /// Provisioning status: whether a change is in progress.
    pub provisioning_status: ProvisioningStatus,
    /// Switched on.
    #[serde(default)]
    pub admin_state_up: bool,
    /// Address; never changes.
    pub address: String,
    /// Port; never changes.
    pub protocol_port: u16,
    /// Share of the traffic, 0 (no new connections) to 256.
    #[serde(default = "default_weight")]
    pub weight: u16,
    /// Takes traffic only when all others are down.
    #[serde(default, deserialize_with = "or_default")]
    pub backup: bool,
    /// Subnet that it is reached through; never changes.
    #[serde(default)]
    pub subnet_id: Option<String>,
    /// Project that owns it.
    #[serde(default, deserialize_with = "or_default")]
    pub project_id: String,
    /// Creation.
    #[serde(default)]
    pub created_at: Option<String>,
    /// Last change; none if never changed.
    #[serde(default)]
    pub updated_at: Option<String>,
    /// Address for health checks; null for `address`.
    #[serde(default)]
    pub monitor_address: Option<String>,
    /// Port for health checks; null for `protocol_port`.
    #[serde(default)]
    pub monitor_port: Option<u16>,
    /// Tags, from 2.5.
    #[serde(default, deserialize_with = "or_default")]
    pub tags: Vec<String>,
    /// Kind of interface; absent from old releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vnic_type: Option<String>,
}

fn default_weight() -> u16 {
    1
}

/// Member to create; also an entry of the batch that replaces a pool's members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberCreate {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Switched on; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_state_up: Option<bool>,
    /// Address; required.
    pub address: String,
    /// Port; required.
    pub protocol_port: u16,
    /// Share of the traffic; default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// Takes traffic only when all others are down; default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<bool>,
    /// Subnet that it is reached through; default the VIP's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet_id: Option<String>,
    /// Address for health checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitor_address: Option<String>,
    /// Port for health checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub monitor_port: Option<u16>,
    /// Tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
}

/// Batch that replaces the members of a pool, or adds to them with `?additive_only=true` (from
/// 2.11).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberBatch {
    /// Members, told apart by address and port.
    pub members: Vec<MemberCreate>,
}

/// Change of a member. Its address, port and subnet stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberUpdate {
    /// Name.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub name: Patch<String>,
    /// Switched on.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub admin_state_up: Patch<bool>,
    /// Share of the traffic.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub weight: Patch<u16>,
    /// Takes traffic only when all others are down.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub backup: Patch<bool>,
    /// Address for health checks.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub monitor_address: Patch<String>,
    /// Port for health checks.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub monitor_port: Patch<u16>,
    /// Tags: all of them.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub tags: Patch<Vec<String>>,
}
