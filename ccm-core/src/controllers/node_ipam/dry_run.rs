//! Dry run of the node-IPAM controller: finds which pod CIDRs it would allocate.

use async_trait::async_trait;
use ipnet::IpNet;
use tokio::time::Instant;

use super::{NodeIpamController, plan::AllocationDecision};
use crate::{
    config::controller_names::NODE_IPAM,
    k8s::NodeView,
    runtime::shadow::{Difference, DryRun, DryRunFindings, NONE, ObjectKind},
};

/// The controller in shadow mode. It knows only from the cache which blocks are free.
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
            // Proposals are not cancelled, so that each node is shown different blocks, and the
            // same ones every time.
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
    Difference {
        kind: ObjectKind::Node,
        object: node.name.to_string(),
        part: "spec.podCIDRs".to_owned(),
        controller: NODE_IPAM,
        current: Some(NONE.to_owned()),
        desired: cidrs.join(","),
        why: "it has none, and these are free".to_owned(),
    }
}
