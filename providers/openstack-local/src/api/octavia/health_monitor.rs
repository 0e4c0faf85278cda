use serde::{Deserialize, Serialize};

use super::{
    IdRef, MonitorType, OperatingStatus, Patch, ProvisioningStatus, envelopes, or_default,
};

envelopes!(healthmonitor: HealthMonitorBody, healthmonitors: HealthMonitors, healthmonitors_links of HealthMonitor);

/// Health monitor of a pool as answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthMonitor {
    /// Identifier.
    pub id: String,
    /// Name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Kind; never changes.
    #[serde(rename = "type")]
    pub kind: MonitorType,
    /// Time between checks, in seconds.
    pub delay: u32,
    /// Longest wait for an answer, in seconds.
    pub timeout: u32,
    /// Checks that must succeed for a member to come back, 1 to 10.
    pub max_retries: u8,
    /// Checks that must fail for a member to be taken out, 1 to 10.
    #[serde(default = "default_retries_down")]
    pub max_retries_down: u8,
    /// Method of a HTTP check.
    #[serde(default)]
    pub http_method: Option<String>,
    /// Path of a HTTP check.
    #[serde(default)]
    pub url_path: Option<String>,
    /// Status codes that are good: `200`, `200,202` or `200-204`.
    #[serde(default)]
    pub expected_codes: Option<String>,
    /// Switched on.
    #[serde(default)]
    pub admin_state_up: bool,
    /// Project that owns it.
    #[serde(default, deserialize_with = "or_default")]
    pub project_id: String,
    /// Pool of the monitor, exactly one. Absent inside a
    /// [`LoadBalancerTree`](super::LoadBalancerTree).
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pools: Vec<IdRef>,
    /// Provisioning status: whether a change is in progress.
    pub provisioning_status: ProvisioningStatus,
    /// Operating status: whether it works.
    pub operating_status: OperatingStatus,
    /// Creation.
    #[serde(default)]
    pub created_at: Option<String>,
    /// Last change; none if never changed.
    #[serde(default)]
    pub updated_at: Option<String>,
    /// Tags, from 2.5.
    #[serde(default, deserialize_with = "or_default")]
    pub tags: Vec<String>,
    /// Version of HTTP, 1.0 or 1.1; from 2.10.
    #[serde(default)]
    pub http_version: Option<f64>,
    /// Host of a HTTP/1.1 check, from 2.10.
    #[serde(default)]
    pub domain_name: Option<String>,
}

fn default_retries_down() -> u8 {
    3
}

/// Health monitor to create: alone (with `pool_id`), or inside a pool (without).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthMonitorCreate {
    /// Pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_id: Option<String>,
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Kind; required.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<MonitorType>,
    /// Time between checks, in seconds; required.
    pub delay: u32,
    /// Longest wait for an answer, in seconds; required, and not longer than `delay`.
    pub timeout: u32,
    /// Checks that must succeed; required.
    pub max_retries: u8,
    /// Checks that must fail; default 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries_down: Option<u8>,
    /// Method of a HTTP check; default `GET`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_method: Option<String>,
    /// Path of a HTTP check; default `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url_path: Option<String>,
    /// Status codes that are good; default `200`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_codes: Option<String>,
    /// Switched on; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_state_up: Option<bool>,
    /// Tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// Version of HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_version: Option<f64>,
    /// Host of a HTTP/1.1 check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain_name: Option<String>,
}

/// Change of a health monitor. Its kind stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthMonitorUpdate {
    /// Name.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub name: Patch<String>,
    /// Seconds.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub delay: Patch<u32>,
    /// Seconds.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub timeout: Patch<u32>,
    /// Checks that must succeed.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub max_retries: Patch<u8>,
    /// Checks that must fail.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub max_retries_down: Patch<u8>,
    /// Method of a HTTP check.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub http_method: Patch<String>,
    /// Path of a HTTP check.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub url_path: Patch<String>,
    /// Status codes that are good.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub expected_codes: Patch<String>,
    /// Switched on.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub admin_state_up: Patch<bool>,
    /// Tags: all of them.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub tags: Patch<Vec<String>>,
    /// Version of HTTP.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub http_version: Patch<f64>,
    /// Host of a HTTP/1.1 check.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub domain_name: Patch<String>,
}
