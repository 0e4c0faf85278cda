//! Which nodes are backends, and when a change of a node matters: pure.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    sync::Arc,
};

use crate::{
    k8s::{EndpointSliceView, NodeView, well_known as wk},
    provider::{LabelRequirement, NodeTarget},
};

/// Nodes behind a balancer, and what identifies them.
#[derive(Clone, Debug)]
pub(crate) struct BackendNodes {
    /// Sorted by name.
    pub(crate) nodes: Vec<Arc<NodeView>>,
    /// Equal for equal sets, as far as balancers are concerned.
    pub(crate) fingerprint: u64,
}

impl BackendNodes {
    /// Selects among the nodes that may be backends. `target`: what they are addressed by.
    pub(crate) fn new(all: &[Arc<NodeView>], requirements: &[LabelRequirement], target: NodeTarget) -> Self {
        let fits = |node: &&Arc<NodeView>| is_backend(node) && requirements.iter().all(|r| r.matches(node));
        let mut nodes: Vec<_> = all.iter().filter(fits).cloned().collect();
        nodes.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut hasher = DefaultHasher::new();
        for node in &nodes {
            identity(node, target).hash(&mut hasher);
        }
        Self { fingerprint: hasher.finish(), nodes }
    }

    /// Tells whether more than half of the nodes of `before`, which are more than one, are no longer in it.
    pub(crate) fn removes_most_of(&self, before: &Self) -> bool {
        let lost = before.nodes.iter().filter(|node| !self.has(&node.name)).count();
        before.nodes.len() > 1 && lost * 2 > before.nodes.len()
    }

    fn has(&self, name: &str) -> bool {
        self.nodes.binary_search_by(|node| (*node.name).cmp(name)).is_ok()
    }

    /// Tells whether `after` lacks a node of this set that `truth` still has.
    pub(crate) fn removes_existing_node(&self, after: &Self, truth: &Self) -> bool {
        self.nodes.iter().any(|node| !after.has(&node.name) && truth.has(&node.name))
    }
}

/// What balancers know of a node. Upstream compares name and provider ID alone, so that balancers that take addresses
/// keep stale ones (W28).
fn identity(node: &NodeView, target: NodeTarget) -> impl Hash {
    let NodeView { name, uid, provider_id, addresses, labels, .. } = node;
    (name, uid, provider_id, (target == NodeTarget::Address).then_some(addresses), labels.get(wk::LABEL_ZONE))
}

/// Tells whether a node is a backend (KEP-3458): it is not leaving, not excluded, and not about to be removed by the
/// autoscaler. Readiness, cordon and other taints do not matter, health checks do.
pub(crate) fn is_backend(node: &NodeView) -> bool {
    is_backend_ignoring_autoscaler(node) && !node.taints.iter().any(|taint| &*taint.key == wk::TAINT_TO_BE_DELETED)
}

/// As [`is_backend`], without the autoscaler's taint, which by itself is no reason to act: connections drain.
fn is_backend_ignoring_autoscaler(node: &NodeView) -> bool {
    !node.deleting && !is_excluded(node)
}

/// Reads the exclusion label as upstream: there, unless its value is one of Go's spellings of false.
fn is_excluded(node: &NodeView) -> bool {
    let value = node.labels.get(wk::LABEL_EXCLUDE_FROM_LOAD_BALANCERS);
    value.is_some_and(|value| !matches!(value, "0" | "f" | "F" | "false" | "False" | "FALSE"))
}

/// How soon a change of a node concerns balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// It can wait for the node to be initialised; without that, for the longest delay.
    Later,
    /// A node joined or changed.
    Soon,
    /// A node must not get traffic any more.
    Now,
}

/// Says how soon a change of one node concerns balancers that address nodes so, or `None` when it does not. A node that they
/// cannot address is to be passed as `None`.
pub(crate) fn urgency(old: Option<&NodeView>, new: Option<&NodeView>, target: NodeTarget) -> Option<Urgency> {
    let was = old.filter(|node| is_backend_ignoring_autoscaler(node));
    match (was, new.filter(|node| is_backend_ignoring_autoscaler(node))) {
        (None, None) => None,
        (Some(_), None) => Some(Urgency::Now),
        (None, Some(new)) => Some(urgency_by_initialization(new)),
        (Some(old), Some(new)) if may_stop_being_backend(old, new) => Some(Urgency::Now),
        // The autoscaler gave up removing the node: without this it would get no traffic until another node changes.
        (Some(old), Some(new)) if !is_backend(old) && is_backend(new) => Some(urgency_by_initialization(new)),
        (Some(old), Some(new)) => changes_backends(old, new, target).then(|| urgency_by_initialization(new)),
    }
}

/// A node that waits for its initialisation changes once more, and then for good.
fn urgency_by_initialization(node: &NodeView) -> Urgency {
    if node.is_uninitialized() { Urgency::Later } else { Urgency::Soon }
}

/// Tells whether a change may take the node out of a set that selects by label, or its instance out of any.
fn may_stop_being_backend(old: &NodeView, new: &NodeView) -> bool {
    let loses_label = || old.labels.iter().any(|(key, value)| new.labels.get(key) != Some(value));
    (old.provider_id.is_some() && old.provider_id != new.provider_id) || (!old.is_uninitialized() && loses_label())
}

fn changes_backends(old: &NodeView, new: &NodeView, target: NodeTarget) -> bool {
    old.uid != new.uid
        || old.provider_id != new.provider_id
        || (target == NodeTarget::Address && old.addresses != new.addresses)
        // While a node is uninitialised all of its labels are kept, afterwards those that somebody reads: not a change.
        || (old.labels != new.labels && !old.is_uninitialized())
        || old.labels.get(wk::LABEL_ZONE) != new.labels.get(wk::LABEL_ZONE)
        || old.is_uninitialized() != new.is_uninitialized()
}

/// Identifies the endpoints of a Service. `slices` must be sorted by name.
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

/// Tells whether a change of slices takes an endpoint away or out of service.
pub(crate) fn removes_endpoints(old: &EndpointSliceView, new: &EndpointSliceView) -> bool {
    let serves = |slice: &EndpointSliceView, addresses: &[std::net::IpAddr]| {
        slice.endpoints.iter().any(|e| *e.addresses == *addresses && e.serving && !e.terminating)
    };
    old.endpoints.iter().any(|e| serves(old, &e.addresses) && !serves(new, &e.addresses))
}

#[cfg(test)]
#[path = "backend_nodes_tests.rs"]
mod tests;
