//! Writes of the node-lifecycle controller: the shutdown taint and the deletion of Nodes.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use crate::{
    k8s::{NodeFields, NodeView, TaintEffect, well_known as wk},
    provider::{CloudProvider, NodeOwnership},
    runtime::api::{ApiClient, ApiError, ApiErrorKind, Patch, PatchOp, Subresource},
};

/// Attempts at a node that keeps changing, and the delay between them (up to the same amount is
/// added at random), as upstream.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// Adds the shutdown taint, or removes it. Returns whether anything was written.
pub(super) async fn set_shutdown_taint(
    api: &ApiClient,
    fields: &NodeFields,
    node: &NodeView,
    wanted: bool,
) -> Result<bool, ApiError> {
    let mut node = node.clone();
    for attempt in 1.. {
        if node.has_shutdown_taint() == wanted {
            return Ok(false);
        }
        let patch = Patch::Json(if wanted {
            add_taint(&node)
        } else {
            remove_taints(&node)
        });
        match api.patch_node(&node.name, Subresource::None, &patch).await {
            Ok(_) => return Ok(true),
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) if !error.is_conflict() || attempt == ATTEMPTS => return Err(error),
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE.mul_f64(rand::random_range(1.0..2.0))).await;
        match api.get_node(&node.name, fields).await {
            Ok(fresh) if fresh.uid == node.uid && fresh.is_ready() != wanted => node = fresh,
            // Another node, or its state is no longer a reason for the change.
            Ok(_) => return Ok(false),
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Returns a patch that adds the shutdown taint, only if the node is unchanged since it was read:
/// JSON Patch cannot create a missing list without replacing one that another writer created
/// meanwhile.
pub(crate) fn add_taint(node: &NodeView) -> Vec<PatchOp> {
    let taint = json!({ "key": wk::TAINT_SHUTDOWN, "effect": TaintEffect::NoSchedule.as_str() });
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

pub(crate) fn remove_taints(node: &NodeView) -> Vec<PatchOp> {
    let positions: Vec<usize> = node
        .taints
        .iter()
        .enumerate()
        .filter(|(_, taint)| taint.is_shutdown())
        .map(|(position, _)| position)
        .collect();
    let mut operations = vec![PatchOp::test("/metadata/uid", &node.uid)];
    for position in &positions {
        operations.push(PatchOp::test(format!("/spec/taints/{position}/key"), wk::TAINT_SHUTDOWN));
        operations.push(PatchOp::test(
            format!("/spec/taints/{position}/effect"),
            TaintEffect::NoSchedule.as_str(),
        ));
    }
    for position in positions.iter().rev() {
        operations.push(PatchOp::Remove { path: format!("/spec/taints/{position}") });
    }
    operations
}

/// How a deletion ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DeleteOutcome {
    /// This controller deleted it.
    Yes,
    /// Not deleted, because the proof of absence does not apply to the Node as it is now; with the
    /// reason.
    Aborted(&'static str),
}

/// Deletes a Node whose instance is proved to be gone, after reading it once more from the API
/// server.
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
    if let Some(refusal) = reason_not_to_delete(provider.as_ref(), node, &fresh) {
        return Ok(DeleteOutcome::Aborted(refusal));
    }
    // The precondition on the resource version covers the time between read and delete: a node that
    // became Ready meanwhile is kept.
    match api
        .delete_node(&fresh.name, &fresh.uid, &fresh.resource_version)
        .await
    {
        Ok(()) => Ok(DeleteOutcome::Yes),
        Err(error) => match error.kind() {
            ApiErrorKind::NotFound => Ok(DeleteOutcome::Aborted("gone already")),
            ApiErrorKind::Conflict => Ok(DeleteOutcome::Aborted("changed meanwhile")),
            // The response was lost, but the request may have succeeded.
            ApiErrorKind::Unavailable | ApiErrorKind::Timeout
                if is_gone(api, fields, &fresh).await =>
            {
                Ok(DeleteOutcome::Yes)
            }
            _ => Err(error),
        },
    }
}

/// Tells whether the Node is known to be deleted; false after an error.
async fn is_gone(api: &ApiClient, fields: &NodeFields, node: &NodeView) -> bool {
    match api.get_node(&node.name, fields).await {
        Ok(now) => now.uid != node.uid,
        Err(error) => error.is_not_found(),
    }
}

/// Returns why the Node as it is now must not be deleted because of a proof about the Node as it
/// was, or `None` if it may be deleted.
fn reason_not_to_delete(
    provider: &dyn CloudProvider,
    asked: &NodeView,
    now: &NodeView,
) -> Option<&'static str> {
    if now.uid != asked.uid {
        Some("registered again meanwhile")
    } else if now.is_ready() {
        Some("Ready again")
    } else if now.provider_id != asked.provider_id {
        Some("has another provider ID now")
    } else if now.machine != asked.machine {
        Some("another machine has registered under its name")
    } else if now.deleting {
        Some("being deleted already")
    } else if provider.node_ownership(now) != NodeOwnership::Ours {
        Some("not ours any more")
    } else {
        None
    }
}
