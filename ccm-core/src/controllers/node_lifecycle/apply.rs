//! Writes the shutdown taint and deletes Nodes.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use crate::{
    k8s::{NodeFields, NodeView, TaintEffect, well_known},
    provider::{CloudProvider, NodeOwnership},
    runtime::api::{ApiClient, ApiError, ApiErrorKind, Patch, PatchOp, Subresource},
};

/// The maximum number of attempts to write a node that keeps changing, as in
/// k8s.io/cloud-provider.
const MAX_ATTEMPTS: usize = 5;
/// The minimum delay between two attempts, as in k8s.io/cloud-provider. Up to the same amount is added at random.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A change of the shutdown taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaintChange {
    Add,
    Remove,
}

/// Adds or removes the shutdown taint. Returns true if anything was written.
pub(super) async fn set_shutdown_taint(
    api: &ApiClient,
    fields: &NodeFields,
    node: &NodeView,
    change: TaintChange,
) -> Result<bool, ApiError> {
    let is_tainted_afterwards = change == TaintChange::Add;
    let mut node = node.clone();
    let mut attempt = 1;
    loop {
        // Patch the node, unless it already is as desired.
        if node.has_shutdown_taint() == is_tainted_afterwards {
            return Ok(false);
        }
        let operations = match change {
            TaintChange::Add => shutdown_taint_addition(&node),
            TaintChange::Remove => shutdown_taint_removal(&node),
        };
        match api
            .patch_node(&node.name, Subresource::None, &Patch::Json(operations))
            .await
        {
            Ok(_) => return Ok(true),
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) if !error.is_conflict() || attempt == MAX_ATTEMPTS => return Err(error),
            Err(_) => {}
        }
        // After a conflict, read the node again. Retry only if it is the same node, and still Ready
        // or not Ready as the change requires.
        tokio::time::sleep(RETRY_DELAY.mul_f64(rand::random_range(1.0..2.0))).await;
        match api.get_node(&node.name, fields).await {
            Ok(fresh) if fresh.uid == node.uid && fresh.is_ready() != is_tainted_afterwards => {
                node = fresh;
            }
            Ok(_) => return Ok(false),
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error),
        }
        attempt += 1;
    }
}

/// Builds the patch that adds the shutdown taint.
///
/// It only applies if the node has not changed since it was read. Otherwise, it might create the
/// list of taints and so replace one that another writer has just created.
pub(crate) fn shutdown_taint_addition(node: &NodeView) -> Vec<PatchOp> {
    let taint =
        json!({ "key": well_known::TAINT_SHUTDOWN, "effect": TaintEffect::NoSchedule.as_str() });
    let add = if node.taints.is_empty() {
        PatchOp::Add { path: "/spec/taints".to_owned(), value: json!([taint]) }
    } else {
        PatchOp::Add { path: "/spec/taints/-".to_owned(), value: taint }
    };
    vec![
        PatchOp::test("/metadata/uid", &node.uid),
        PatchOp::test("/metadata/resourceVersion", &node.resource_version),
        add,
    ]
}

/// Builds the patch that removes all shutdown taints of a node.
pub(crate) fn shutdown_taint_removal(node: &NodeView) -> Vec<PatchOp> {
    let mut operations = vec![PatchOp::test("/metadata/uid", &node.uid)];
    let mut removals = Vec::new();
    for (index, taint) in node.taints.iter().enumerate() {
        if taint.is_shutdown() {
            let path = format!("/spec/taints/{index}");
            operations.push(PatchOp::test(format!("{path}/key"), well_known::TAINT_SHUTDOWN));
            operations
                .push(PatchOp::test(format!("{path}/effect"), TaintEffect::NoSchedule.as_str()));
            removals.push(PatchOp::Remove { path });
        }
    }
    // Remove the taints from the end, so that earlier indices stay valid.
    operations.extend(removals.into_iter().rev());
    operations
}

/// The outcome of a deletion.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DeleteOutcome {
    /// This controller deleted the Node.
    Deleted,
    /// The Node was not deleted, because it has changed since the absence of its instance was
    /// proved. Contains the reason.
    Aborted(&'static str),
}

/// Deletes a Node whose instance is proved not to exist, after reading the Node once more from the
/// API server.
pub(super) async fn delete(
    api: &ApiClient,
    provider: &Arc<dyn CloudProvider>,
    fields: &NodeFields,
    node: &NodeView,
) -> Result<DeleteOutcome, ApiError> {
    let fresh = match api.get_node(&node.name, fields).await {
        Ok(fresh) => fresh,
        Err(error) if error.is_not_found() => return Ok(DeleteOutcome::Aborted("gone already")),
        Err(error) => return Err(error),
    };
    if let Some(reason) = reason_not_to_delete(provider.as_ref(), node, &fresh) {
        return Ok(DeleteOutcome::Aborted(reason));
    }
    // The precondition on the resource version keeps a node that became Ready since it was read.
    match api
        .delete_node(&fresh.name, &fresh.uid, &fresh.resource_version)
        .await
    {
        Ok(()) => Ok(DeleteOutcome::Deleted),
        Err(error) => match error.kind() {
            ApiErrorKind::NotFound => Ok(DeleteOutcome::Aborted("gone already")),
            ApiErrorKind::Conflict => Ok(DeleteOutcome::Aborted("changed meanwhile")),
            // The response was lost, but the request may have succeeded.
            ApiErrorKind::Unavailable | ApiErrorKind::Timeout
                if is_gone(api, fields, &fresh).await =>
            {
                Ok(DeleteOutcome::Deleted)
            }
            _ => Err(error),
        },
    }
}

/// Returns true if the Node is certainly deleted.
async fn is_gone(api: &ApiClient, fields: &NodeFields, node: &NodeView) -> bool {
    match api.get_node(&node.name, fields).await {
        Ok(fresh) => fresh.uid != node.uid,
        Err(error) => error.is_not_found(),
    }
}

/// Returns the reason why the proof of absence about `proved` does not apply to the current Node
/// `fresh`; `None` if it does.
fn reason_not_to_delete(
    provider: &dyn CloudProvider,
    proved: &NodeView,
    fresh: &NodeView,
) -> Option<&'static str> {
    if fresh.uid != proved.uid {
        Some("registered again meanwhile")
    } else if fresh.is_ready() {
        Some("Ready again")
    } else if fresh.provider_id != proved.provider_id {
        Some("has another provider ID now")
    } else if fresh.machine != proved.machine {
        Some("another machine has registered under its name")
    } else if fresh.deleting {
        Some("being deleted already")
    } else if provider.node_ownership(fresh) != NodeOwnership::Ours {
        Some("not ours any more")
    } else {
        None
    }
}
