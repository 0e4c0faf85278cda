//! The dry run of the node-IPAM controller, which finds the pod CIDRs that it would allocate.

use async_trait::async_trait;
use ipnet::IpNet;
use tokio::time::Instant;

use super::{NodeIpamController, plan::AllocationDecision};
use crate::{
    config::controller_names::NODE_IPAM,
    controllers::node_difference::node_difference,
    k8s::NodeView,
    runtime::shadow::{Difference, DryRun, DryRunFindings, NONE},
};

/// The controller in shadow mode. It learns only from the cache which blocks are taken.
struct NodeIpamDryRun(NodeIpamController);

impl NodeIpamController {
    /// Turns the controller into one that only reports what it would write.
    pub(crate) fn dry_run(self) -> Box<dyn DryRun> {
        Box::new(NodeIpamDryRun(self))
    }
}

#[async_trait]
impl DryRun for NodeIpamDryRun {
    async fn compare(&mut self, now: Instant) -> DryRunFindings {
        let Self(controller) = self;
        let mut nodes = controller.ctx.nodes.list();
        let compared = vec![("nodes", nodes.len())];
        nodes.retain(|node| {
            node.pod_cidrs.is_empty()
                && !node.deleting
                && controller.cache_wait(&node.name).is_none()
        });
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let mut differences = Vec::new();
        for node in nodes {
            // Proposals are not cancelled, so no two nodes get the same blocks, and a node gets the
            // same ones in every comparison.
            let decision = controller
                .shared
                .with_allocator(|allocator| allocator.decide(&node.name, &node.uid));
            if let AllocationDecision::Write(cidrs) = decision {
                differences.push((difference(&node, &cidrs), now));
            }
        }
        DryRunFindings { compared, differences, ..DryRunFindings::default() }
    }
}

fn difference(node: &NodeView, cidrs: &[IpNet]) -> Difference {
    let cidrs: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
    let reason = "it has none, and these are free";
    node_difference(NODE_IPAM, node, "spec.podCIDRs", NONE, &cidrs.join(","), reason)
}
