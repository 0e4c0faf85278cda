//! Routes for a cloud in which each route is an object of its own.
//!
//! Implement [`SimpleRoutes`] with three methods and a pure function, and the provider has
//! [`Routes`].

use std::{collections::HashMap, num::NonZeroUsize, sync::Arc};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use ipnet::IpNet;
use rand::RngExt;

use super::{
    CloudError, ErrorKind, Mutation, Op, Progress, Route, RouteChange, RouteLimits, Routes,
};
use crate::k8s::NodeView;

/// The name of the mutation that creates a route.
pub const CREATE: &str = "create_route";
/// The name of the mutation that deletes a route.
pub const DELETE: &str = "delete_route";

/// A cloud in which each route is an object of its own. A type that implements it implements
/// [`Routes`].
#[async_trait]
pub trait SimpleRoutes: Send + Sync {
    /// Returns the maximum number of changes in flight. The result must not change. The default is
    /// 8.
    ///
    /// Return 1 if the cloud locks the network during a change. The framework then sends one change
    /// after the other, and none while one is pending or the network is locked, which is an error
    /// of kind [`ErrorKind::Conflict`].
    fn concurrent_changes(&self) -> NonZeroUsize {
        const DEFAULT: NonZeroUsize = NonZeroUsize::new(8).expect("not zero");
        DEFAULT
    }

    /// Returns the cloud's identifier of a node as the target of routes, or `None` while it is
    /// unknown. The route then waits for the next change of the node. Must be pure.
    ///
    /// # Errors
    /// Returns an error if the node can never be the target of a route, for example because its
    /// provider ID is invalid.
    fn target<'n>(&self, node: &'n NodeView) -> Result<Option<&'n str>, CloudError>;

    /// Lists the routes that belong to this cluster ([`Op::cluster_name`]), and no others: those
    /// that no node needs are deleted if they are in the cluster's pod networks.
    ///
    /// A route that is still being created must not be listed: a listed route counts as created, and
    /// its node as reachable. Until it is listed, the framework calls
    /// [`create_route`](Self::create_route) again after each delay. A route that is still being
    /// deleted must be listed, because its replacement may only be created after it.
    ///
    /// # Errors
    /// Must return an error if the list would be incomplete.
    async fn list_routes(&self, op: &Op) -> Result<Vec<SimpleRoute>, CloudError>;

    /// Creates a route, through [`Op::mutate`] with this mutation. Returns [`Progress::Pending`] if
    /// the cloud completes it later.
    async fn create_route(
        &self,
        op: &Op,
        mutation: Mutation,
        destination: IpNet,
        target: &str,
    ) -> Result<Progress, CloudError>;

    /// Deletes a listed route, through [`Op::mutate`] with this mutation. Returns
    /// [`Progress::Pending`] if the cloud completes it later.
    async fn delete_route(
        &self,
        op: &Op,
        mutation: Mutation,
        route: &SimpleRoute,
    ) -> Result<Progress, CloudError>;
}

/// A route in the cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimpleRoute {
    /// Its identifier in the cloud. If routes have none, a text that is unique among the listed
    /// ones, such as `10.0.1.0/24 via 10.1.0.7`.
    pub id: Box<str>,
    /// The network to which it leads.
    pub destination: IpNet,
    /// The identifier of its target, as [`SimpleRoutes::target`] returns it.
    pub target: Box<str>,
    /// True if its target no longer exists. If the cloud does not say so, compare the targets with
    /// its instances. A listing with numbered pages can lack one that exists
    /// ([`RestClient::list`](super::rest::RestClient::list)), and the framework replaces a broken
    /// route.
    pub broken: bool,
}

#[async_trait]
impl<T: SimpleRoutes> Routes for T {
    /// Sends one batch at a time, because changes of a batch are sent concurrently if the cloud
    /// allows it.
    fn limits(&self) -> RouteLimits {
        RouteLimits { max_in_flight: NonZeroUsize::MIN, ..RouteLimits::default() }
    }

    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        let mut names = HashMap::new();
        for node in nodes {
            // A node that cannot be a target has no route.
            if let Ok(Some(target)) = self.target(node) {
                names.insert(target, &node.name);
            }
        }
        let routes = self.list_routes(op).await?;
        Ok(routes
            .into_iter()
            .map(|route| Route {
                node: names.get(&*route.target).map(|name| Arc::clone(name)),
                name: route.id,
                node_addresses: None,
                destination: route.destination.trunc(),
                blackhole: route.broken,
            })
            .collect())
    }

    /// Lists the routes once, to skip changes without effect, and then sends one request per
    /// change.
    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<Progress, CloudError>> {
        let existing = match self.list_routes(op).await {
            Ok(existing) => existing,
            Err(error) => return vec![Err(error); changes.len()],
        };
        let concurrent = self.concurrent_changes();
        if concurrent == NonZeroUsize::MIN {
            let first = rand::rng().random_range(0..changes.len().max(1));
            return apply_serially(self, op, &existing, changes, first).await;
        }
        let requests: Vec<_> = changes
            .iter()
            .map(|change| apply_change(self, op, &existing, change))
            .collect();
        stream::iter(requests)
            .buffered(concurrent.get())
            .collect()
            .await
    }
}

/// Sends one change after the other. If one is pending or finds the network locked, those after it
/// wait. A conflict with an existing route, such as that of another node with the same pod network,
/// is no lock: only this change waits.
///
/// Begins with the change at `first` and goes on at the beginning of the batch. If that differs from
/// call to call, a change that never succeeds does not keep all others waiting.
async fn apply_serially<T: SimpleRoutes + ?Sized>(
    cloud: &T,
    op: &Op,
    existing: &[SimpleRoute],
    changes: &[RouteChange],
    first: usize,
) -> Vec<Result<Progress, CloudError>> {
    let (before, from_first) = changes.split_at(first.min(changes.len()));
    let mut results = Vec::with_capacity(changes.len());
    let mut busy: Option<Progress> = None;
    for change in from_first.iter().chain(before) {
        let prepared = prepare(cloud, existing, change);
        let Ok(PreparedChange::Send(request)) = &prepared else {
            results.push(send(cloud, op, prepared).await);
            continue;
        };
        if let Some(busy) = &busy {
            results.push(Ok(busy.clone()));
            continue;
        }
        let conflicts_with_route = request.has_conflicting_route(existing);
        let (result, locked) = match send(cloud, op, prepared).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {
                let after = error.retry_after().unwrap_or_else(|| op.poll_interval());
                let pending = Progress::Pending { after, reason: error.chain().into() };
                (Ok(pending), !conflicts_with_route)
            }
            result => (result, true),
        };
        if let Ok(Progress::Pending { after, reason }) = &result
            && locked
        {
            let reason = format!("it waits for an earlier change: {reason}");
            busy = Some(Progress::Pending { after: *after, reason: reason.into() });
        }
        results.push(result);
    }
    // The results are in the order of the changes.
    results.rotate_right(before.len());
    results
}

async fn apply_change<T: SimpleRoutes + ?Sized>(
    cloud: &T,
    op: &Op,
    existing: &[SimpleRoute],
    change: &RouteChange,
) -> Result<Progress, CloudError> {
    send(cloud, op, prepare(cloud, existing, change)).await
}

/// A change after it was compared with the existing routes.
enum PreparedChange<'a> {
    /// Nothing is to be done.
    Done,
    /// The node's identifier as a target is not known yet.
    NoTarget(&'a NodeView),
    /// A request is needed.
    Send(RouteRequest<'a>),
}

/// The request of a change.
enum RouteRequest<'a> {
    Create { destination: IpNet, target: &'a str },
    Delete(&'a SimpleRoute),
}

impl RouteRequest<'_> {
    /// Returns true if it creates a route to a destination that has one.
    fn has_conflicting_route(&self, existing: &[SimpleRoute]) -> bool {
        let Self::Create { destination, .. } = self else {
            return false;
        };
        existing
            .iter()
            .any(|route| route.destination.trunc() == *destination)
    }
}

/// Compares a change with the existing routes.
fn prepare<'a, T: SimpleRoutes + ?Sized>(
    cloud: &T,
    existing: &'a [SimpleRoute],
    change: &'a RouteChange,
) -> Result<PreparedChange<'a>, CloudError> {
    match change {
        RouteChange::Create { node, destination } => {
            let destination = destination.trunc();
            let Some(target) = cloud.target(node)? else {
                return Ok(PreparedChange::NoTarget(node));
            };
            let exists = existing.iter().any(|route| {
                route.destination.trunc() == destination
                    && *route.target == *target
                    && !route.broken
            });
            Ok(match exists {
                true => PreparedChange::Done,
                false => PreparedChange::Send(RouteRequest::Create { destination, target }),
            })
        }
        RouteChange::Delete(route) => {
            // A route that is not listed was deleted, or is not this cluster's.
            let listed = existing.iter().find(|listed| {
                listed.id == route.name && listed.destination.trunc() == route.destination.trunc()
            });
            Ok(match listed {
                Some(listed) => PreparedChange::Send(RouteRequest::Delete(listed)),
                None => PreparedChange::Done,
            })
        }
    }
}

async fn send<T: SimpleRoutes + ?Sized>(
    cloud: &T,
    op: &Op,
    change: Result<PreparedChange<'_>, CloudError>,
) -> Result<Progress, CloudError> {
    match change? {
        PreparedChange::Done => Ok(Progress::Done),
        PreparedChange::NoTarget(node) => Ok(Progress::pending(
            op,
            format!("node {} cannot be the target of a route yet", node.name),
        )),
        PreparedChange::Send(RouteRequest::Create { destination, target }) => {
            let mutation = Mutation::new(CREATE, format!("{destination} to {target}"));
            cloud.create_route(op, mutation, destination, target).await
        }
        PreparedChange::Send(RouteRequest::Delete(route)) => {
            let mutation = Mutation::new(DELETE, route.id.clone());
            cloud.delete_route(op, mutation, route).await
        }
    }
}

#[cfg(test)]
#[path = "simple_routes_tests.rs"]
mod tests;
