//! Routes to the pod networks of Nodes.

use std::sync::Arc;

use async_trait::async_trait;
use ipnet::IpNet;

use super::{CloudError, Op};
use crate::k8s::{NodeAddress, NodeView};

/// Manages routes from pod CIDRs to nodes. The route controller needs it.
#[async_trait]
pub trait Routes: Send + Sync {
    /// Lists the routes in this cluster's route table. `nodes` helps to map instances to node
    /// names.
    ///
    /// Called at every reconcile. The framework creates a route that is missing from the list, and
    /// deletes a listed route without a node if it is in the cluster's pod networks.
    ///
    /// # Errors
    /// Must return an error if the list would be incomplete.
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError>;

    /// Applies changes, in batches if the cloud supports that. Returns one result per change, in
    /// the same order.
    ///
    /// Must succeed for the creation of a route that exists and the deletion of a route that does
    /// not.
    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<(), CloudError>>;
}

/// A route in the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The provider's identifier for the route, passed back in [`RouteChange::Delete`]. It must
    /// contain whatever the provider needs to find this route again (the next hop, the table),
    /// because the node may already have been deleted.
    pub name: Box<str>,
    /// The name of the target node, or `None` if it is unknown.
    pub node: Option<Arc<str>>,
    /// The node addresses for which the route was created, if the provider compares them
    /// (upstream's `EnableNodeAddresses`). If they differ from the node's addresses, the framework
    /// replaces the route.
    pub node_addresses: Option<Vec<NodeAddress>>,
    /// The destination, in canonical form.
    pub destination: IpNet,
    /// True if the route's target no longer exists.
    pub blackhole: bool,
}

/// A change of the route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// Create a route.
    Create {
        /// The target node.
        node: Arc<NodeView>,
        /// The destination.
        destination: IpNet,
    },
    /// Delete a route, as listed.
    Delete(Route),
}
