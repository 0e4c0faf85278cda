//! Answers of the load-balancing service.

use std::collections::BTreeMap;

use openstack_api::octavia::{
    LbAlgorithm, ListenerProtocol, MonitorType, OperatingStatus, PersistenceType, PoolProtocol,
    ProvisioningStatus,
};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{IdRef, text};

/// A load balancer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct LoadBalancer {
    /// ID of the load balancer.
    pub id: String,
    /// Name; need not be unique. Required, because one without it could be the one that is looked for.
    pub name: String,
    /// ID of its project.
    #[serde(default)]
    pub project_id: String,
    /// Description.
    #[serde(default)]
    pub description: String,
    /// Whether a change is in progress. Required, because a load balancer in an unknown state can
    /// neither be changed nor deleted.
    pub provisioning_status: ProvisioningStatus,
    /// Whether it works.
    #[serde(default)]
    pub operating_status: OperatingStatus,
    /// Creation, such as `2017-05-11T17:21:34` (UTC).
    #[serde(default)]
    pub created_at: Option<String>,
    /// Last change; none if it was never changed.
    #[serde(default)]
    pub updated_at: Option<String>,
    /// Address that clients connect to.
    #[serde(default)]
    pub vip_address: Option<String>,
    /// Port that holds the address; floating IPs are attached to it.
    #[serde(default)]
    pub vip_port_id: Option<String>,
    /// Subnet of the address.
    #[serde(default)]
    pub vip_subnet_id: Option<String>,
    /// Further addresses on the same port, from 2.26.
    #[serde(default)]
    pub additional_vips: Vec<AdditionalVip>,
    /// Its listeners.
    #[serde(default)]
    pub listeners: Vec<IdRef>,
    /// Its pools.
    #[serde(default)]
    pub pools: Vec<IdRef>,
    /// Provider driver, such as `amphora` or `ovn`.
    #[serde(default)]
    pub provider: String,
    /// Tags, from 2.5.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// A further address of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct AdditionalVip {
    /// The address, if it has one yet.
    pub ip_address: Option<String>,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Listener {
    /// ID of the listener.
    pub id: String,
    /// Name; need not be unique.
    #[serde(default)]
    pub name: String,
    /// Protocol, which never changes.
    pub protocol: ListenerProtocol,
    /// Port that clients connect to, which never changes.
    pub protocol_port: u16,
    /// Maximum number of connections; -1 for no limit.
    #[serde(default = "no_limit")]
    pub connection_limit: i64,
    /// Certificate of a `TERMINATED_HTTPS` listener.
    #[serde(default)]
    pub default_tls_container_ref: Option<String>,
    /// Pool that it forwards to.
    #[serde(default)]
    pub default_pool_id: Option<String>,
    /// Headers that it inserts, such as `X-Forwarded-For: true`. A map that is absent must not be
    /// replaced.
    #[serde(default, deserialize_with = "optional_texts")]
    pub insert_headers: Option<BTreeMap<String, String>>,
    /// Creation.
    #[serde(default)]
    pub created_at: Option<String>,
    /// Its load balancer.
    #[serde(default)]
    pub loadbalancers: Vec<IdRef>,
    /// Timeout of a client's silence, in milliseconds; from 2.1.
    #[serde(default)]
    pub timeout_client_data: Option<u32>,
    /// Timeout of a connection to a member, in milliseconds; from 2.1.
    #[serde(default)]
    pub timeout_member_connect: Option<u32>,
    /// Timeout of a member's silence, in milliseconds; from 2.1.
    #[serde(default)]
    pub timeout_member_data: Option<u32>,
    /// Wait for content to inspect, in milliseconds; from 2.1.
    #[serde(default)]
    pub timeout_tcp_inspect: Option<u32>,
    /// Tags, from 2.5.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Networks that clients may come from; absent for all. From 2.12.
    #[serde(default)]
    pub allowed_cidrs: Option<Vec<String>>,
}

fn no_limit() -> i64 {
    -1
}

/// Deserializes a map of texts. Numbers and booleans become their text.
fn optional_texts<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Text(#[serde(deserialize_with = "text")] String);

    let texts = BTreeMap::<String, Text>::deserialize(deserializer)?;
    let texts = texts.into_iter().map(|(name, Text(text))| (name, text));
    Ok(Some(texts.collect()))
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Pool {
    /// ID of the pool.
    pub id: String,
    /// Name; need not be unique.
    #[serde(default)]
    pub name: String,
    /// Protocol that members speak. It never changes. Required, because a pool of another protocol
    /// is replaced.
    pub protocol: PoolProtocol,
    /// Load-balancing algorithm.
    #[serde(default)]
    pub lb_algorithm: Option<LbAlgorithm>,
    /// Session persistence, if it has one.
    #[serde(default)]
    pub session_persistence: Option<Persistence>,
    /// Its load balancer.
    #[serde(default)]
    pub loadbalancers: Vec<IdRef>,
    /// Listeners that forward to it. A pool that does not show them may serve any.
    #[serde(default)]
    pub listeners: Option<Vec<IdRef>>,
    /// Its health monitor, if it has one.
    #[serde(default)]
    pub healthmonitor_id: Option<String>,
    /// Its members. A pool that does not show them may have any.
    #[serde(default)]
    pub members: Option<Vec<IdRef>>,
    /// Tags, from 2.5.
    #[serde(default)]
    pub tags: Vec<String>,
}

/// Session persistence of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Persistence {
    /// Kind of persistence.
    #[serde(rename = "type")]
    pub kind: PersistenceType,
}

/// A member of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Member {
    /// ID of the member.
    pub id: String,
    /// Address, which never changes.
    pub address: String,
    /// Port, which never changes.
    pub protocol_port: u16,
    /// Share of the traffic, 0 (no new connections) to 256.
    #[serde(default = "default_weight")]
    pub weight: u16,
    /// Subnet that it is reached through, which never changes.
    #[serde(default)]
    pub subnet_id: Option<String>,
    /// Port for health checks; absent for `protocol_port`.
    #[serde(default)]
    pub monitor_port: Option<u16>,
}

fn default_weight() -> u16 {
    1
}

/// A health monitor. A number that Octavia does not show counts as the desired one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct HealthMonitor {
    /// ID of the monitor.
    pub id: String,
    /// Name; need not be unique.
    #[serde(default)]
    pub name: String,
    /// Kind, which never changes. Required, because a monitor of another kind is replaced.
    #[serde(rename = "type")]
    pub kind: MonitorType,
    /// Time between checks, in seconds.
    #[serde(default)]
    pub delay: Option<u32>,
    /// Timeout of a check, in seconds.
    #[serde(default)]
    pub timeout: Option<u32>,
    /// Checks that must succeed before a member serves again.
    #[serde(default)]
    pub max_retries: Option<u8>,
    /// Checks that must fail before a member no longer serves.
    #[serde(default)]
    pub max_retries_down: Option<u8>,
    /// Method of an HTTP check.
    #[serde(default)]
    pub http_method: Option<String>,
    /// Path of an HTTP check.
    #[serde(default)]
    pub url_path: Option<String>,
    /// Status codes that are good.
    #[serde(default)]
    pub expected_codes: Option<String>,
}

/// A load balancer with everything below it: the answer to a create.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadBalancerTree {
    /// The load balancer, with the IDs of its children.
    pub load_balancer: LoadBalancer,
    /// Its listeners.
    pub listeners: Vec<Listener>,
    /// Its pools with their members and monitors.
    pub pools: Vec<PoolTree>,
}

/// A pool with its members and its monitor.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolTree {
    /// The pool, with the IDs of its members and its monitor.
    pub pool: Pool,
    /// Its members.
    pub members: Vec<Member>,
    /// Its monitor, if it has one.
    pub monitor: Option<HealthMonitor>,
}

impl<'de> Deserialize<'de> for LoadBalancerTree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Children {
            #[serde(default)]
            listeners: Vec<Listener>,
            #[serde(default)]
            pools: Vec<PoolTree>,
        }

        let tree = Value::deserialize(deserializer)?;
        let load_balancer = LoadBalancer::deserialize(&tree).map_err(serde::de::Error::custom)?;
        let Children { listeners, pools } =
            Children::deserialize(tree).map_err(serde::de::Error::custom)?;
        Ok(Self { load_balancer, listeners, pools })
    }
}

impl<'de> Deserialize<'de> for PoolTree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Children {
            #[serde(default)]
            members: Vec<Member>,
            #[serde(default)]
            healthmonitor: Option<HealthMonitor>,
        }

        let tree = Value::deserialize(deserializer)?;
        let mut pool = Pool::deserialize(&tree).map_err(serde::de::Error::custom)?;
        let Children { members, healthmonitor } =
            Children::deserialize(tree).map_err(serde::de::Error::custom)?;
        if let Some(monitor) = &healthmonitor {
            pool.healthmonitor_id = Some(monitor.id.clone());
        }
        Ok(Self { pool, members, monitor: healthmonitor })
    }
}

/// A driver that Octavia offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Provider {
    /// Name of the driver, such as `amphora`.
    pub name: String,
}

/// An availability zone for load balancers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct AvailabilityZone {
    /// Name of the zone.
    pub name: String,
}

/// Quotas of a project; -1 for no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(default)]
pub struct Quota {
    /// Load balancers.
    pub loadbalancer: Option<i64>,
    /// Load balancers; old spelling.
    pub load_balancer: Option<i64>,
}
