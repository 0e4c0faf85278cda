//! Routes to the pod networks of Nodes.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use async_trait::async_trait;
use ipnet::IpNet;

use super::{CloudError, Op, Progress};
use crate::k8s::{NodeAddress, NodeView};

/// Manages routes from pod CIDRs to nodes. The route controller needs it.
#[async_trait]
pub trait Routes: Send + Sync {
    /// Returns the limits for calls of [`apply`](Self::apply). The result must not change.
    fn limits(&self) -> RouteLimits {
        RouteLimits::default()
    }

    /// Lists the routes in this cluster's route table. `nodes` helps to map instances to node
    /// names.
    ///
    /// Called at every reconcile. The framework creates a route that is missing from the list, and
    /// deletes a listed route without a node if it is in the cluster's pod networks. A route that is
    /// still being created must not be listed, and one that is still being deleted must be.
    ///
    /// # Errors
    /// Must return an error if the list would be incomplete.
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError>;

    /// Applies changes, in batches if the cloud supports that. Returns one result per change, in
    /// the same order.
    ///
    /// Must succeed for the creation of a route that exists and the deletion of a route that does
    /// not. Must not sleep for more than two seconds, but return [`Progress::Pending`] for a change
    /// that the cloud still works on, that has to wait for another one, or whose node has no
    /// provider ID yet. The framework then repeats the change after the given delay, or when the
    /// node changes, unless [`list`](Self::list) shows its result before that. A pending change is
    /// no failure: it causes no event until it has been pending for ten minutes.
    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<Progress, CloudError>>;
}

/// The delay of [`Progress::Pending`] for the route of a node that has no provider ID or address yet.
/// The node's next change repeats the creation before that.
pub const UNINITIALIZED_NODE_DELAY: Duration = Duration::from_secs(300);

/// The limits for changes of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteLimits {
    /// The maximum number of changes in one call of [`Routes::apply`]. Default 100.
    pub max_batch: NonZeroUsize,
    /// The maximum number of calls of [`Routes::apply`] in flight. Default 4. A cloud that allows
    /// one change at a time needs 1.
    pub max_in_flight: NonZeroUsize,
}

impl Default for RouteLimits {
    fn default() -> Self {
        // In a larger batch the first results would wait too long for the last. Upstream sends up
        // to 200 changes at a time, each in its own call.
        const BATCH: NonZeroUsize = NonZeroUsize::new(100).expect("not zero");
        const IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(4).expect("not zero");
        Self { max_batch: BATCH, max_in_flight: IN_FLIGHT }
    }
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
