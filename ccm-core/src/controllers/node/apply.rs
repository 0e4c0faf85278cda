//! Writes what was planned: at most one status patch and one JSON Patch per initialisation.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::plan::{InitError, InitPlan, NodeChange, labels, plan_init};
use crate::{
    controllers::route::{NetworkReady, Writing},
    k8s::{NodeAddress, NodeFields, NodeView},
    provider::InstanceMetadata,
    runtime::api::{ApiClient, ApiError, Patch, PatchOp, Patched, Subresource, escape_pointer},
};

/// Attempts at a node that keeps changing under our hands, as upstream.
const ATTEMPTS: usize = 20;
/// Pause between attempts; up to as much again is added at random.
const PAUSE: Duration = Duration::from_millis(50);

/// How an initialisation ended.
#[derive(Debug)]
pub(crate) enum Initialized {
    /// By us; the labels of the cloud that were left out.
    Done(Vec<labels::DroppedLabel>),
    /// By somebody else, or the node is gone.
    NotNeeded,
}

/// Why an initialisation failed after the cloud had answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    #[error(transparent)]
    Plan(#[from] InitError),
    /// What the cloud answered may be about another instance.
    #[error("the node's provider ID changed meanwhile")]
    Changed,
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// Initialises a node: addresses first, so that no pod is scheduled to a node without one, then everything else and
/// with it the taint.
pub(crate) async fn initialize(
    api: &ApiClient,
    fields: &NodeFields,
    writes: &Semaphore,
    network: Option<&NetworkReady>,
    node: &Arc<NodeView>,
    meta: &InstanceMetadata,
) -> Result<Initialized, ApplyError> {
    let mut node = node.clone();
    for attempt in 1.. {
        let result = {
            let _permit = writes.acquire().await;
            attempt_once(api, network, &node, meta).await
        };
        let retry = match &result {
            Err(ApplyError::Api(error)) if error.is_not_found() => return Ok(Initialized::NotNeeded),
            Err(ApplyError::Api(error)) => error.is_race(),
            _ => false,
        };
        if !retry || attempt == ATTEMPTS {
            return result.map(Initialized::Done);
        }
        tokio::time::sleep(PAUSE.mul_f64(rand::random_range(1.0..2.0))).await;
        match api.get_node(&node.name, fields).await {
            Ok(fresh) if fresh.uid == node.uid && fresh.is_uninitialized() && !fresh.deleting => {
                if fresh.provider_id != node.provider_id {
                    return Err(ApplyError::Changed);
                }
                node = Arc::new(fresh);
            }
            Ok(_) => return Ok(Initialized::NotNeeded),
            Err(error) if error.is_not_found() => return Ok(Initialized::NotNeeded),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Initialized::NotNeeded)
}

async fn attempt_once(
    api: &ApiClient,
    network: Option<&NetworkReady>,
    node: &NodeView,
    meta: &InstanceMetadata,
) -> Result<Vec<labels::DroppedLabel>, ApplyError> {
    let mut plan = plan_init(node, meta)?;
    let mut base = node.clone();
    if let Some(addresses) = plan.addresses.take() {
        let patched = patch_addresses(api, network, node, &addresses).await?;
        base.addresses = addresses.into();
        rebase(&mut base, patched);
        if plan.change.exact {
            // The answer shows the labels as they are now: decide again what may be added.
            let InitPlan { change, dropped, .. } = plan_init(&base, meta)?;
            plan.change = change;
            plan.dropped = dropped;
        }
    }
    patch_node(api, &base, &plan.change).await?;
    Ok(plan.dropped)
}

/// Takes over what the answer to a patch says about the object.
fn rebase(node: &mut NodeView, patched: Patched) {
    node.resource_version = patched.resource_version.into();
    node.has_labels = !patched.labels.is_empty();
    node.labels = patched.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
}

/// Replaces the addresses of a node, and writes what `network` says about its routes along with them.
pub(crate) async fn patch_addresses(
    api: &ApiClient,
    network: Option<&NetworkReady>,
    node: &NodeView,
    addresses: &[NodeAddress],
) -> Result<Patched, ApiError> {
    let rider = network.and_then(|network| network.ride(node));
    let patch = address_patch(node, addresses, rider.as_ref().map(Writing::condition));
    let patched = api.patch_node(&node.name, Subresource::Status, &patch).await?;
    if let Some(rider) = rider {
        rider.done();
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
        if let Some(beta) = labels::truth_of(stable) {
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
    if change.exact {
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
