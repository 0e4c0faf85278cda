//! Differences of Nodes, for the dry runs of all controllers that write Nodes.

use crate::{
    k8s::NodeView,
    runtime::shadow::{Difference, ObjectKind},
};

/// Returns the difference between the current and the desired value of a part of a Node.
pub(super) fn node_difference(
    controller: &'static str,
    node: &NodeView,
    part: &str,
    current: &str,
    desired: &str,
    reason: &str,
) -> Difference {
    Difference {
        kind: ObjectKind::Node,
        object: node.name.to_string(),
        part: part.to_owned(),
        controller,
        current: Some(current.to_owned()),
        desired: desired.to_owned(),
        why: reason.to_owned(),
        defect: None,
    }
}
