//! Dry run of the node-IPAM controller: finds which pod CIDRs it would allocate.

use async_trait::async_trait;
use tokio::time::Instant;

use super::{NodeIpamController, plan::AllocationDecision};
use crate::{
    config::controller_names::NODE_IPAM,
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
        let mut nodes = controller.cx.nodes.list();
        let compared = vec![("nodes", nodes.len())];
        nodes.retain(|node| {
            node.pod_cidrs.is_empty() && !node.deleting && controller.behind(&node.name).is_none()
        });
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        // Proposals are not cancelled, so that each node is shown different blocks, and the same
        // ones every time.
        let offers = nodes.iter().map(|node| {
            (
                node,
                controller
                    .shared
                    .with_allocator(|l| l.decide(&node.name, &node.uid)),
            )
        });
        let difference = |(node, offer): (
            &std::sync::Arc<crate::k8s::NodeView>,
            AllocationDecision,
        )| match offer {
            AllocationDecision::Write(cidrs) => {
                let cidrs: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
                let difference = Difference {
                    kind: ObjectKind::Node,
                    object: node.name.to_string(),
                    part: "spec.podCIDRs".to_owned(),
                    controller: NODE_IPAM,
                    current: Some(NONE.to_owned()),
                    desired: cidrs.join(","),
                    why: "it has none, and these are free".to_owned(),
                };
                Some((difference, now))
            }
            AllocationDecision::Full | AllocationDecision::Nothing => None,
        };
        DryRunFindings {
            compared,
            differences: offers.filter_map(difference).collect(),
            ..DryRunFindings::default()
        }
    }
}
