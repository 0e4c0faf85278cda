//! Applies the plans of the cloud-node controller. An attempt to initialise a node takes at most
//! one status patch and one JSON Patch.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::plan::{
    InitializationError, InitializationPlan, NodeChange, labels, plan_initialization,
};
use crate::{
    controllers::route::{ConditionWritePermit, NetworkConditions},
    k8s::{NodeAddress, NodeFields, NodeView},
    provider::InstanceMetadata,
    runtime::api::{ApiClient, ApiError, Patch, PatchOp, Patched, Subresource, escape_pointer},
};

/// The maximum number of attempts to write a node that other clients keep changing, as in
/// k8s.io/cloud-provider.
const MAX_ATTEMPTS: usize = 20;
/// The minimum delay between two attempts. Up to the same amount is added at random.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The result of an initialisation without an error.
#[derive(Debug)]
pub(crate) enum InitializeOutcome {
    /// The node was initialised. Contains the cloud's labels that were not written.
    Done(Vec<labels::DroppedLabel>),
    /// Another process has initialised the node, or it was deleted or replaced.
    NotNeeded,
}

/// Why a node could not be initialised although the cloud answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeWriteError {
    #[error(transparent)]
    Plan(#[from] InitializationError),
    /// The provider ID changed, so the cloud's answer may be about another instance.
    #[error("the node's provider ID changed meanwhile")]
    NodeReplaced,
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Initialises a node.
///
/// The addresses are written first, so that no pod is scheduled to a node without an address.
/// Everything else is written together with the removal of the taint.
pub(crate) async fn initialize(
    api: &ApiClient,
    fields: &NodeFields,
    write_permits: &Semaphore,
    network: Option<&NetworkConditions>,
    node: &Arc<NodeView>,
    metadata: &InstanceMetadata,
) -> Result<InitializeOutcome, NodeWriteError> {
    let mut node = node.clone();
    for _ in 1..MAX_ATTEMPTS {
        match initialize_once(api, write_permits, network, &node, metadata).await {
            // Another client changed the node meanwhile.
            Err(NodeWriteError::Api(error)) if error.is_conflict() => {}
            result => return result,
        }
        tokio::time::sleep(RETRY_DELAY.mul_f64(rand::random_range(1.0..2.0))).await;
        match reread(api, fields, &node).await? {
            Some(fresh) => node = Arc::new(fresh),
            None => return Ok(InitializeOutcome::NotNeeded),
        }
    }
    // The last attempt, whose conflict is an error.
    initialize_once(api, write_permits, network, &node, metadata).await
}

/// Reads a node again after a conflict. Returns `None` if it needs no initialisation any more: it
/// was initialised, deleted or replaced.
async fn reread(
    api: &ApiClient,
    fields: &NodeFields,
    node: &NodeView,
) -> Result<Option<NodeView>, NodeWriteError> {
    match api.get_node(&node.name, fields).await {
        Ok(fresh) if fresh.uid != node.uid || !fresh.is_uninitialized() || fresh.deleting => {
            Ok(None)
        }
        Ok(fresh) if fresh.provider_id != node.provider_id => Err(NodeWriteError::NodeReplaced),
        Ok(fresh) => Ok(Some(fresh)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Makes one attempt to initialise a node. A node that does not exist needs none.
async fn initialize_once(
    api: &ApiClient,
    write_permits: &Semaphore,
    network: Option<&NetworkConditions>,
    node: &NodeView,
    metadata: &InstanceMetadata,
) -> Result<InitializeOutcome, NodeWriteError> {
    let _permit = write_permits.acquire().await;
    match write_initialization(api, network, node, metadata).await {
        Ok(dropped) => Ok(InitializeOutcome::Done(dropped)),
        Err(NodeWriteError::Api(error)) if error.is_not_found() => Ok(InitializeOutcome::NotNeeded),
        Err(error) => Err(error),
    }
}

/// Plans and writes the initialisation of a node. Returns the labels that were not written.
async fn write_initialization(
    api: &ApiClient,
    network: Option<&NetworkConditions>,
    node: &NodeView,
    metadata: &InstanceMetadata,
) -> Result<Vec<labels::DroppedLabel>, NodeWriteError> {
    let mut plan = plan_initialization(node, metadata)?;
    let mut base = node.clone();
    if let Some(addresses) = plan.addresses.take() {
        let patched = patch_addresses(api, network, node, &addresses).await?;
        base.addresses = addresses.into();
        update_from_patch(&mut base, patched);
        if plan.change.requires_unchanged_node {
            // Plan the labels again, with the current labels from the response.
            let InitializationPlan { change, dropped, .. } = plan_initialization(&base, metadata)?;
            plan.change = change;
            plan.dropped = dropped;
        }
    }
    patch_node(api, &base, &plan.change).await?;
    Ok(plan.dropped)
}

/// Updates `node` with the resource version and labels from the response to a patch.
fn update_from_patch(node: &mut NodeView, patched: Patched) {
    node.resource_version = patched.resource_version.into();
    node.has_labels = !patched.labels.is_empty();
    node.labels = patched
        .labels
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
}

/// Replaces the addresses of a node. The same patch writes the condition `NetworkUnavailable` if
/// `network` has one for the node.
pub(crate) async fn patch_addresses(
    api: &ApiClient,
    network: Option<&NetworkConditions>,
    node: &NodeView,
    addresses: &[NodeAddress],
) -> Result<Patched, ApiError> {
    let condition_permit = network.and_then(|network| network.combine_with_address_patch(node));
    let patch = address_patch(
        node,
        addresses,
        condition_permit
            .as_ref()
            .map(ConditionWritePermit::condition),
    );
    let patched = api
        .patch_node(&node.name, Subresource::Status, &patch)
        .await?;
    if let Some(condition_permit) = condition_permit {
        condition_permit.mark_written();
    }
    Ok(patched)
}

/// Builds the status patch for addresses and a condition.
///
/// The list of addresses replaces that of the server. The server would merge the lists by address
/// type and lose the second address of a type. Conditions are merged by type, so those of other
/// writers stay.
pub(crate) fn address_patch(
    node: &NodeView,
    addresses: &[NodeAddress],
    condition: Option<Value>,
) -> Patch {
    let mut list: Vec<Value> = addresses
        .iter()
        .map(|address| json!({ "type": address.kind.as_str(), "address": &*address.address }))
        .collect();
    // The UID makes the server reject the patch if another node has registered under this name.
    let metadata = json!({ "uid": &*node.uid });
    let Some(condition) = condition else {
        return Patch::Merge(json!({ "metadata": metadata, "status": { "addresses": list } }));
    };
    list.insert(0, json!({ "$patch": "replace" }));
    Patch::Strategic(
        json!({ "metadata": metadata, "status": { "addresses": list, "conditions": [condition] } }),
    )
}

/// Applies a change of a node outside its status.
pub(crate) async fn patch_node(
    api: &ApiClient,
    node: &NodeView,
    change: &NodeChange,
) -> Result<(), ApiError> {
    if change.is_empty() {
        return Ok(());
    }
    api.patch_node(&node.name, Subresource::None, &Patch::Json(operations(node, change)))
        .await
        .map(drop)
}

/// Sets stable labels to the values of their beta labels, provided that the beta labels still have
/// those values.
pub(crate) async fn patch_label_copies(
    api: &ApiClient,
    node: &NodeView,
    copies: impl IntoIterator<Item = (&'static str, String)>,
) -> Result<(), ApiError> {
    let mut operations = vec![PatchOp::test("/metadata/uid", &node.uid)];
    for (stable, value) in copies {
        if let Some(beta) = labels::beta_label_of(stable) {
            operations.push(PatchOp::test(label_path(beta), &value));
        }
        operations.push(PatchOp::Add { path: label_path(stable), value: Value::from(value) });
    }
    api.patch_node(&node.name, Subresource::None, &Patch::Json(operations))
        .await
        .map(drop)
}

/// Translates a change to JSON Patch operations. Because JSON Patch addresses taints by position,
/// the key of each taint is tested before the taint is removed.
pub(crate) fn operations(node: &NodeView, change: &NodeChange) -> Vec<PatchOp> {
    let mut operations = vec![PatchOp::test("/metadata/uid", &node.uid)];
    if change.requires_unchanged_node {
        operations.push(PatchOp::test("/metadata/resourceVersion", &node.resource_version));
    }
    for (position, key) in &change.remove_taints {
        operations.push(PatchOp::test(format!("/spec/taints/{position}/key"), key));
    }
    if let Some(id) = &change.provider_id {
        operations.push(PatchOp::Add {
            path: "/spec/providerID".to_owned(),
            value: Value::from(&**id),
        });
    }
    if !change.labels.is_empty() && !node.has_labels {
        operations.push(PatchOp::Add { path: "/metadata/labels".to_owned(), value: json!({}) });
    }
    for (key, value) in &change.labels {
        operations.push(PatchOp::Add { path: label_path(key), value: Value::from(value.as_str()) });
    }
    // Remove the taints from the end, so that earlier positions stay valid.
    for (position, _) in change.remove_taints.iter().rev() {
        operations.push(PatchOp::Remove { path: format!("/spec/taints/{position}") });
    }
    operations
}

fn label_path(key: &str) -> String {
    format!("/metadata/labels/{}", escape_pointer(key))
}
