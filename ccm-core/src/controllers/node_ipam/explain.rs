//! What the node-IPAM controller contributes to the explanation of a node.

use std::sync::Arc;

use super::{AllocationError, NodeIpamController, SharedAllocator};
use crate::{
    config::controller_names::NODE_IPAM,
    explain::{Cause, ExplainTime, ExplainedCause, Explainer, NodeExplanation, api_cause},
    k8s::NodeView,
};

impl AllocationError {
    /// Returns the cause that the error stands for.
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Full => Cause::PodCidrPoolFull,
            Self::Api(error) => api_cause(error),
        }
    }
}

impl NodeIpamController {
    /// Returns what explains nodes while the controller runs.
    pub(crate) fn explainer(&self) -> Arc<dyn Explainer> {
        self.shared.clone()
    }
}

impl Explainer for SharedAllocator {
    fn explain_node(&self, node: &NodeView, time: ExplainTime, explanation: &mut NodeExplanation) {
        explanation.controllers.push(NODE_IPAM);
        if node.deleting {
            return;
        }
        if !node.pod_cidrs.is_empty() {
            let problems = self.allocator.lock().problems(&node.name);
            for problem in problems {
                let message = format!("node {}: {problem}", node.name);
                explanation.add(ExplainedCause::new(Cause::PodCidrInvalid, message));
            }
            return;
        }
        match self.failed.get(&node.name) {
            Some(attempt) => explanation.add_attempt(NODE_IPAM, &attempt, time),
            None => {
                let message = format!("node {}: the allocation is queued or runs", node.name);
                explanation.add(ExplainedCause::new(Cause::PodCidrNotAllocatedYet, message));
            }
        }
    }
}
