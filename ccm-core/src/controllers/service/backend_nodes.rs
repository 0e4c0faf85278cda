//! Which nodes are backends, and how urgent a node change is. Pure functions.

use std::{
    collections::hash_map::DefaultHasher,
    hash::{Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use crate::{
    k8s::{EndpointSliceView, NodeView, well_known},
    provider::{LabelRequirement, NodeTarget},
};

/// Nodes behind a load balancer, and their fingerprint.
#[derive(Clone, Debug)]
pub(crate) struct BackendNodes {
    /// Sorted by name.
    pub(crate) nodes: Vec<Arc<NodeView>>,
    /// Equal for sets that do not differ for a load balancer.
    pub(crate) fingerprint: u64,
}

impl BackendNodes {
    /// Selects the backends among `all`. `target`: what load balancers address nodes by.
    pub(crate) fn new(
        all: &[Arc<NodeView>],
        requirements: &[LabelRequirement],
        target: NodeTarget,
    ) -> Self {
        let mut nodes = Vec::new();
        for node in all {
            if is_backend(node) && requirements.iter().all(|label| label.matches(node)) {
                nodes.push(node.clone());
            }
        }
        nodes.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut hasher = DefaultHasher::new();
        for node in &nodes {
            identity(node, target).hash(&mut hasher);
        }
        Self { fingerprint: hasher.finish(), nodes }
    }

    /// Tells whether `before` has more than one node, and this set lacks more than half of them.
    pub(crate) fn removes_most_of(&self, before: &Self) -> bool {
        let removed = before
            .nodes
            .iter()
            .filter(|node| !self.has(&node.name))
            .count();
        before.nodes.len() > 1 && removed * 2 > before.nodes.len()
    }

    fn has(&self, name: &str) -> bool {
        self.nodes
            .binary_search_by(|node| (*node.name).cmp(name))
            .is_ok()
    }

    /// Tells whether `after` lacks a node of this set that still exists, according to `fresh`.
    pub(crate) fn removes_existing_node(&self, after: &Self, fresh: &Self) -> bool {
        self.nodes
            .iter()
            .any(|node| !after.has(&node.name) && fresh.has(&node.name))
    }
}

/// What load balancers depend on in a node. Upstream compares name and provider ID alone, so that
/// load balancers that use addresses keep stale ones (W28).
fn identity(node: &NodeView, target: NodeTarget) -> impl Hash {
    let NodeView { name, uid, provider_id, addresses, labels, .. } = node;
    (
        name,
        uid,
        provider_id,
        (target == NodeTarget::Address).then_some(addresses),
        labels.get(well_known::LABEL_ZONE),
    )
}

/// Tells whether a node is a backend (KEP-3458): it is not being deleted, not excluded, and not
/// about to be removed by the autoscaler. Readiness, cordon and other taints do not matter; health
/// checks do.
pub(crate) fn is_backend(node: &NodeView) -> bool {
    is_backend_ignoring_autoscaler(node)
        && !node
            .taints
            .iter()
            .any(|taint| &*taint.key == well_known::TAINT_TO_BE_DELETED)
}

/// Like [`is_backend`], without the autoscaler's taint. That taint alone is no reason to act:
/// connections drain.
fn is_backend_ignoring_autoscaler(node: &NodeView) -> bool {
    !node.deleting && !is_excluded(node)
}

/// Reads the exclusion label as upstream does: excluded if the label exists, unless its value is
/// one of Go's spellings of false.
fn is_excluded(node: &NodeView) -> bool {
    let value = node
        .labels
        .get(well_known::LABEL_EXCLUDE_FROM_LOAD_BALANCERS);
    value.is_some_and(|value| !matches!(value, "0" | "f" | "F" | "false" | "False" | "FALSE"))
}

/// How soon load balancers need a node change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// It can wait until the node is initialised or, if that does not happen, for the longest
    /// delay.
    Later,
    /// A node joined or changed.
    Soon,
    /// A node must not get traffic any more.
    Now,
}

/// Returns how soon load balancers need a change of one node; `None` if they do not. `target`: what
/// they address nodes by. Pass `None` for a node that they cannot address.
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
    // If the autoscaler gave up removing the node, it would otherwise get no traffic until another
    // node changes.
    let becomes_backend = !is_backend(old) && is_backend(new);
    if becomes_backend || changes_backends(old, new, target) {
        return Some(urgency_by_initialization(new));
    }
    None
}

/// A node that is not initialised yet changes once more, so the update can wait for that.
fn urgency_by_initialization(node: &NodeView) -> Urgency {
    if node.is_uninitialized() {
        Urgency::Later
    } else {
        Urgency::Soon
    }
}

/// Tells whether a change may remove the node from a set that is selected by label, or its instance
/// from every set.
fn may_stop_being_backend(old: &NodeView, new: &NodeView) -> bool {
    if old.provider_id.is_some() && old.provider_id != new.provider_id {
        return true;
    }
    !old.is_uninitialized()
        && old
            .labels
            .iter()
            .any(|(key, value)| new.labels.get(key) != Some(value))
}

fn changes_backends(old: &NodeView, new: &NodeView, target: NodeTarget) -> bool {
    old.uid != new.uid
        || old.provider_id != new.provider_id
        || (target == NodeTarget::Address && old.addresses != new.addresses)
        // While a node is uninitialised the cache keeps all its labels, afterwards only those that
        // somebody reads. That is no change.
        || (old.labels != new.labels && !old.is_uninitialized())
        || old.labels.get(well_known::LABEL_ZONE) != new.labels.get(well_known::LABEL_ZONE)
        || old.is_uninitialized() != new.is_uninitialized()
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

/// Tells whether a change of a slice removes an endpoint or takes it out of service.
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
