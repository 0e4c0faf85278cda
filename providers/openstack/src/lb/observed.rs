//! Observed state of a load balancer.

use std::{collections::BTreeMap, net::IpAddr};

use ccm_core::k8s::IpFamily;
use openstack_api::octavia::MemberCreate;

use crate::api::octavia::{HealthMonitor, Listener, LoadBalancer, LoadBalancerTree, Member, Pool};

/// A load balancer with its children, as they were read from Octavia.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedLoadBalancer {
    /// The load balancer itself.
    pub load_balancer: LoadBalancer,
    /// All listeners, including those of other Services.
    pub listeners: Vec<Listener>,
    /// All pools, including those of other Services.
    pub pools: Vec<Pool>,
    /// Members by the ID of their pool. Pools whose members were not read have no entry.
    pub members: BTreeMap<String, Vec<ObservedMember>>,
    /// Health monitors by ID, as far as they were read.
    pub monitors: BTreeMap<String, HealthMonitor>,
}

impl ObservedLoadBalancer {
    /// Returns the addresses of the load balancer, the first VIP first, as far as it has any yet.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let additional = self
            .load_balancer
            .additional_vips
            .iter()
            .filter_map(|vip| vip.ip_address.as_deref());
        self.load_balancer
            .vip_address
            .as_deref()
            .into_iter()
            .chain(additional)
            .filter_map(|address| address.parse().ok())
            .collect()
    }
}

/// Returns the family of an address.
pub fn family_of(address: IpAddr) -> IpFamily {
    match address {
        IpAddr::V4(_) => IpFamily::V4,
        IpAddr::V6(_) => IpFamily::V6,
    }
}

/// A member of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedMember {
    /// ID of the member, or `None` after a batch update, whose answer has no IDs.
    pub id: Option<Box<str>>,
    /// IP address in canonical form.
    pub address: Box<str>,
    /// Port that the member listens on.
    pub port: u16,
    /// Share of the traffic, from 0 to 256.
    pub weight: u16,
    /// ID of the member's subnet.
    pub subnet: Option<Box<str>>,
    /// Port for health checks, or `None` to check `port`.
    pub monitor_port: Option<u16>,
}

impl ObservedMember {
    /// Returns the address and port, which are unique in a pool.
    pub fn key(&self) -> (&str, u16) {
        (&self.address, self.port)
    }
}

/// Returns an address in its canonical form, so that equal addresses compare as equal.
fn canonical(address: &str) -> Box<str> {
    match address.parse::<IpAddr>() {
        Ok(ip) => ip.to_string().into(),
        Err(_) => address.into(),
    }
}

impl From<Member> for ObservedMember {
    fn from(member: Member) -> Self {
        Self {
            id: Some(member.id.into()),
            address: canonical(&member.address),
            port: member.protocol_port,
            weight: member.weight,
            subnet: member.subnet_id.map(Into::into),
            monitor_port: member.monitor_port,
        }
    }
}

impl From<&MemberCreate> for ObservedMember {
    fn from(member: &MemberCreate) -> Self {
        Self {
            id: None,
            address: canonical(&member.address),
            port: member.protocol_port,
            weight: member.weight.unwrap_or(1),
            subnet: member.subnet_id.as_deref().map(Into::into),
            monitor_port: member.monitor_port,
        }
    }
}

impl ObservedLoadBalancer {
    /// Creates the observed state of a load balancer whose children were not read yet.
    pub fn new(load_balancer: LoadBalancer) -> Self {
        Self {
            load_balancer,
            listeners: Vec::new(),
            pools: Vec::new(),
            members: BTreeMap::new(),
            monitors: BTreeMap::new(),
        }
    }

    /// Creates the observed state from the response to a populated create, which contains all
    /// children.
    pub fn from_tree(tree: LoadBalancerTree) -> Self {
        let mut observed = Self { listeners: tree.listeners, ..Self::new(tree.load_balancer) };
        for tree in tree.pools {
            let members = tree.members.into_iter().map(ObservedMember::from);
            observed
                .members
                .insert(tree.pool.id.clone(), members.collect());
            if let Some(monitor) = tree.monitor {
                observed.monitors.insert(monitor.id.clone(), monitor);
            }
            observed.pools.push(tree.pool);
        }
        observed
    }

    /// Returns the pool that a listener forwards to.
    pub fn pool_of(&self, listener: &Listener) -> Option<&Pool> {
        if let Some(id) = &listener.default_pool_id
            && let Some(pool) = self.pools.iter().find(|pool| pool.id == *id)
        {
            return Some(pool);
        }
        self.pools.iter().find(|pool| {
            let mut listeners = pool.listeners.iter().flatten();
            listeners.any(|parent| parent.id == listener.id)
        })
    }

    /// Returns the members of a pool, or none if they were not read.
    pub fn members_of(&self, pool: &Pool) -> &[ObservedMember] {
        self.members.get(&pool.id).map_or(&[], Vec::as_slice)
    }

    /// Returns the health monitor of a pool, if it has one and it was read.
    pub fn monitor_of(&self, pool: &Pool) -> Option<&HealthMonitor> {
        self.monitors.get(pool.healthmonitor_id.as_deref()?)
    }

    /// Removes a deleted pool, with its members and monitor.
    pub fn remove_pool(&mut self, id: &str) {
        if let Some(at) = self.pools.iter().position(|pool| pool.id == id) {
            let pool = self.pools.remove(at);
            if let Some(monitor) = pool.healthmonitor_id {
                self.monitors.remove(&monitor);
            }
        }
        self.members.remove(id);
        for listener in &mut self.listeners {
            listener.default_pool_id.take_if(|pool| pool == id);
        }
    }

    /// Removes a deleted listener.
    pub fn remove_listener(&mut self, id: &str) {
        self.listeners.retain(|listener| listener.id != id);
        for pool in &mut self.pools {
            if let Some(listeners) = &mut pool.listeners {
                listeners.retain(|listener| listener.id != id);
            }
        }
    }
}
