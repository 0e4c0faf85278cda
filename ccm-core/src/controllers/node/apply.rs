//! Writes what was planned: at most one status patch and one JSON Patch per initialisation.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::plan::{InitializationError, InitializationPlan, NodeChange, labels, plan_initialization};
use crate::{
    controllers::route::{ConditionPatch, NetworkConditions},
    k8s::{NodeAddress, NodeFields, NodeView},
    provider::InstanceMetadata,
    runtime::api::{ApiClient, ApiError, Patch, PatchOp, Patched, Subresource, escape_pointer},
};

/// Attempts at a node that keeps changing under our hands, as upstream.
const ATTEMPTS: usize = 20;
/// Pause between attempts; up to as much again is added at random.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// How an initialisation ended.
#[derive(Debug)]
pub(crate) enum InitializeOutcome {
    /// By us; the labels of the cloud that were left out.
    Done(Vec<labels::DroppedLabel>),
    /// By somebody else, or the node is gone.
    NotNeeded,
}

/// Why an initialisation failed after the cloud had answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeWriteError {
    #[error(transparent)]
    Plan(#[from] InitializationError),
    /// What the cloud answered may be about another instance.
    #[error("the node's provider ID changed meanwhile")]
    NodeReplaced,
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Initialises a node: addresses first, so that no pod is scheduled to a node without one, then everything else and
/// with it the taint.
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
        let retry = match &result {
            Err(NodeWriteError::Api(error)) if error.is_not_found() => return Ok(InitializeOutcome::NotNeeded),
            Err(NodeWriteError::Api(error)) => error.is_conflict(),
            _ => false,
        };
        if !retry || attempt == ATTEMPTS {
            return result.map(InitializeOutcome::Done);
        }
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
            // The answer shows the labels as they are now: decide again what may be added.
            let InitializationPlan { change, dropped, .. } = plan_initialization(&base, meta)?;
            plan.change = change;
            plan.dropped = dropped;
        }
    }
    patch_node(api, &base, &plan.change).await?;
    Ok(plan.dropped)
}

/// Takes over what the answer to a patch says about the object.
fn update_from_patch(node: &mut NodeView, patched: Patched) {
    node.resource_version = patched.resource_version.into();
    node.has_labels = !patched.labels.is_empty();
    node.labels = patched.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
}

/// Replaces the addresses of a node, and writes what `network` says about its routes along with them.
pub(crate) async fn patch_addresses(
    api: &ApiClient,
    network: Option<&NetworkConditions>,
    node: &NodeView,
    addresses: &[NodeAddress],
) -> Result<Patched, ApiError> {
    let rider = network.and_then(|network| network.combine_with_address_patch(node));
    let patch = address_patch(node, addresses, rider.as_ref().map(ConditionPatch::condition));
    let patched = api.patch_node(&node.name, Subresource::Status, &patch).await?;
    if let Some(rider) = rider {
        rider.mark_written();
    }
    Ok(patched)
}

/// Makes the patch. The list of addresses replaces the other, whatever it is on the server: merged by type it would lose
/// the second address of a type (W6). Conditions on the other hand are merged by type, so that those of others stay.
pub(crate) fn address_patch(node: &NodeView, addresses: &[NodeAddress], condition: Option<Value>) -> Patch {
    let list = addresses.iter().map(|a| json!({ "type": a.kind.as_str(), "address": &*a.address }));
    // The UID makes the server refuse the patch for a namesake that was registered meanwhile.
    let metadata = json!({ "uid": &*node.uid });
    let Some(condition) = condition else {
        let list: Vec<Value> = list.collect();
        return Patch::Merge(json!({ "metadata": metadata, "status": { "addresses": list } }));
    };
    let list: Vec<Value> = std::iter::once(json!({ "$patch": "replace" })).chain(list).collect();
    Patch::Strategic(json!({ "metadata": metadata, "status": { "addresses": list, "conditions": [condition] } }))
}

/// Applies a change outside the status.
pub(crate) async fn patch_node(api: &ApiClient, node: &NodeView, change: &NodeChange) -> Result<(), ApiError> {
    if change.is_empty() {
        return Ok(());
    }
    api.patch_node(&node.name, Subresource::None, &Patch::Json(operations(node, change))).await.map(drop)
}

/// Makes stable labels copies of their beta twins, provided that those are still what was seen.
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
    api.patch_node(&node.name, Subresource::None, &Patch::Json(operations)).await.map(drop)
}

/// Translates a change to JSON Patch. Every removal is guarded by a test of what is removed, because taints are
/// addressed by position.
pub(crate) fn operations(node: &NodeView, change: &NodeChange) -> Vec<PatchOp> {
    let mut operations = vec![PatchOp::test("/metadata/uid", &node.uid)];
    if change.requires_unchanged_node {
        operations.push(PatchOp::test("/metadata/resourceVersion", &node.resource_version));
    }
    for (position, key) in &change.remove_taints {
        operations.push(PatchOp::test(format!("/spec/taints/{position}/key"), key));
    }
    if let Some(id) = &change.provider_id {
        operations.push(PatchOp::Add { path: "/spec/providerID".to_owned(), value: Value::from(&**id) });
    }
    if !change.labels.is_empty() && !node.has_labels {
        operations.push(PatchOp::Add { path: "/metadata/labels".to_owned(), value: json!({}) });
    }
    for (key, value) in &change.labels {
        operations.push(PatchOp::Add { path: label_path(key), value: Value::from(value.as_str()) });
    }
    // From the back, so that the positions in front stay what they are.
    for (position, _) in change.remove_taints.iter().rev() {
        operations.push(PatchOp::Remove { path: format!("/spec/taints/{position}") });
    }
    operations
}

fn label_path(key: &str) -> String {
    format!("/metadata/labels/{}", escape_pointer(key))
}
