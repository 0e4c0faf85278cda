use serde::{Deserialize, Serialize};

use super::{MonitorType, OperatingStatus, ProvisioningStatus, or_default};

/// Answer to `/loadbalancers/{id}/status`: states of everything below a load balancer, in one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusTree {
    /// Envelope.
    pub statuses: Statuses,
}

/// Envelope inside [`StatusTree`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statuses {
    /// The load balancer.
    pub loadbalancer: LoadBalancerStatus,
}

/// States of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadBalancerStatus {
    /// Identifier.
    pub id: String,
    /// Name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Operating status: whether it works.
    pub operating_status: OperatingStatus,
    /// Provisioning status: whether a change is in progress.
    pub provisioning_status: ProvisioningStatus,
    /// Listeners.
    #[serde(default, deserialize_with = "or_default")]
    pub listeners: Vec<ListenerStatus>,
}

/// States of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Identifier.
    pub id: String,
    /// Name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Operating status: whether it works.
    pub operating_status: OperatingStatus,
    /// Provisioning status: whether a change is in progress.
    pub provisioning_status: ProvisioningStatus,
    /// Pools that it forwards to.
    #[serde(default, deserialize_with = "or_default")]
    pub pools: Vec<PoolStatus>,
}

/// States of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Identifier.
    pub id: String,
    /// Name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Provisioning status: whether a change is in progress.
    pub provisioning_status: ProvisioningStatus,
    /// Operating status: whether it works.
    pub operating_status: OperatingStatus,
    /// Health monitor of the pool; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_monitor: Option<MonitorStatus>,
    /// Members.
    #[serde(default, deserialize_with = "or_default")]
    pub members: Vec<MemberStatus>,
}

/// States of a health monitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorStatus {
    /// Identifier.
    pub id: String,
    /// Name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Kind.
    #[serde(rename = "type")]
    pub kind: MonitorType,
    /// Provisioning status: whether a change is in progress.
    pub provisioning_status: ProvisioningStatus,
    /// Operating status: whether it works.
    pub operating_status: OperatingStatus,
}

/// States of a member, with where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Identifier.
    pub id: String,
    /// Name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Operating status: whether it works.
    pub operating_status: OperatingStatus,
    /// Provisioning status: whether a change is in progress.
    pub provisioning_status: ProvisioningStatus,
    /// Address.
    pub address: String,
    /// Port.
    pub protocol_port: u16,
}

/// Answer to `/loadbalancers/{id}/stats` and `/listeners/{id}/stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsBody {
    /// Counters.
    pub stats: Stats,
}

/// Counters of a load balancer or of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// Connections that are open.
    pub active_connections: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
    /// Requests that failed.
    pub request_errors: u64,
    /// Connections ever.
    pub total_connections: u64,
}
