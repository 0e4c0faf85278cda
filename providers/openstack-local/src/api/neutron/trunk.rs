use serde::{Deserialize, Serialize};

use super::{Standard, envelopes};
use crate::api::lenient::or_default;

/// A port that carries other ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trunk {
    /// Identifier, a UUID.
    pub id: String,
    /// Name; not unique.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// The port that carries.
    #[serde(default, deserialize_with = "or_default")]
    pub port_id: String,
    /// `ACTIVE`, `DOWN`, `BUILD`, `DEGRADED` or `ERROR`.
    #[serde(default, deserialize_with = "or_default")]
    pub status: String,
    /// Administrative state: false if it is switched off.
    #[serde(default, deserialize_with = "or_default")]
    pub admin_state_up: bool,
    /// The ports carried.
    #[serde(default, deserialize_with = "or_default")]
    pub sub_ports: Vec<SubPort>,
    /// Project, times, revision, tags.
    #[serde(flatten)]
    pub standard: Standard,
}

envelopes!(TrunkEnvelope, trunk: Trunk, Trunks, trunks, trunks_links);

/// A port on a trunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubPort {
    /// Port.
    pub port_id: String,
    /// Number on the wire; not needed to remove it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segmentation_id: Option<u32>,
    /// `vlan` or `inherit`; not needed to remove it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segmentation_type: Option<String>,
}

/// Body and answer of `get_subports`, `add_subports` and `remove_subports`, without envelope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubPorts {
    /// The ports.
    pub sub_ports: Vec<SubPort>,
}

/// Asks for a trunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrunkCreate {
    /// The port that carries.
    pub port_id: String,
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// On unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_state_up: Option<bool>,
    /// The ports carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_ports: Option<Vec<SubPort>>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// For administrators: project it shall belong to.
    #[serde(default, alias = "tenant_id", skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
}

/// Changes a trunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrunkUpdate {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Administrative state: false if it is switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_state_up: Option<bool>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}
