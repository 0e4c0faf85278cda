use std::sync::Arc;

use async_trait::async_trait;
use ipnet::IpNet;

use super::{CloudError, Op};
use crate::k8s::{NodeAddress, NodeView};

/// Programs routes from pod CIDRs to nodes. Needed for the route controller.
#[async_trait]
pub trait Routes: Send + Sync {
    /// Lists the routes of this cluster's table.
    ///
    /// Complete, or an error: one that is not listed is created again, and one that is
    /// listed without a node is deleted if it lies in the cluster's pod networks. `nodes` helps to translate instances
    /// to node names. Called at every reconcile.
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError>;

    /// Applies changes: one answer per change, in their order. Batched where the cloud can. Creating a route that is
    /// there and deleting one that is not are successes.
    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<(), CloudError>>;
}

/// A route of the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The provider's handle for it, given back in [`RouteChange::Delete`]: whatever the provider needs to find this
    /// very route again (the next hop, the table), since the node may be gone by then.
    pub name: Box<str>,
    /// Node that it leads to; `None` when unknown.
    pub node: Option<Arc<str>>,
    /// Node addresses that the route was made for, if the provider compares them (upstream's `EnableNodeAddresses`);
    /// a difference has the route replaced.
    pub node_addresses: Option<Vec<NodeAddress>>,
    /// Destination, canonical.
    pub destination: IpNet,
    /// Leads nowhere: its target is gone.
    pub blackhole: bool,
}

/// One change of the route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// Create a route.
    Create {
        /// Target.
        node: Arc<NodeView>,
        /// Destination.
        destination: IpNet,
    },
    /// Delete a route, as listed.
    Delete(Route),
}
