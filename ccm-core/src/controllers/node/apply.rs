//! Applies the plans of the cloud-node controller: at most one status patch and one JSON Patch per
//! attempt to initialise a node.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::plan::{
    InitializationError, InitializationPlan, NodeChange, labels, plan_initialization,
};
use crate::{
    controllers::route::{ConditionPatch, NetworkConditions},
    k8s::{NodeAddress, NodeFields, NodeView},
    provider::InstanceMetadata,
    runtime::api::{ApiClient, ApiError, Patch, PatchOp, Patched, Subresource, escape_pointer},
};

/// Attempts at a node that other clients keep changing, as upstream.
const MAX_ATTEMPTS: usize = 20;
/// Delay between attempts; up to the same amount is added at random.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// How an initialisation ended.
#[derive(Debug)]
pub(crate) enum InitializeOutcome {
    /// Initialised by us; with the cloud's labels that were not written.
    Done(Vec<labels::DroppedLabel>),
    /// Nothing to do: another process has initialised the node, or it was deleted or replaced.
    NotNeeded,
}

/// Why an initialisation failed after the cloud answered.
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

/// Initialises a node. The addresses are written first, so that no pod is scheduled to a node
/// without an address; then everything else, together with the removal of the taint.
pub(crate) async fn initialize(
    api: &ApiClient,
    fields: &NodeFields,
    writes: &Semaphore,
    network: Option<&NetworkConditions>,
    node: &Arc<NodeView>,
    meta: &InstanceMetadata,
) -> Result<InitializeOutcome, NodeWriteError> {
    let mut node = node.clone();
    for attempt in 1.. {
        let result = {
            let _permit = writes.acquire().await;
            initialize_once(api, network, &node, meta).await
        };
        match result {
            Ok(dropped) => return Ok(InitializeOutcome::Done(dropped)),
            Err(NodeWriteError::Api(error)) if error.is_not_found() => {
                return Ok(InitializeOutcome::NotNeeded);
            }
            // The node changed meanwhile.
            Err(NodeWriteError::Api(error)) if error.is_conflict() && attempt < MAX_ATTEMPTS => {}
            Err(error) => return Err(error),
        }
        // Go on only if it is the same node and still needs initialisation.
        tokio::time::sleep(RETRY_DELAY.mul_f64(rand::random_range(1.0..2.0))).await;
        match api.get_node(&node.name, fields).await {
            Ok(fresh) if fresh.uid == node.uid && fresh.is_uninitialized() && !fresh.deleting => {
                if fresh.provider_id != node.provider_id {
                    return Err(NodeWriteError::NodeReplaced);
                }
                node = Arc::new(fresh);
            }
            Ok(_) => return Ok(InitializeOutcome::NotNeeded),
            Err(error) if error.is_not_found() => return Ok(InitializeOutcome::NotNeeded),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(InitializeOutcome::NotNeeded)
}

async fn initialize_once(
    api: &ApiClient,
    network: Option<&NetworkConditions>,
    node: &NodeView,
    meta: &InstanceMetadata,
) -> Result<Vec<labels::DroppedLabel>, NodeWriteError> {
    let mut plan = plan_initialization(node, meta)?;
    let mut base = node.clone();
    if let Some(addresses) = plan.addresses.take() {
        let patched = patch_addresses(api, network, node, &addresses).await?;
        base.addresses = addresses.into();
        update_from_patch(&mut base, patched);
        if plan.change.requires_unchanged_node {
            // The response contains the current labels: plan again which labels may be added.
            let InitializationPlan { change, dropped, .. } = plan_initialization(&base, meta)?;
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

/// Replaces the addresses of a node, and in the same patch writes the condition
/// `NetworkUnavailable` that `network` has for it, if any.
pub(crate) async fn patch_addresses(
    api: &ApiClient,
    network: Option<&NetworkConditions>,
    node: &NodeView,
    addresses: &[NodeAddress],
) -> Result<Patched, ApiError> {
    let condition_patch = network.and_then(|network| network.combine_with_address_patch(node));
    let patch =
        address_patch(node, addresses, condition_patch.as_ref().map(ConditionPatch::condition));
    let patched = api
        .patch_node(&node.name, Subresource::Status, &patch)
        .await?;
    if let Some(condition_patch) = condition_patch {
        condition_patch.mark_written();
    }
    Ok(patched)
}

/// Builds the status patch. The address list replaces the server's list as a whole: merged by type,
/// it would lose the second address of a type (W6). Conditions are merged by type, so that
/// conditions of other writers stay.
pub(crate) fn address_patch(
    node: &NodeView,
    addresses: &[NodeAddress],
    condition: Option<Value>,
) -> Patch {
    let mut list: Vec<Value> = addresses
        .iter()
        .map(|address| json!({ "type": address.kind.as_str(), "address": &*address.address }))
        .collect();
    // The UID makes the server reject the patch if another node was registered under this name
    // meanwhile.
    let metadata = json!({ "uid": &*node.uid });
    let Some(condition) = condition else {
        return Patch::Merge(json!({ "metadata": metadata, "status": { "addresses": list } }));
    };
    list.insert(0, json!({ "$patch": "replace" }));
    Patch::Strategic(
        json!({ "metadata": metadata, "status": { "addresses": list, "conditions": [condition] } }),
    )
}

/// Applies a change outside the status.
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

/// Translates a change to JSON Patch operations. A test operation precedes every removal of a
/// taint, because JSON Patch addresses taints by position.
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
    // Remove from the end, so that earlier positions stay valid.
    for (position, _) in change.remove_taints.iter().rev() {
        operations.push(PatchOp::Remove { path: format!("/spec/taints/{position}") });
    }
    operations
}

fn label_path(key: &str) -> String {
    format!("/metadata/labels/{}", escape_pointer(key))
}
