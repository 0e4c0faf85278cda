//! Observed state of a load balancer.

use std::{collections::BTreeMap, net::IpAddr};

use ccm_core::k8s::IpFamily;
use openstack_api::octavia::{
    HealthMonitor, Listener, LoadBalancer, LoadBalancerTree, Member, MemberCreate, MonitorRef,
    Pool, PoolTree,
};

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
        let LoadBalancerTree { listeners, pools, .. } = &tree;
        let listeners = listeners.clone();
        let pool_trees = pools.clone();
        let mut observed = Self { listeners, ..Self::new(without_children(tree)) };
        for pool_tree in pool_trees {
            let members = pool_tree.members.iter().cloned().map(ObservedMember::from);
            observed
                .members
                .insert(pool_tree.id.clone(), members.collect());
            if let Some(monitor) = pool_tree.monitor.healthmonitor.clone() {
                observed.monitors.insert(monitor.id.clone(), monitor);
            }
            observed.pools.push(pool_with_references(pool_tree));
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
        self.pools
            .iter()
            .find(|pool| pool.listeners.iter().any(|parent| parent.id == listener.id))
    }

    /// Returns the members of a pool, or none if they were not read.
    pub fn members_of(&self, pool: &Pool) -> &[ObservedMember] {
        self.members.get(&pool.id).map_or(&[], Vec::as_slice)
    }

    /// Returns the health monitor of a pool, if it has one and it was read.
    pub fn monitor_of(&self, pool: &Pool) -> Option<&HealthMonitor> {
        self.monitors.get(pool.monitor.healthmonitor_id.as_deref()?)
    }

    /// Removes a deleted pool, with its members and monitor.
    pub fn remove_pool(&mut self, id: &str) {
        if let Some(at) = self.pools.iter().position(|pool| pool.id == id) {
            let pool = self.pools.remove(at);
            if let Some(monitor) = pool.monitor.healthmonitor_id {
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
            pool.listeners.retain(|listener| listener.id != id);
        }
    }
}

/// Replaces the members and the monitor of a pool by their IDs.
fn pool_with_references(tree: PoolTree) -> Pool {
    Pool {
        members: tree
            .members
            .iter()
            .map(|member| (&*member.id).into())
            .collect(),
        monitor: MonitorRef {
            healthmonitor_id: tree.monitor.healthmonitor.map(|monitor| monitor.id),
        },
        id: tree.id,
        name: tree.name,
        description: tree.description,
        provisioning_status: tree.provisioning_status,
        operating_status: tree.operating_status,
        admin_state_up: tree.admin_state_up,
        protocol: tree.protocol,
        lb_algorithm: tree.lb_algorithm,
        session_persistence: tree.session_persistence,
        project_id: tree.project_id,
        loadbalancers: tree.loadbalancers,
        listeners: tree.listeners,
        created_at: tree.created_at,
        updated_at: tree.updated_at,
        tags: tree.tags,
        tls_container_ref: tree.tls_container_ref,
        ca_tls_container_ref: tree.ca_tls_container_ref,
        crl_container_ref: tree.crl_container_ref,
        tls_enabled: tree.tls_enabled,
        tls_ciphers: tree.tls_ciphers,
        tls_versions: tree.tls_versions,
        alpn_protocols: tree.alpn_protocols,
    }
}

/// Replaces the children of a load balancer by their IDs.
fn without_children(tree: LoadBalancerTree) -> LoadBalancer {
    LoadBalancer {
        listeners: tree
            .listeners
            .iter()
            .map(|listener| (&*listener.id).into())
            .collect(),
        pools: tree.pools.iter().map(|pool| (&*pool.id).into()).collect(),
        id: tree.id,
        name: tree.name,
        description: tree.description,
        provisioning_status: tree.provisioning_status,
        operating_status: tree.operating_status,
        admin_state_up: tree.admin_state_up,
        project_id: tree.project_id,
        created_at: tree.created_at,
        updated_at: tree.updated_at,
        vip_address: tree.vip_address,
        vip_port_id: tree.vip_port_id,
        vip_subnet_id: tree.vip_subnet_id,
        vip_network_id: tree.vip_network_id,
        vip_sg_ids: tree.vip_sg_ids,
        additional_vips: tree.additional_vips,
        provider: tree.provider,
        flavor_id: tree.flavor_id,
        vip_qos_policy_id: tree.vip_qos_policy_id,
        tags: tree.tags,
        availability_zone: tree.availability_zone,
        vip_vnic_type: tree.vip_vnic_type,
    }
}
