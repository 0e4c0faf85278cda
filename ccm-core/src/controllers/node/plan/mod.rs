//! Plans the changes of a node. Pure functions of the node and the metadata of its instance.

pub(crate) mod addresses;
pub(crate) mod labels;

use std::collections::BTreeMap;

use self::{
    addresses::{AddressError, desired_addresses},
    labels::{DroppedLabel, LabelPlan},
};
use crate::{
    k8s::{NodeAddress, NodeView, well_known},
    provider::InstanceMetadata,
};

/// Everything that an initialisation writes: first `addresses` in one status patch, then `change`
/// in one JSON Patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InitializationPlan {
    /// The addresses to write; `None` if the node already has them, or the cloud reports none.
    pub(crate) addresses: Option<Vec<NodeAddress>>,
    pub(crate) change: NodeChange,
    /// The cloud's labels that are not written.
    pub(crate) dropped: Vec<DroppedLabel>,
}

/// A change of a node outside its status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeChange {
    /// The provider ID, for a node that has none.
    pub(crate) provider_id: Option<Box<str>>,
    /// The labels to set.
    pub(crate) labels: BTreeMap<String, String>,
    /// The positions and keys of the taints to remove, in ascending order.
    pub(crate) remove_taints: Vec<(usize, String)>,
    /// True if the patch must fail if the node has changed since it was read, because it would
    /// overwrite another writer's value.
    pub(crate) requires_unchanged_node: bool,
}

impl NodeChange {
    /// Returns true if there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.provider_id.is_none() && self.labels.is_empty() && self.remove_taints.is_empty()
    }
}

/// An error because of which a node cannot be initialised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InitializationError {
    /// Neither the cloud nor the node has a provider ID.
    #[error("cloud provider does not set node provider ID for node {0}")]
    NoProviderId(String),
    /// The addresses cannot be chosen. The message is upstream's, because operators search for it.
    #[error("provided node ip for node {node:?} is not valid: {source}")]
    Address { node: String, source: AddressError },
}

/// Plans the initialisation of a node with the uninitialized taint.
pub(crate) fn plan_initialization(
    node: &NodeView,
    meta: &InstanceMetadata,
) -> Result<InitializationPlan, InitializationError> {
    let mut provider_id = None;
    if node.provider_id.is_none() {
        match meta.provider_id.as_deref() {
            Some(id) if !id.is_empty() => provider_id = Some(Box::from(id)),
            _ => return Err(InitializationError::NoProviderId(node.name.to_string())),
        }
    }
    // Choose the addresses and the labels.
    let addresses = plan_addresses(node, &meta.addresses)
        .map_err(|source| InitializationError::Address { node: node.name.to_string(), source })?;
    let LabelPlan { set, sets_additional, dropped } = labels::initial_labels(meta, &node.labels);
    let mut remove_taints = Vec::new();
    for (position, taint) in node.taints.iter().enumerate() {
        if &*taint.key == well_known::TAINT_UNINITIALIZED {
            remove_taints.push((position, taint.key.to_string()));
        }
    }
    // A JSON Patch that creates the map of labels would replace one that another writer has just
    // created.
    let creates_label_map = !set.is_empty() && !node.has_labels;
    Ok(InitializationPlan {
        addresses,
        change: NodeChange {
            provider_id,
            labels: set,
            remove_taints,
            requires_unchanged_node: sets_additional || creates_label_map,
        },
        dropped,
    })
}

/// Plans the addresses of a node. Returns the list to write; `None` if nothing has to be written.
///
/// The order of the addresses counts, because the first address of a type is the primary one.
pub(crate) fn plan_addresses(
    node: &NodeView,
    cloud: &[NodeAddress],
) -> Result<Option<Vec<NodeAddress>>, AddressError> {
    let provided = node
        .annotations
        .get(well_known::ANNOTATION_PROVIDED_NODE_IP);
    let desired = desired_addresses(cloud, &node.addresses, provided)?;
    Ok(desired.filter(|desired| desired[..] != node.addresses[..]))
}

/// Plans the refresh of additional labels on an initialised node.
pub(crate) fn plan_label_refresh(
    node: &NodeView,
    meta: &InstanceMetadata,
) -> (NodeChange, Vec<DroppedLabel>) {
    let LabelPlan { set, dropped, .. } = labels::refreshed_labels(meta, &node.labels);
    let creates_label_map = !set.is_empty() && !node.has_labels;
    let change = NodeChange {
        labels: set,
        requires_unchanged_node: creates_label_map,
        ..NodeChange::default()
    };
    (change, dropped)
}

#[cfg(test)]
mod tests;
