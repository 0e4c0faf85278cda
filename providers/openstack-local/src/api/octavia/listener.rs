use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    IdRef, ListenerProtocol, OperatingStatus, Patch, PoolCreate, ProvisioningStatus, envelopes,
    or_default,
};

envelopes!(listener: ListenerBody, listeners: Listeners, listeners_links of Listener);

/// Listener as answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listener {
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
    /// Protocol; never changes.
    pub protocol: ListenerProtocol,
    /// Port that clients connect to; never changes.
    pub protocol_port: u16,
    /// Most connections at a time; -1 is no limit.
    #[serde(default = "no_limit")]
    pub connection_limit: i64,
    /// Certificate of a `TERMINATED_HTTPS` listener.
    #[serde(default)]
    pub default_tls_container_ref: Option<String>,
    /// Further certificates, by server name.
    #[serde(default, deserialize_with = "or_default")]
    pub sni_container_refs: Vec<String>,
    /// Project that owns it.
    #[serde(default, deserialize_with = "or_default")]
    pub project_id: String,
    /// Pool that it forwards to.
    #[serde(default)]
    pub default_pool_id: Option<String>,
    /// Rules by content.
    #[serde(default, deserialize_with = "or_default")]
    pub l7policies: Vec<IdRef>,
    /// Headers to insert, such as `X-Forwarded-For: true`.
    #[serde(default, deserialize_with = "or_default")]
    pub insert_headers: BTreeMap<String, String>,
    /// Creation.
    #[serde(default)]
    pub created_at: Option<String>,
    /// Last change; none if never changed.
    #[serde(default)]
    pub updated_at: Option<String>,
    /// Load balancer of the object, exactly one. Absent inside a
    /// [`LoadBalancerTree`](super::LoadBalancerTree).
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub loadbalancers: Vec<IdRef>,
    /// Longest silence of a client, in milliseconds; from 2.1.
    #[serde(default)]
    pub timeout_client_data: Option<u32>,
    /// Longest connecting to a member, in milliseconds; from 2.1.
    #[serde(default)]
    pub timeout_member_connect: Option<u32>,
    /// Longest silence of a member, in milliseconds; from 2.1.
    #[serde(default)]
    pub timeout_member_data: Option<u32>,
    /// Wait for content to inspect, in milliseconds; from 2.1.
    #[serde(default)]
    pub timeout_tcp_inspect: Option<u32>,
    /// Tags, from 2.5.
    #[serde(default, deserialize_with = "or_default")]
    pub tags: Vec<String>,
    /// Authorities of clients' certificates, from 2.8.
    #[serde(default)]
    pub client_ca_tls_container_ref: Option<String>,
    /// `NONE`, `OPTIONAL` or `MANDATORY`; from 2.8.
    #[serde(default)]
    pub client_authentication: Option<String>,
    /// Revoked clients' certificates, from 2.8.
    #[serde(default)]
    pub client_crl_container_ref: Option<String>,
    /// Networks that clients may come from; none (null) is everywhere. From 2.12.
    #[serde(default)]
    pub allowed_cidrs: Option<Vec<String>>,
    /// Ciphers.
    #[serde(default)]
    pub tls_ciphers: Option<String>,
    /// Versions of TLS.
    #[serde(default, deserialize_with = "or_default")]
    pub tls_versions: Vec<String>,
    /// Protocols inside TLS.
    #[serde(default, deserialize_with = "or_default")]
    pub alpn_protocols: Vec<String>,
    /// HSTS: how long, in seconds; from 2.27.
    #[serde(default)]
    pub hsts_max_age: Option<u32>,
    /// HSTS: for subdomains too.
    #[serde(default, deserialize_with = "or_default")]
    pub hsts_include_subdomains: bool,
    /// HSTS: for lists that browsers carry.
    #[serde(default, deserialize_with = "or_default")]
    pub hsts_preload: bool,
}

fn no_limit() -> i64 {
    -1
}

/// Listener to create: alone (with `loadbalancer_id`), or inside a new load balancer (without).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
