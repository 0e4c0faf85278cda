//! Selects the nodes that are backends, and decides how urgent a node change is. Pure functions.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use crate::{
    k8s::{EndpointSliceView, NodeAddress, NodeView, well_known},
    provider::{LabelRequirement, NodeTarget},
};

/// The nodes behind a load balancer.
#[derive(Clone, Debug)]
pub(crate) struct BackendNodes {
    /// The nodes, sorted by name.
    pub(crate) nodes: Vec<Arc<NodeView>>,
    /// A hash of everything in the nodes that load balancers depend on.
    pub(crate) fingerprint: u64,
}

impl BackendNodes {
    /// Selects the backends among `all`. Load balancers address them by `target`.
    pub(crate) fn new(
        all: &[Arc<NodeView>],
        requirements: &[LabelRequirement],
        target: NodeTarget,
    ) -> Self {
        let mut nodes = Vec::new();
        for node in all {
            if exclusion_reason(node, requirements).is_none() {
                nodes.push(node.clone());
            }
        }
        nodes.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut hasher = DefaultHasher::new();
        for node in &nodes {
            BackendIdentity::new(node, target).hash(&mut hasher);
        }
        Self { fingerprint: hasher.finish(), nodes }
    }

    /// Returns true if this set lacks a node of `other`.
    pub(crate) fn lacks_any_of(&self, other: &Self) -> bool {
        other.nodes.iter().any(|node| !self.contains(&node.name))
    }

    /// Returns true if this set lacks more than half of the nodes of `earlier`, which has more than
    /// one node.
    pub(crate) fn lacks_most_of(&self, earlier: &Self) -> bool {
        let removed = earlier
            .nodes
            .iter()
            .filter(|node| !self.contains(&node.name))
            .count();
        earlier.nodes.len() > 1 && removed * 2 > earlier.nodes.len()
    }

    /// Returns true if this set lacks a node of `earlier` that still exists, according to `fresh`.
    pub(crate) fn lacks_existing_node_of(&self, earlier: &Self, fresh: &Self) -> bool {
        earlier
            .nodes
            .iter()
            .any(|node| !self.contains(&node.name) && fresh.contains(&node.name))
    }

    fn contains(&self, name: &str) -> bool {
        self.nodes
            .binary_search_by(|node| (*node.name).cmp(name))
            .is_ok()
    }
}

/// The properties of a node that load balancers depend on.
///
/// Upstream compares only name and provider ID. Load balancers that address nodes by their
/// addresses then keep outdated ones.
#[derive(PartialEq, Eq, Hash)]
struct BackendIdentity<'a> {
    name: &'a str,
    uid: &'a str,
    provider_id: Option<&'a str>,
    /// `None` if load balancers do not use the addresses.
    addresses: Option<&'a [NodeAddress]>,
    zone: Option<&'a str>,
}

impl<'a> BackendIdentity<'a> {
    fn new(node: &'a NodeView, target: NodeTarget) -> Self {
        let addresses = match target {
            NodeTarget::Address => Some(&*node.addresses),
            NodeTarget::Instance => None,
        };
        Self {
            name: &node.name,
            uid: &node.uid,
            provider_id: node.provider_id.as_deref(),
            addresses,
            zone: node.labels.get(well_known::LABEL_ZONE),
        }
    }
}

/// Returns true if a node is a backend (KEP-3458).
///
/// It is not if it is being deleted, is excluded, or is about to be removed by the autoscaler.
/// Readiness, cordon and other taints do not matter, because load balancers have health checks.
pub(crate) fn is_backend(node: &NodeView) -> bool {
    is_backend_ignoring_autoscaler(node)
        && !node
            .taints
            .iter()
            .any(|taint| &*taint.key == well_known::TAINT_TO_BE_DELETED)
}

/// The reason why a node is not a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExclusionReason<'a> {
    Deleting,
    /// It has the label that excludes it from all load balancers.
    ExclusionLabel,
    /// The cluster autoscaler is about to delete it.
    AutoscalerTaint,
    /// It does not meet this requirement of the load balancer.
    Requirement(&'a LabelRequirement),
}

/// Returns the reason why a node is not a backend of a load balancer with these requirements;
/// `None` if it is one.
pub(crate) fn exclusion_reason<'a>(
    node: &NodeView,
    requirements: &'a [LabelRequirement],
) -> Option<ExclusionReason<'a>> {
    if node.deleting {
        Some(ExclusionReason::Deleting)
    } else if is_excluded(node) {
        Some(ExclusionReason::ExclusionLabel)
    } else if !is_backend(node) {
        Some(ExclusionReason::AutoscalerTaint)
    } else {
        requirements
            .iter()
            .find(|label| !label.matches(node))
            .map(ExclusionReason::Requirement)
    }
}

/// Returns true if a node is a backend, except for the autoscaler's taint. That taint is no reason
/// to act at once, because the node still drains its connections.
fn is_backend_ignoring_autoscaler(node: &NodeView) -> bool {
    !node.deleting && !is_excluded(node)
}

/// Returns true if the node has the exclusion label. As upstream, the label does not count if its
/// value is one of Go's spellings of false.
fn is_excluded(node: &NodeView) -> bool {
    let value = node
        .labels
        .get(well_known::LABEL_EXCLUDE_FROM_LOAD_BALANCERS);
    value.is_some_and(|value| !matches!(value, "0" | "f" | "F" | "false" | "False" | "FALSE"))
}

/// The urgency of applying a node change to the load balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// The change can wait until the node is initialised, but at most for the maximum delay.
    Later,
    /// A node joined or changed.
    Soon,
    /// A node must no longer get traffic.
    Now,
}

/// Returns the urgency of a node change; `None` if load balancers do not need it.
///
/// Load balancers address nodes by `target`. A node that they cannot address must be passed as
/// `None`.
pub(crate) fn urgency(
    old: Option<&NodeView>,
    new: Option<&NodeView>,
    target: NodeTarget,
) -> Option<Urgency> {
    let old = old.filter(|node| is_backend_ignoring_autoscaler(node));
    let new = new.filter(|node| is_backend_ignoring_autoscaler(node));
    let Some(new) = new else {
        return old.map(|_| Urgency::Now);
    };
    let Some(old) = old else {
        return Some(urgency_by_initialization(new));
    };
    if may_stop_being_backend(old, new) {
        return Some(Urgency::Now);
    }
    // The autoscaler may have removed its taint. Without an update, the node would then get no
    // traffic until another node changes.
    let becomes_backend = !is_backend(old) && is_backend(new);
    if becomes_backend || has_relevant_change(old, new, target) {
        return Some(urgency_by_initialization(new));
    }
    None
}

/// Returns the urgency of a change that adds or updates a node. A node that is not initialised will
/// change once more, and the update can wait for that.
fn urgency_by_initialization(node: &NodeView) -> Urgency {
    if node.is_uninitialized() {
        Urgency::Later
    } else {
        Urgency::Soon
    }
}

/// Returns true if a change may remove the node from a set that is selected by labels, or its
/// instance from every set.
fn may_stop_being_backend(old: &NodeView, new: &NodeView) -> bool {
    if old.provider_id.is_some() && old.provider_id != new.provider_id {
        return true;
    }
    // A label of an initialised node was removed or has another value.
    !old.is_uninitialized()
        && old
            .labels
            .iter()
            .any(|(key, value)| new.labels.get(key) != Some(value))
}

/// Returns true if a change may matter to a load balancer that has the node as a backend, or may
/// add the node to a set that is selected by labels.
fn has_relevant_change(old: &NodeView, new: &NodeView, target: NodeTarget) -> bool {
    if BackendIdentity::new(old, target) != BackendIdentity::new(new, target) {
        return true;
    }
    // Once a node is initialised, the cache drops the labels that nobody reads. So the other
    // labels of an uninitialised node are not compared; its initialisation counts as a change anyway.
    if old.is_uninitialized() {
        !new.is_uninitialized()
    } else {
        new.is_uninitialized() || old.labels != new.labels
    }
}

/// Returns a fingerprint of the endpoints of a Service. `slices` must be sorted by name.
pub(crate) fn endpoints_fingerprint(slices: &[Arc<EndpointSliceView>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for slice in slices {
        slice.name.hash(&mut hasher);
        for port in &slice.ports {
            (&port.name, port.protocol, port.port).hash(&mut hasher);
        }
        slice.endpoints.len().hash(&mut hasher);
        for endpoint in &slice.endpoints {
            (&endpoint.addresses, &endpoint.node, &endpoint.zone).hash(&mut hasher);
            (endpoint.ready, endpoint.serving, endpoint.terminating).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Returns true if a change of a slice removes an endpoint or takes it out of service.
pub(crate) fn removes_endpoints(old: &EndpointSliceView, new: &EndpointSliceView) -> bool {
    old.endpoints.iter().any(|endpoint| {
        has_serving_endpoint(old, &endpoint.addresses)
            && !has_serving_endpoint(new, &endpoint.addresses)
    })
}

fn has_serving_endpoint(slice: &EndpointSliceView, addresses: &[IpAddr]) -> bool {
    slice.endpoints.iter().any(|endpoint| {
        *endpoint.addresses == *addresses && endpoint.serving && !endpoint.terminating
    })
}

#[cfg(test)]
#[path = "backend_nodes_tests.rs"]
mod tests;
