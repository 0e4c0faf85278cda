//! The inputs of security group rules for address targets: the security groups of their network interfaces, and their
//! ports. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ccm_core::k8s::EndpointSliceView;

use super::{
    model::{DesiredListener, DesiredLoadBalancer, ListenerKey, Targets},
    security_groups::{UnmanagedGroups, rules::is_mtu, summary},
};
use crate::api::{
    SecurityGroupId,
    ec2::Rule,
    elb::{Target, TargetType},
};

/// How many items a note lists: a note has at most 1 kB.
const FEW: usize = 5;

/// The pods that are targets, as far as rules depend on them. It stays the same while pods come and go, unless a pod
/// has other security groups or ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodTargets {
    /// The kinds of interfaces that they have.
    pub interface_groups: BTreeSet<InterfaceGroups>,
    /// Endpoint ports of each listener whose target port is a name.
    pub ports: BTreeMap<ListenerKey, BTreeSet<u16>>,
}

/// No pods, as with instance targets.
pub static NO_POD_TARGETS: PodTargets = PodTargets { interface_groups: BTreeSet::new(), ports: BTreeMap::new() };

/// The properties of a network interface that decide which of its security groups is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceGroups {
    /// Its security groups.
    pub groups: BTreeSet<SecurityGroupId>,
    /// Whether it belongs to an instance with the cluster's tag.
    pub has_cluster_tag: bool,
}

/// What decides, besides the Service itself, about rules in security groups of nodes and pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RuleInputs {
    /// Security groups of the instances that are targets.
    pub(super) node_groups: BTreeSet<SecurityGroupId>,
    /// The pods that are targets.
    pub(super) pods: PodTargets,
}

impl RuleInputs {
    /// Tells whether rules made for `self` are also enough for `other`.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let ports = |key: &ListenerKey| self.pods.ports.get(key);
        other.node_groups.is_subset(&self.node_groups)
            && other.pods.interface_groups.is_subset(&self.pods.interface_groups)
            && other
                .pods
                .ports
                .iter()
                .all(|(key, of)| of.is_empty() || ports(key).is_some_and(|have| of.is_subset(have)))
    }

    /// Adds the inputs of `other`.
    pub(super) fn extend(&mut self, other: &Self) {
        self.node_groups.extend(other.node_groups.iter().cloned());
        self.pods.interface_groups.extend(other.pods.interface_groups.iter().cloned());
        for (key, ports) in &other.pods.ports {
            self.pods.ports.entry(*key).or_default().extend(ports);
        }
    }
}

/// Returns the target addresses: those inside the VPC, and those outside.
pub(super) fn addresses(targets: &Targets) -> (BTreeSet<IpAddr>, BTreeSet<IpAddr>) {
    let (inside, outside): (Vec<_>, Vec<_>) = targets.values().flatten().partition(|target| target.zone.is_none());
    let parsed = |of: Vec<&Target>| of.into_iter().filter_map(|target| target.id.parse().ok()).collect();
    (parsed(inside), parsed(outside))
}

/// Describes what has to be opened by hand, and to whom.
pub(super) fn unmanaged_note(left: &UnmanagedGroups, missing: &BTreeSet<IpAddr>) -> String {
    let mut what = Vec::new();
    if !left.groups.is_empty() {
        let groups = list_first(left.groups.iter());
        what.push(format!("security groups of pods that are not tagged for this cluster are left alone: {groups}"));
    }
    if !missing.is_empty() {
        what.push(format!("no network interface in the VPC has the addresses {}", list_first(missing.iter())));
    }
    let rules: Vec<Rule> = left.rules.iter().filter(|rule| !is_mtu(rule)).cloned().collect();
    match rules.is_empty() {
        true => what.join("; "),
        false => format!("{}; let there in: {}", what.join("; "), summary(&rules)),
    }
}

/// Lists the first few items.
fn list_first<T: ToString>(all: impl ExactSizeIterator<Item = T>) -> String {
    let more = all.len().saturating_sub(FEW);
    let first: Vec<_> = all.take(FEW).map(|one| one.to_string()).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", first.join(", "))
}

/// Returns the port of a listener's targets; `None` for addresses behind a named port, because each may have another
/// port.
pub(super) fn target_port(wanted: &DesiredLoadBalancer, listener: &DesiredListener) -> Option<u16> {
    let port = listener.target_group.port.get();
    (wanted.target_type == TargetType::Instance || port != 1).then_some(port)
}

/// Returns the endpoint ports of listeners with a named port. Endpoints that are not ready count, so that the rules
/// exist before they become ready.
pub(super) fn ports(
    wanted: &DesiredLoadBalancer,
    slices: &[Arc<EndpointSliceView>],
) -> BTreeMap<ListenerKey, BTreeSet<u16>> {
    let of = |listener: &DesiredListener| {
        let (name, protocol) = &listener.target_group.service_port;
        let all = slices.iter().flat_map(|slice| &slice.ports);
        let own = all.filter(|port| port.name == *name && port.protocol == *protocol);
        own.filter_map(|port| port.port).map(Into::into).collect()
    };
    let named = wanted.listeners.iter().filter(|listener| target_port(wanted, listener).is_none());
    named.map(|listener| (listener.key(), of(listener))).collect()
}
