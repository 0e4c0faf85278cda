//! Routes to the pod networks of Nodes.

use std::sync::Arc;

use async_trait::async_trait;
use ipnet::IpNet;

use super::{CloudError, Op};
use crate::k8s::{NodeAddress, NodeView};

/// Programs routes from pod CIDRs to nodes. Needed for the route controller.
#[async_trait]
pub trait Routes: Send + Sync {
    /// Lists the routes in this cluster's route table.
    ///
    /// Must be complete, or an error: a route that is missing from the list is created again, and a
    /// listed route without a node is deleted if it lies in the cluster's pod networks. `nodes`
    /// helps to translate instances to node names. Called at every reconcile.
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError>;

    /// Applies changes and returns one result per change, in the same order. Batched where the
    /// cloud supports it. Creating a route that exists and deleting one that does not exist are
    /// successes.
    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<(), CloudError>>;
}

/// A route in the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The provider's identifier for the route, passed back in [`RouteChange::Delete`]. It must
    /// contain whatever the provider needs to find this route again (the next hop, the table),
    /// because the node may have been deleted by then.
    pub name: Box<str>,
    /// Name of the target node; `None` when unknown.
    pub node: Option<Arc<str>>,
    /// Node addresses for which the route was created, if the provider compares them (upstream's
    /// `EnableNodeAddresses`). If they differ from the node's addresses, the route is replaced.
    pub node_addresses: Option<Vec<NodeAddress>>,
    /// Destination, in canonical form.
    pub destination: IpNet,
    /// True if the route's target no longer exists.
    pub blackhole: bool,
}

/// One change of the route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// Create a route.
    Create {
        /// Target node.
        node: Arc<NodeView>,
        /// Destination.
        destination: IpNet,
    },
    /// Delete a route, as listed.
    Delete(Route),
}
