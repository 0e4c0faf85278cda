//! Writes the taints of this controller and deletes Nodes.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    k8s::{NodeFields, NodeView, Taint, TaintEffect, well_known},
    provider::{CloudProvider, NodeOwnership},
    runtime::api::{ApiClient, ApiError, ApiErrorKind, Patch, PatchOp, Subresource},
};

/// The maximum number of attempts to write a node that keeps changing, as in
/// k8s.io/cloud-provider.
const MAX_ATTEMPTS: usize = 5;
/// The minimum delay between two attempts, as in k8s.io/cloud-provider. Up to the same amount is added at random.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A change of the taints of this controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaintChange {
    /// Add the shutdown taint, because the instance is shut down.
    AddShutdown,
    /// Add the out-of-service taint, because the instance has been shut down or gone for long.
    AddOutOfService {
        /// The time after which the cloud's answer is too old for a write.
        until: Instant,
    },
    /// Remove our out-of-service taint, because the instance runs.
    RemoveOutOfService,
    /// Remove both, because the node is Ready.
    RemoveAll,
}

impl TaintChange {
    /// Returns the name of the change in words.
    pub(super) fn operation(self) -> &'static str {
        match self {
            Self::AddShutdown => "add the shutdown taint",
            Self::AddOutOfService { .. } => "add the out-of-service taint",
            Self::RemoveOutOfService => "remove the out-of-service taint",
            Self::RemoveAll => "remove the shutdown taint",
        }
    }

    /// Builds the patch; empty if the node is as desired, or if the reason for the change is too
    /// old.
    pub(super) fn operations(self, node: &NodeView) -> Vec<PatchOp> {
        match self {
            Self::AddShutdown if !node.has_shutdown_taint() => shutdown_taint_addition(node),
            Self::AddOutOfService { until }
                if Instant::now() <= until && !node.has_out_of_service_taint() =>
            {
                addition(
                    node,
                    json!({
                        "key": well_known::TAINT_OUT_OF_SERVICE,
                        "value": well_known::OUT_OF_SERVICE_VALUE,
                        "effect": TaintEffect::NoExecute.as_str(),
                    }),
                )
            }
            Self::AddShutdown | Self::AddOutOfService { .. } => Vec::new(),
            Self::RemoveOutOfService => removal(node, Taint::is_own_out_of_service),
            Self::RemoveAll => {
                removal(node, |taint| taint.is_shutdown() || taint.is_own_out_of_service())
            }
        }
    }

    /// Returns true if the change that was planned for `planned` is also right for the node as it
    /// is now. `is_ours` is true if the node, as it is now, belongs to this provider.
    fn applies_to(self, planned: &NodeView, fresh: &NodeView, is_ours: bool) -> bool {
        let is_same = fresh.uid == planned.uid;
        match self {
            Self::AddShutdown => is_same && !fresh.is_ready(),
            Self::AddOutOfService { .. } => {
                is_same
                    && is_ours
                    && !fresh.deleting
                    && fresh.is_silent()
                    && fresh.provider_id == planned.provider_id
                    && fresh.machine == planned.machine
            }
            Self::RemoveOutOfService => is_same,
            Self::RemoveAll => is_same && fresh.is_ready(),
        }
    }
}

/// Changes the taints of a node. Returns true if anything was written.
pub(super) async fn change_taints(
    api: &ApiClient,
    provider: &Arc<dyn CloudProvider>,
    fields: &NodeFields,
    planned: &NodeView,
    change: TaintChange,
) -> Result<bool, ApiError> {
    let mut node = planned.clone();
    let mut attempt = 1;
    loop {
        // Patch the node, unless it already is as desired.
        let operations = change.operations(&node);
        if operations.is_empty() {
            return Ok(false);
        }
        match api
            .patch_node(&node.name, Subresource::None, &Patch::Json(operations))
            .await
        {
            Ok(_) => return Ok(true),
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) if !error.is_conflict() || attempt == MAX_ATTEMPTS => return Err(error),
            Err(_) => {}
        }
        // After a conflict, read the node again. Retry only if the change is still right.
        tokio::time::sleep(RETRY_DELAY.mul_f64(rand::random_range(1.0..2.0))).await;
        match api.get_node(&node.name, fields).await {
            Ok(fresh) => {
                let is_ours = provider.node_ownership(&fresh) == NodeOwnership::Ours;
                if !change.applies_to(planned, &fresh, is_ours) {
                    return Ok(false);
                }
                node = fresh;
            }
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error),
        }
        attempt += 1;
    }
}

/// Builds the patch that adds the shutdown taint.
pub(crate) fn shutdown_taint_addition(node: &NodeView) -> Vec<PatchOp> {
    let effect = TaintEffect::NoSchedule;
    addition(node, json!({ "key": well_known::TAINT_SHUTDOWN, "effect": effect.as_str() }))
}

/// Builds the patch that removes all shutdown taints of a node, and nothing else.
#[cfg(feature = "fuzz")]
pub(crate) fn shutdown_taint_removal(node: &NodeView) -> Vec<PatchOp> {
    removal(node, Taint::is_shutdown)
}

/// Builds the patch that adds a taint.
///
/// It only applies if the node has not changed since it was read. Otherwise, it might create the
/// list of taints and so replace one that another writer has just created, or taint a node that
/// became Ready.
fn addition(node: &NodeView, taint: Value) -> Vec<PatchOp> {
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

/// Builds the patch that removes some taints of a node; empty if it has none of them.
fn removal(node: &NodeView, is_removed: impl Fn(&Taint) -> bool) -> Vec<PatchOp> {
    let mut operations = vec![PatchOp::test("/metadata/uid", &node.uid)];
    let mut removals = Vec::new();
    for (index, taint) in node.taints.iter().enumerate() {
        if !is_removed(taint) {
            continue;
        }
        let path = format!("/spec/taints/{index}");
        operations.push(PatchOp::test(format!("{path}/key"), &taint.key));
        operations.push(PatchOp::test(format!("{path}/effect"), taint.effect.as_str()));
        if taint.is_own_out_of_service() {
            operations.push(PatchOp::test(format!("{path}/value"), &taint.value));
        }
        removals.push(PatchOp::Remove { path });
    }
    if removals.is_empty() {
        return Vec::new();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::{ConditionStatus, MachineId, NodeCondition};

    fn silent() -> NodeView {
        NodeView {
            uid: "u".into(),
            provider_id: Some("fake://n".into()),
            machine: MachineId::of("machine"),
            ready: Some(NodeCondition { status: ConditionStatus::Unknown, reason: "".into() }),
            ..NodeView::named("n")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_old_answer_marks_no_node() {
        let change = TaintChange::AddOutOfService { until: Instant::now() + RETRY_DELAY };
        assert!(!change.operations(&silent()).is_empty());
        tokio::time::advance(RETRY_DELAY * 2).await;
        assert!(change.operations(&silent()).is_empty());
    }

    #[test]
    fn only_the_node_that_was_proved_to_be_off_is_marked() {
        let change = TaintChange::AddOutOfService { until: Instant::now() };
        let planned = silent();
        assert!(change.applies_to(&planned, &planned, true));
        assert!(!change.applies_to(&planned, &planned, false), "not ours any more");
        for (name, fresh) in [
            ("being deleted", NodeView { deleting: true, ..silent() }),
            ("never reported", NodeView { ready: None, ..silent() }),
            ("registered again", NodeView { uid: "v".into(), ..silent() }),
            ("another instance", NodeView { provider_id: Some("fake://m".into()), ..silent() }),
            ("another machine", NodeView { machine: MachineId::of("other"), ..silent() }),
        ] {
            assert!(!change.applies_to(&planned, &fresh, true), "{name}");
        }
    }
}
