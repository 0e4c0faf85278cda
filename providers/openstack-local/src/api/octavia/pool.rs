use serde::{Deserialize, Serialize};

use super::{
    HealthMonitor, HealthMonitorCreate, IdRef, LbAlgorithm, Member, MemberCreate, OperatingStatus,
    Patch, PersistenceType, PoolProtocol, ProvisioningStatus, envelopes, or_default,
};

envelopes!(pool: PoolBody, pools: Pools, pools_links of Pool);

/// Pool as answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pool<M = IdRef, H = MonitorRef> {
    /// Identifier.
    pub id: String,
    /// Name.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// Description.
    #[serde(default, deserialize_with = "or_default")]
    pub description: String,
    /// Provisioning status: whether a change is in progress.
    pub provisioning_status: ProvisioningStatus,
    /// Operating status: whether it works.
    pub operating_status: OperatingStatus,
    /// Switched on.
    #[serde(default)]
    pub admin_state_up: bool,
    /// Protocol that members speak; never changes.
    pub protocol: PoolProtocol,
    /// Load-balancing algorithm.
    pub lb_algorithm: LbAlgorithm,
    /// Session persistence; null for none.
    #[serde(default)]
    pub session_persistence: Option<SessionPersistence>,
    /// Project that owns it.
    #[serde(default, deserialize_with = "or_default")]
    pub project_id: String,
    /// Load balancer of the object, exactly one. Absent inside a
    /// [`LoadBalancerTree`](super::LoadBalancerTree).
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub loadbalancers: Vec<IdRef>,
    /// Listeners that forward to it.
    #[serde(default, deserialize_with = "or_default")]
    pub listeners: Vec<IdRef>,
    /// Creation.
    #[serde(default)]
    pub created_at: Option<String>,
    /// Last change; none if never changed.
    #[serde(default)]
    pub updated_at: Option<String>,
    /// Health monitor of the pool.
    #[serde(flatten)]
    pub monitor: H,
    /// Members.
    #[serde(default = "Vec::new")]
    pub members: Vec<M>,
    /// Tags, from 2.5.
    #[serde(default, deserialize_with = "or_default")]
    pub tags: Vec<String>,
    /// Certificate towards members.
    #[serde(default)]
    pub tls_container_ref: Option<String>,
    /// Authorities of members' certificates.
    #[serde(default)]
    pub ca_tls_container_ref: Option<String>,
    /// Revoked members' certificates.
    #[serde(default)]
    pub crl_container_ref: Option<String>,
    /// TLS towards members.
    #[serde(default, deserialize_with = "or_default")]
    pub tls_enabled: bool,
    /// Ciphers.
    #[serde(default)]
    pub tls_ciphers: Option<String>,
    /// Versions of TLS.
    #[serde(default, deserialize_with = "or_default")]
    pub tls_versions: Vec<String>,
    /// Protocols inside TLS.
    #[serde(default, deserialize_with = "or_default")]
    pub alpn_protocols: Vec<String>,
}

/// Pool with its members and monitor, inside a [`LoadBalancerTree`](super::LoadBalancerTree).
pub type PoolTree = Pool<Member, MonitorObject>;

/// Health monitor of a pool, by reference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorRef {
    /// Identifier; null when there is none.
    #[serde(default)]
    pub healthmonitor_id: Option<String>,
}

/// Health monitor of a pool, whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MonitorObject {
    /// The monitor; null when there is none.
    #[serde(default)]
    pub healthmonitor: Option<HealthMonitor>,
}

/// Session persistence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionPersistence {
    /// Kind.
    #[serde(rename = "type")]
    pub kind: PersistenceType,
    /// Cookie of kind `APP_COOKIE`.
    #[serde(default)]
    pub cookie_name: Option<String>,
    /// Timeout of the persistence in seconds; UDP and SCTP only.
    #[serde(default)]
    pub persistence_timeout: Option<u32>,
    /// Mask of the client's address; UDP and SCTP only.
    #[serde(default)]
    pub persistence_granularity: Option<String>,
}

impl SessionPersistence {
    /// By the client's address.
    pub const SOURCE_IP: Self = Self {
        kind: PersistenceType::SourceIp,
        cookie_name: None,
        persistence_timeout: None,
        persistence_granularity: None,
    };
}

/// Pool to create: alone (with `listener_id` or `loadbalancer_id`), or inside a listener or load
/// balancer (without). Inside a new load balancer, one with a name alone stands for the pool of
/// that name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolCreate {
    /// Listener that shall forward to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener_id: Option<String>,
    /// Load balancer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loadbalancer_id: Option<String>,
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Switched on; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_state_up: Option<bool>,
    /// Protocol; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<PoolProtocol>,
    /// Load-balancing algorithm; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lb_algorithm: Option<LbAlgorithm>,
    /// Session persistence; none by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_persistence: Option<SessionPersistence>,
    /// Monitor to create with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthmonitor: Option<HealthMonitorCreate>,
    /// Members to create with it.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberCreate>,
    /// Tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// Certificate towards members.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_container_ref: Option<String>,
    /// Authorities of members' certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_tls_container_ref: Option<String>,
    /// Revoked members' certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crl_container_ref: Option<String>,
    /// TLS towards members; default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_enabled: Option<bool>,
    /// Ciphers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_ciphers: Option<String>,
    /// Versions of TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_versions: Option<Vec<String>>,
    /// Protocols inside TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpn_protocols: Option<Vec<String>>,
}

/// Change of a pool. Its protocol stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolUpdate {
    /// Name.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub name: Patch<String>,
    /// Description.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub description: Patch<String>,
    /// Switched on.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub admin_state_up: Patch<bool>,
    /// Load-balancing algorithm.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub lb_algorithm: Patch<LbAlgorithm>,
    /// Session persistence; null for none.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub session_persistence: Patch<SessionPersistence>,
    /// Tags: all of them.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub tags: Patch<Vec<String>>,
    /// Certificate towards members.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub tls_container_ref: Patch<String>,
    /// Authorities of members' certificates.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub ca_tls_container_ref: Patch<String>,
    /// Revoked members' certificates.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub crl_container_ref: Patch<String>,
    /// TLS towards members.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub tls_enabled: Patch<bool>,
    /// Ciphers.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub tls_ciphers: Patch<String>,
    /// Versions of TLS.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub tls_versions: Patch<Vec<String>>,
    /// Protocols inside TLS.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub alpn_protocols: Patch<Vec<String>>,
}
