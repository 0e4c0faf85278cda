//! The inputs of security group rules for address targets: the security groups of their network
//! interfaces, and their ports. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ccm_core::k8s::EndpointSliceView;

use crate::api::SecurityGroupId;
use crate::lb::model::{DesiredListener, DesiredLoadBalancer, ListenerKey, Targets};

/// The pods that are targets, as far as rules depend on them. It stays the same while pods come and
/// go, unless a pod has other security groups or ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodTargets {
    /// The kinds of interfaces that they have.
    pub interface_groups: BTreeSet<InterfaceGroups>,
    /// Endpoint ports of each listener whose target port is a name.
    pub ports: BTreeMap<ListenerKey, BTreeSet<u16>>,
}

/// No pods, as with instance targets.
#[cfg(test)]
pub(crate) static NO_POD_TARGETS: PodTargets =
    PodTargets { interface_groups: BTreeSet::new(), ports: BTreeMap::new() };

/// The properties of a network interface that decide which of its security groups is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceGroups {
    /// Its security groups.
    pub groups: BTreeSet<SecurityGroupId>,
    /// True if it belongs to an instance with the cluster's tag.
    pub has_cluster_tag: bool,
}

/// The inputs, besides the Service itself, of the rules in security groups of nodes and pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::lb) struct RuleInputs {
    /// Security groups of the instances that are targets.
    pub(in crate::lb) node_groups: BTreeSet<SecurityGroupId>,
    /// The pods that are targets.
    pub(in crate::lb) pods: PodTargets,
}

impl RuleInputs {
    /// Returns true if rules made for `self` are also enough for `other`.
    pub(in crate::lb) fn covers(&self, other: &Self) -> bool {
        other.node_groups.is_subset(&self.node_groups)
            && other
                .pods
                .interface_groups
                .is_subset(&self.pods.interface_groups)
            && other
                .pods
                .ports
                .iter()
                .all(|(key, ports)| self.covers_ports(*key, ports))
    }

    fn covers_ports(&self, key: ListenerKey, ports: &BTreeSet<u16>) -> bool {
        let covered = self.pods.ports.get(&key);
        ports.is_empty() || covered.is_some_and(|covered| ports.is_subset(covered))
    }

    /// Adds the inputs of `other`.
    pub(in crate::lb) fn extend(&mut self, other: &Self) {
        self.node_groups.extend(other.node_groups.iter().cloned());
        self.pods
            .interface_groups
            .extend(other.pods.interface_groups.iter().cloned());
        for (key, ports) in &other.pods.ports {
            self.pods.ports.entry(*key).or_default().extend(ports);
        }
    }
}

/// The addresses of pods that are targets.
#[derive(Debug, Default)]
pub(in crate::lb) struct PodAddresses {
    pub(in crate::lb) inside_vpc: BTreeSet<IpAddr>,
    pub(in crate::lb) outside_vpc: BTreeSet<IpAddr>,
}

/// Returns the target addresses.
pub(in crate::lb) fn addresses(targets: &Targets) -> PodAddresses {
    let mut addresses = PodAddresses::default();
    for target in targets.values().flatten() {
        let Ok(address) = target.id.parse() else {
            continue;
        };
        // Only targets outside the VPC have a zone.
        if target.zone.is_none() {
            addresses.inside_vpc.insert(address);
        } else {
            addresses.outside_vpc.insert(address);
        }
    }
    addresses
}

/// Returns the endpoint ports of listeners with a named port. Endpoints that are not ready count,
/// so that the rules exist before they become ready.
pub(in crate::lb) fn ports(
    desired: &DesiredLoadBalancer,
    slices: &[Arc<EndpointSliceView>],
) -> BTreeMap<ListenerKey, BTreeSet<u16>> {
    let mut ports_by_listener = BTreeMap::new();
    for listener in &desired.listeners {
        if desired.target_port(listener).is_none() {
            ports_by_listener.insert(listener.key(), endpoint_ports(listener, slices));
        }
    }
    ports_by_listener
}

fn endpoint_ports(listener: &DesiredListener, slices: &[Arc<EndpointSliceView>]) -> BTreeSet<u16> {
    let (name, protocol) = &listener.target_group.service_port;
    slices
        .iter()
        .flat_map(|slice| &slice.ports)
        .filter(|port| port.name == *name && port.protocol == *protocol)
        .filter_map(|port| port.port)
        .map(Into::into)
        .collect()
}
