//! Writes pod CIDRs to nodes, and classifies the errors of such requests.

use ipnet::IpNet;
use serde_json::Value;

use crate::{
    k8s::NodeView,
    runtime::api::{ApiClient, ApiError, ApiErrorKind, Patch, PatchOp, Subresource},
};

/// The class of an error of a write, by what it means for the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchFailure {
    /// The node no longer exists.
    Gone,
    /// The request had no effect because the node has changed. It has to be read again.
    Changed,
    /// The node may have got the pod CIDRs, or may still get them.
    Unknown,
    /// The request had no effect, and an immediate retry would not help.
    Rejected,
}

/// Writes the pod CIDRs of a node, unless the node has changed since it was read without any.
///
/// JSON Patch has no portable test for a missing field, so the patch tests the resource version. It
/// also makes a request harmless that arrives after another writer's.
pub(crate) async fn set_pod_cidrs(
    api: &ApiClient,
    node: &NodeView,
    cidrs: &[IpNet],
) -> Result<(), ApiError> {
    api.patch_node(&node.name, Subresource::None, &Patch::Json(operations(node, cidrs)))
        .await
        .map(drop)
}

pub(crate) fn operations(node: &NodeView, cidrs: &[IpNet]) -> Vec<PatchOp> {
    let cidrs: Vec<Value> = cidrs
        .iter()
        .map(|cidr| Value::from(cidr.to_string()))
        .collect();
    let mut operations = vec![
        PatchOp::test("/metadata/uid", &node.uid),
        PatchOp::test("/metadata/resourceVersion", &node.resource_version),
    ];
    // The API server requires `podCIDR` to equal the first entry of `podCIDRs`.
    if let Some(first) = cidrs.first() {
        operations.push(PatchOp::Add { path: "/spec/podCIDR".to_owned(), value: first.clone() });
    }
    operations.push(PatchOp::Add { path: "/spec/podCIDRs".to_owned(), value: Value::from(cidrs) });
    operations
}

/// Classifies the error of a failed write.
pub(crate) fn classify_failure(error: &ApiError) -> PatchFailure {
    match error.kind() {
        ApiErrorKind::NotFound => PatchFailure::Gone,
        // Validation rejects the patch if the node already has pod CIDRs.
        ApiErrorKind::Conflict | ApiErrorKind::TestFailed | ApiErrorKind::Invalid(_) => {
            PatchFailure::Changed
        }
        ApiErrorKind::Timeout | ApiErrorKind::Unavailable => PatchFailure::Unknown,
        // A response that could not be parsed may have been a success.
        ApiErrorKind::Other if error.code().is_none() => PatchFailure::Unknown,
        ApiErrorKind::Forbidden
        | ApiErrorKind::Unauthorized
        | ApiErrorKind::Throttled
        | ApiErrorKind::Gone
        | ApiErrorKind::NotLeader
        | ApiErrorKind::Canceled
        | ApiErrorKind::Other => PatchFailure::Rejected,
    }
}
