//! Requests to the load-balancing service (Octavia v2), and its words.
//!
//! In an update each field is a [`Patch`], because Octavia takes null as "back to the default".

mod patch;
mod words;

use std::collections::BTreeMap;

use serde::Serialize;

pub use self::{patch::Patch, words::*};

/// Load balancer to create. Needs one of `vip_port_id`, `vip_subnet_id` and `vip_network_id`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LoadBalancerCreate {
    /// Name, at most 255 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Description, at most 255 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Switched on; default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_state_up: Option<bool>,
    /// Owner; default the token's project.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Address wanted; default any of the subnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vip_address: Option<String>,
    /// Port that exists already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vip_port_id: Option<String>,
    /// Subnet for a new port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vip_subnet_id: Option<String>,
    /// Network for a new port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vip_network_id: Option<String>,
    /// QoS policy of the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vip_qos_policy_id: Option<String>,
    /// Security groups of the port, from 2.29.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vip_sg_ids: Option<Vec<String>>,
    /// Further addresses, from 2.26.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub additional_vips: Option<Vec<AdditionalVip>>,
    /// Provider driver; default the cloud's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Flavor, from 2.6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flavor_id: Option<String>,
    /// Availability zone, from 2.14.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub availability_zone: Option<String>,
    /// Tags, from 2.5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// Listeners to create with it, each with its `default_pool`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<ListenerCreate>,
    /// Pools to create with it, which listeners may name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolCreate>,
}

/// Further address of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AdditionalVip {
    /// Subnet.
    pub subnet_id: String,
    /// Address; in a create, none leaves the choice to the cloud.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<String>,
    /// Port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port_id: Option<String>,
}

/// Change of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LoadBalancerUpdate {
    /// Name.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub name: Patch<String>,
    /// Description.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub description: Patch<String>,
    /// Switched on.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub admin_state_up: Patch<bool>,
    /// Tags: all of them.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub tags: Patch<Vec<String>>,
    /// QoS policy of the port.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub vip_qos_policy_id: Patch<String>,
    /// Security groups of the port.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub vip_sg_ids: Patch<Vec<String>>,
}

/// Listener to create: alone (with `loadbalancer_id`), or inside a new load balancer (without).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ListenerCreate {
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
    pub protocol: Option<ListenerProtocol>,
    /// Port; required.
    pub protocol_port: u16,
    /// Most connections at a time; default -1, no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_limit: Option<i64>,
    /// Certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_tls_container_ref: Option<String>,
    /// Further certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sni_container_refs: Option<Vec<String>>,
    /// Pool that exists already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_pool_id: Option<String>,
    /// Pool to create with it. Inside a new load balancer it needs a name of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_pool: Option<PoolCreate>,
    /// Headers to insert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insert_headers: Option<BTreeMap<String, String>>,
    /// Milliseconds; default 50,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_client_data: Option<u32>,
    /// Milliseconds; default 5,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_member_connect: Option<u32>,
    /// Milliseconds; default 50,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_member_data: Option<u32>,
    /// Milliseconds; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_tcp_inspect: Option<u32>,
    /// Tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// Authorities of clients' certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca_tls_container_ref: Option<String>,
    /// `NONE`, `OPTIONAL` or `MANDATORY`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_authentication: Option<String>,
    /// Revoked clients' certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_crl_container_ref: Option<String>,
    /// Networks that clients may come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_cidrs: Option<Vec<String>>,
    /// Ciphers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_ciphers: Option<String>,
    /// Versions of TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_versions: Option<Vec<String>>,
    /// Protocols inside TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpn_protocols: Option<Vec<String>>,
    /// HSTS: seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hsts_max_age: Option<u32>,
    /// HSTS: for subdomains too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hsts_include_subdomains: Option<bool>,
    /// HSTS: for lists that browsers carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hsts_preload: Option<bool>,
}

/// Change of a listener. Its protocol and port stay.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ListenerUpdate {
    /// Name.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub name: Patch<String>,
    /// Description.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub description: Patch<String>,
    /// Switched on.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub admin_state_up: Patch<bool>,
    /// Most connections at a time.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub connection_limit: Patch<i64>,
    /// Certificate.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub default_tls_container_ref: Patch<String>,
    /// Further certificates.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub sni_container_refs: Patch<Vec<String>>,
    /// Pool that it forwards to.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub default_pool_id: Patch<String>,
    /// Headers to insert: all of them.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub insert_headers: Patch<BTreeMap<String, String>>,
    /// Milliseconds.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub timeout_client_data: Patch<u32>,
    /// Milliseconds.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub timeout_member_connect: Patch<u32>,
    /// Milliseconds.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub timeout_member_data: Patch<u32>,
    /// Milliseconds.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub timeout_tcp_inspect: Patch<u32>,
    /// Tags: all of them.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub tags: Patch<Vec<String>>,
    /// Authorities of clients' certificates.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub client_ca_tls_container_ref: Patch<String>,
    /// `NONE`, `OPTIONAL` or `MANDATORY`.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub client_authentication: Patch<String>,
    /// Revoked clients' certificates.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub client_crl_container_ref: Patch<String>,
    /// Networks that clients may come from: all of them; null is everywhere.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub allowed_cidrs: Patch<Vec<String>>,
    /// Ciphers.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub tls_ciphers: Patch<String>,
    /// Versions of TLS.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub tls_versions: Patch<Vec<String>>,
    /// Protocols inside TLS.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub alpn_protocols: Patch<Vec<String>>,
    /// HSTS: seconds.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub hsts_max_age: Patch<u32>,
    /// HSTS: for subdomains too.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub hsts_include_subdomains: Patch<bool>,
    /// HSTS: for lists that browsers carry.
    #[serde(skip_serializing_if = "Patch::is_keep")]
    pub hsts_preload: Patch<bool>,
}

/// Pool to create: alone (with `listener_id` or `loadbalancer_id`), or inside a listener or load
/// balancer (without). Inside a new load balancer, one with a name alone stands for the pool of
/// that name.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
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

/// Session persistence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionPersistence {
    /// Kind.
    #[serde(rename = "type")]
    pub kind: PersistenceType,
    /// Cookie of kind `APP_COOKIE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie_name: Option<String>,
    /// Timeout of the persistence in seconds; UDP and SCTP only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistence_timeout: Option<u32>,
    /// Mask of the client's address; UDP and SCTP only.
    #[serde(skip_serializing_if = "Option::is_none")]
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

/// Member to create; also an entry of the batch that replaces a pool's members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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

/// Change of a member. Its address, port and subnet stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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

/// Health monitor to create: alone (with `pool_id`), or inside a pool (without).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
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
