use serde::{Deserialize, Serialize};

use super::{
    IdRef, Listener, ListenerCreate, OperatingStatus, Patch, PoolCreate, PoolTree,
    ProvisioningStatus, envelopes, or_default,
};

envelopes!(loadbalancer: LoadBalancerBody, loadbalancers: LoadBalancers, loadbalancers_links of LoadBalancer);

/// Load balancer as answered.
///
/// The answer to a create has whole listeners and pools ([`LoadBalancerTree`]); it can be read as
/// either.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadBalancer<L = IdRef, P = IdRef> {
    /// Identifier.
    pub id: String,
    /// Name; need not be unique.
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
    /// Project that owns it.
    #[serde(default, deserialize_with = "or_default")]
    pub project_id: String,
    /// Creation, such as `2017-05-11T17:21:34` (UTC).
    #[serde(default)]
    pub created_at: Option<String>,
    /// Last change; none if never changed.
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
    /// Network of the address.
    #[serde(default)]
    pub vip_network_id: Option<String>,
    /// Security groups of the port, from 2.29.
    #[serde(default, deserialize_with = "or_default")]
    pub vip_sg_ids: Vec<String>,
    /// Further addresses, from 2.26.
    #[serde(default, deserialize_with = "or_default")]
    pub additional_vips: Vec<AdditionalVip>,
    /// Listeners.
    #[serde(default = "Vec::new")]
    pub listeners: Vec<L>,
    /// Pools.
    #[serde(default = "Vec::new")]
    pub pools: Vec<P>,
    /// Provider driver, such as `amphora` or `ovn`.
    #[serde(default, deserialize_with = "or_default")]
    pub provider: String,
    /// Flavor.
    #[serde(default)]
    pub flavor_id: Option<String>,
    /// QoS policy of the port.
    #[serde(default)]
    pub vip_qos_policy_id: Option<String>,
    /// Tags, from 2.5.
    #[serde(default, deserialize_with = "or_default")]
    pub tags: Vec<String>,
    /// Availability zone, from 2.14.
    #[serde(default)]
    pub availability_zone: Option<String>,
    /// Kind of the port's interface: `normal` or `direct`; absent from old releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vip_vnic_type: Option<String>,
}

/// Load balancer with everything below it: the answer to a create.
pub type LoadBalancerTree = LoadBalancer<Listener, PoolTree>;

/// Further address of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdditionalVip {
    /// Subnet.
    pub subnet_id: String,
    /// Address; in a create, none leaves the choice to the cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<String>,
    /// Port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_id: Option<String>,
}

/// Load balancer to create. Needs one of `vip_port_id`, `vip_subnet_id` and `vip_network_id`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<ListenerCreate>,
    /// Pools to create with it, which listeners may name.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolCreate>,
}

/// Change of a load balancer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
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
