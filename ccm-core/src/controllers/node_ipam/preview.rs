//! Which pod networks the node-IPAM controller would give.

use async_trait::async_trait;
use tokio::time::Instant;

use super::{NodeIpamController, plan::Proposal};
use crate::{
    config::controllers::NODE_IPAM,
    runtime::shadow::{Difference, Findings, Kind, NONE, Preview},
};

/// The controller as a shadow. Which blocks are free it knows from the cache alone.
struct IpamPreview(NodeIpamController);

impl NodeIpamController {
    /// Makes a controller that only says what it would write.
    pub(crate) fn preview(self) -> Box<dyn Preview> {
        Box::new(IpamPreview(self))
    }
}

#[async_trait]
impl Preview for IpamPreview {
    async fn look(&mut self, now: Instant) -> Findings {
        let Self(controller) = self;
        let mut nodes = controller.cx.nodes.list();
        let compared = vec![("nodes", nodes.len())];
        nodes.retain(|node| node.pod_cidrs.is_empty() && !node.deleting && controller.behind(&node.name).is_none());
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        // Offers stand, so that each node is shown blocks of its own, and the same ones every time.
        let offers = nodes.iter().map(|node| (node, controller.shared.with(|l| l.propose(&node.name, &node.uid))));
        let difference = |(node, offer): (&std::sync::Arc<crate::k8s::NodeView>, Proposal)| match offer {
            Proposal::Write(cidrs) => {
                let cidrs: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
                let difference = Difference {
                    kind: Kind::Node,
                    object: node.name.to_string(),
                    part: "spec.podCIDRs".to_owned(),
                    controller: NODE_IPAM,
                    is: Some(NONE.to_owned()),
                    would_be: cidrs.join(","),
                    why: "it has none, and these are free".to_owned(),
                };
                Some((difference, now))
            }
            Proposal::Full | Proposal::Nothing => None,
        };
        Findings { compared, differences: offers.filter_map(difference).collect(), ..Findings::default() }
    }
}
