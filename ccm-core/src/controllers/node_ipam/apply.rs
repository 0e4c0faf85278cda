//! Writes and reads of nodes, and what their outcomes say about the request.

use ipnet::IpNet;
use serde_json::Value;

use crate::{
    k8s::NodeView,
    runtime::api::{ApiClient, ApiError, ApiErrorKind, Patch, PatchOp, Subresource},
};

/// How a write ended that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchFailure {
    /// The node is gone.
    Gone,
    /// The node was not as expected, which a look at it will explain. It did not get anything by this request.
    Changed,
    /// It may have got it, or may yet.
    Unknown,
    /// It did not get it, and trying again at once will not help.
    Refused,
}

/// Gives the node its pod CIDRs, provided that it is still in the version that was seen without any.
///
/// JSON Patch has no portable way to say "absent", so the patch insists on the resource version. That also makes a request
/// harmless that is delayed until after somebody else's.
pub(crate) async fn set_pod_cidrs(api: &ApiClient, node: &NodeView, cidrs: &[IpNet]) -> Result<(), ApiError> {
    api.patch_node(&node.name, Subresource::None, &Patch::Json(operations(node, cidrs))).await.map(drop)
}

pub(crate) fn operations(node: &NodeView, cidrs: &[IpNet]) -> Vec<PatchOp> {
    let cidrs: Vec<Value> = cidrs.iter().map(|cidr| Value::from(cidr.to_string())).collect();
    let mut operations = vec![
        PatchOp::test("/metadata/uid", &node.uid),
        PatchOp::test("/metadata/resourceVersion", &node.resource_version),
    ];
    // The server wants the older field to be the first of the newer one.
    operations
        .extend(cidrs.first().map(|first| PatchOp::Add { path: "/spec/podCIDR".to_owned(), value: first.clone() }));
    operations.push(PatchOp::Add { path: "/spec/podCIDRs".to_owned(), value: Value::from(cidrs) });
    operations
}

/// Tells what became of a request that failed.
pub(crate) fn classify_failure(error: &ApiError) -> PatchFailure {
    match error.kind() {
        ApiErrorKind::NotFound => PatchFailure::Gone,
        // Validation refuses a second set of pod CIDRs.
        ApiErrorKind::Conflict | ApiErrorKind::TestFailed | ApiErrorKind::Invalid(_) => PatchFailure::Changed,
        ApiErrorKind::Timeout | ApiErrorKind::Unavailable => PatchFailure::Unknown,
        // An answer that could not be read may have been a success.
        ApiErrorKind::Other if error.code().is_none() => PatchFailure::Unknown,
        ApiErrorKind::Forbidden
        | ApiErrorKind::Unauthorized
        | ApiErrorKind::Throttled
        | ApiErrorKind::Gone
        | ApiErrorKind::NotLeader
        | ApiErrorKind::Canceled
        | ApiErrorKind::Other => PatchFailure::Refused,
    }
}
