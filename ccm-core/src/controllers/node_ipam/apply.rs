//! Writes pod CIDRs to nodes, and classifies the errors of such requests.

use ipnet::IpNet;
use serde_json::Value;

use crate::{
    k8s::NodeView,
    runtime::api::{ApiClient, ApiError, ApiErrorKind, Patch, PatchOp, Subresource},
};

/// What the error of a write says about the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchFailure {
    /// The node does not exist any more.
    Gone,
    /// The node was not as expected; read it again to see why. The request did not change it.
    Changed,
    /// The node may have got the pod CIDRs, or may still get them.
    Unknown,
    /// The request did not change the node, and an immediate retry will not help.
    Rejected,
}

/// Writes the node's pod CIDRs, provided that its resource version is still the one that was read
/// without pod CIDRs.
///
/// JSON Patch has no portable test for "absent", so the patch tests the resource version. This also
/// makes a request harmless that arrives after another writer's.
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
        // Validation rejects a change of pod CIDRs that are already set.
        ApiErrorKind::Conflict | ApiErrorKind::TestFailed | ApiErrorKind::Invalid(_) => {
            PatchFailure::Changed
        }
        ApiErrorKind::Timeout | ApiErrorKind::Unavailable => PatchFailure::Unknown,
        // A response that could not be read may have been a success.
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
