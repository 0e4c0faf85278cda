//! Applies changes of routes: address pairs of ports first, then one request for all routes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ccm_core::{
    k8s::IpFamily,
    provider::{CloudError, Op, Progress, RouteChange, UNINITIALIZED_NODE_DELAY},
};
use futures::{StreamExt, stream};
use ipnet::IpNet;
use openstack_api::neutron::{ExtraRoutes, Route, RouterUpdate};
use serde::de::IgnoredAny;

use super::{
    NeutronRoutes,
    plan::{ExtraRoute, RouteUpdate, next_hop},
};
use crate::{
    api::neutron::Port,
    client::{Call, ErrorClass, OpenStackError, Request},
    provider_id::ProviderId,
};

/// Maximum number of ports that are changed concurrently.
const MAX_CONCURRENT_PORTS: usize = 4;
/// Maximum number of times that a router is read again because somebody changed it.
const MAX_ATTEMPTS: usize = 3;

/// A requested change of one route.
#[derive(Clone, Debug)]
enum RouteOperation {
    /// Adds a route to a node, with the ID of the node's server if it is known.
    Add(ExtraRoute, Option<Box<str>>),
    /// Removes a route, and the network from the address pairs of the next hop's port if that still
    /// exists.
    Remove(ExtraRoute),
}

/// Applies changes. Returns one result for each change, in the same order.
pub(super) async fn apply(
    routes: &NeutronRoutes,
    op: &Op,
    changes: &[RouteChange],
) -> Vec<Result<Progress, CloudError>> {
    let mut answers = Vec::with_capacity(changes.len());
    // Operations that can still succeed, by their index in `changes`.
    let mut operations = BTreeMap::new();
    for (index, change) in changes.iter().enumerate() {
        // A node without addresses is not initialised yet. Its next change repeats this one.
        if let RouteChange::Create { node, .. } = change
            && node.addresses.is_empty()
        {
            let reason = format!("node {} has no addresses yet", node.name).into();
            answers.push(Ok(Progress::Pending { after: UNINITIALIZED_NODE_DELAY, reason }));
            continue;
        }
        match parse_change(change) {
            Ok(operation) => {
                operations.insert(index, operation);
                answers.push(Ok(Progress::Done));
            }
            Err(error) => answers.push(Err(error)),
        }
    }
    if routes.extensions.address_pairs {
        for (index, error) in sync_address_pairs(routes, op, &operations).await {
            operations.remove(&index);
            answers[index] = Err(error);
        }
    }
    let all: Vec<RouteOperation> = operations.values().cloned().collect();
    match update_router(routes, op, &all).await {
        Ok(()) => {}
        // Neutron rejected all because of one. Sent alone, each operation gets its own result.
        Err(error) if operations.len() > 1 && may_concern_one_route(&error) => {
            for (index, operation) in operations {
                answers[index] = update_router(routes, op, std::slice::from_ref(&operation))
                    .await
                    .map(|()| Progress::Done)
                    .map_err(|error| routes.with_router_hint(error));
            }
        }
        Err(error) => {
            let error = routes.with_router_hint(error);
            for index in operations.into_keys() {
                answers[index] = Err(error.clone());
            }
        }
    }
    answers
}

fn parse_change(change: &RouteChange) -> Result<RouteOperation, CloudError> {
    match change {
        RouteChange::Create { node, destination } => {
            let family = IpFamily::of(destination);
            let next = next_hop(node, family).ok_or_else(|| {
                CloudError::invalid_input(format!(
                    "node {} has no InternalIP of the family of {destination}",
                    node.name
                ))
            })?;
            let server = node
                .provider_id
                .as_deref()
                .and_then(|id| ProviderId::parse(id).ok())
                .map(|id| id.server);
            Ok(RouteOperation::Add(ExtraRoute { destination: destination.trunc(), next }, server))
        }
        RouteChange::Delete(route) => {
            let hop = ExtraRoute::parse_handle(&route.name).ok_or_else(|| {
                CloudError::invalid_input(format!("{:?} is no handle of a route", route.name))
            })?;
            Ok(RouteOperation::Remove(hop))
        }
    }
}

/// Returns true if an error may concern only one route of a request.
fn may_concern_one_route(error: &OpenStackError) -> bool {
    matches!(error.class(), ErrorClass::Invalid | ErrorClass::Quota | ErrorClass::Conflict)
}

/// Result of changing the port of a next hop.
enum PairResult {
    Done,
    /// No port, or more than one, has the address.
    NoPort(IpAddr),
    /// The port with the address belongs to another server: the node's was deleted, and the address
    /// was assigned again.
    OtherServer(IpAddr),
    Failed(OpenStackError),
}

impl PairResult {
    /// Returns the error of an operation that needs the port, or `None` if the route can be changed.
    /// A removal does not need a port that does not exist.
    fn blocking_error(&self, operation: &RouteOperation) -> Option<CloudError> {
        match (self, operation) {
            (Self::Done, _)
            | (Self::NoPort(_) | Self::OtherServer(_), RouteOperation::Remove(_)) => None,
            (Self::OtherServer(ip), RouteOperation::Add(..)) => Some(CloudError::transient(
                format!("the port with the address {ip} is another server's"),
            )),
            (Self::NoPort(ip), RouteOperation::Add(..)) => Some(CloudError::transient(format!(
                "no single port of the router's networks has the address {ip}"
            ))),
            (Self::Failed(error), RouteOperation::Remove(_)) if error.is_not_found() => None,
            (Self::Failed(error), _) => Some(error.clone().into()),
        }
    }
}

/// Syncs the address pairs of nodes' ports. Returns the errors with the index of their operation.
async fn sync_address_pairs(
    routes: &NeutronRoutes,
    op: &Op,
    operations: &BTreeMap<usize, RouteOperation>,
) -> Vec<(usize, CloudError)> {
    let mut by_next_hop: BTreeMap<IpAddr, Vec<(usize, RouteOperation)>> = BTreeMap::new();
    for (index, operation) in operations {
        let (RouteOperation::Add(route, _) | RouteOperation::Remove(route)) = operation;
        by_next_hop
            .entry(route.next)
            .or_default()
            .push((*index, operation.clone()));
    }
    if by_next_hop.is_empty() {
        return Vec::new();
    }
    let mut ports = match routes
        .unique_ports(op, &by_next_hop.keys().copied().collect())
        .await
    {
        Ok(ports) => ports,
        Err(error) => {
            let error = CloudError::from(error);
            return by_next_hop
                .into_values()
                .flatten()
                .map(|(index, _)| (index, error.clone()))
                .collect();
        }
    };
    let jobs: Vec<_> = by_next_hop
        .into_iter()
        .map(|(next, operations)| (next, operations, ports.remove(&next)))
        .collect();
    stream::iter(jobs)
        .map(|(next, operations, port)| sync_port(routes, op, next, operations, port))
        .buffer_unordered(MAX_CONCURRENT_PORTS)
        .concat()
        .await
}

/// Changes the port of one next hop once, for all its operations but those that mean another
/// server's port. Returns the errors with the index of their operation.
async fn sync_port(
    routes: &NeutronRoutes,
    op: &Op,
    next: IpAddr,
    operations: Vec<(usize, RouteOperation)>,
    port: Option<Port>,
) -> Vec<(usize, CloudError)> {
    let (operations, for_other_server): (Vec<_>, Vec<_>) = operations
        .into_iter()
        .partition(|(_, operation)| is_port_of(port.as_ref(), operation));
    let result = match port {
        None => PairResult::NoPort(next),
        Some(port) => {
            let networks = PortNetworks::for_operations(&operations);
            match routes
                .set_address_pairs(op, port, &networks.add, &networks.remove)
                .await
            {
                Ok(()) => PairResult::Done,
                Err(error) => PairResult::Failed(error),
            }
        }
    };
    let mut errors = blocking_errors(&result, operations);
    errors.extend(blocking_errors(&PairResult::OtherServer(next), for_other_server));
    errors
}

fn blocking_errors(
    result: &PairResult,
    operations: Vec<(usize, RouteOperation)>,
) -> Vec<(usize, CloudError)> {
    let mut errors = Vec::new();
    for (index, operation) in operations {
        if let Some(error) = result.blocking_error(&operation) {
            errors.push((index, error));
        }
    }
    errors
}

/// Returns true if a port may be the one that an operation means: it belongs to no other server.
/// The port may also belong to something between server and network, such as a trunk, whose
/// `device_owner` is of another kind.
fn is_port_of(port: Option<&Port>, operation: &RouteOperation) -> bool {
    match (port, operation) {
        (Some(port), RouteOperation::Add(_, Some(server))) => {
            !port.device_owner.starts_with("compute:") || *port.device_id == **server
        }
        _ => true,
    }
}

/// Networks that a port has to accept packets from, and those that it must not accept any more.
#[derive(Default)]
struct PortNetworks {
    add: BTreeSet<IpNet>,
    remove: BTreeSet<IpNet>,
}

impl PortNetworks {
    fn for_operations(operations: &[(usize, RouteOperation)]) -> Self {
        let mut networks = Self::default();
        for (_, operation) in operations {
            match operation {
                RouteOperation::Add(route, _) => networks.add.insert(route.destination),
                RouteOperation::Remove(route) => networks.remove.insert(route.destination),
            };
        }
        networks
    }
}

/// Adds and removes routes of the router, and removes routes that conflict with the new ones.
async fn update_router(
    routes: &NeutronRoutes,
    op: &Op,
    operations: &[RouteOperation],
) -> Result<(), OpenStackError> {
    let mut update = RouteUpdate::default();
    for operation in operations {
        match operation {
            RouteOperation::Add(route, _) => update.add.insert(*route),
            RouteOperation::Remove(route) => update.remove.insert(*route),
        };
    }
    if update.is_empty() {
        return Ok(());
    }
    // Without atomic changes each request replaces the whole list, so this process sends one after
    // the other.
    let _guard = if routes.extensions.atomic {
        None
    } else {
        Some(op.wait_shared(routes.router_lock.lock()).await)
    };
    let mut tries = 0;
    loop {
        let router = routes.router(op).await?;
        let update = update.clone().with_conflicts_removed(&router.routes);
        // The pairs are removed before the routes. Without its route, nothing shows which port had
        // the network.
        remove_address_pairs(routes, op, &update.to_remove(&router.routes), operations).await?;
        if routes.extensions.atomic {
            return update_atomically(routes, op, &update, &router.routes).await;
        }
        let Some(list) = update.full_list(&router.routes) else {
            return Ok(());
        };
        let path = ["routers", &*routes.router];
        let mut request =
            Request::new(Call::RouterUpdate, &path).with_detail("pod networks of nodes");
        if routes.extensions.if_match {
            request = request.if_revision(router.revision_number);
        }
        let body = RouterUpdate { routes: Some(list) };
        match routes.client.put::<IgnoredAny>(op, &request, &body).await {
            Err(error) if error.is_changed() && tries < MAX_ATTEMPTS => tries += 1,
            result => return result.map(drop),
        }
    }
}

/// Removes the networks that go to other nodes from the address pairs of the displaced next hops.
/// For routes whose removal was requested, this is already done.
async fn remove_address_pairs(
    routes: &NeutronRoutes,
    op: &Op,
    removed: &[Route],
    operations: &[RouteOperation],
) -> Result<(), OpenStackError> {
    let mut displaced: BTreeMap<IpAddr, BTreeSet<IpNet>> = BTreeMap::new();
    for route in removed.iter().filter_map(ExtraRoute::from_neutron) {
        if !is_removal_requested(operations, &route) {
            displaced
                .entry(route.next)
                .or_default()
                .insert(route.destination);
        }
    }
    if displaced.is_empty() || !routes.extensions.address_pairs {
        return Ok(());
    }
    let mut ports = routes
        .unique_ports(op, &displaced.keys().copied().collect())
        .await?;
    for (ip, networks) in displaced {
        let Some(port) = ports.remove(&ip) else {
            continue;
        };
        match routes
            .set_address_pairs(op, port, &BTreeSet::new(), &networks)
            .await
        {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn is_removal_requested(operations: &[RouteOperation], route: &ExtraRoute) -> bool {
    operations
        .iter()
        .any(|operation| matches!(operation, RouteOperation::Remove(removed) if removed == route))
}

/// Removes and adds routes with the requests that do not change other routes.
async fn update_atomically(
    routes: &NeutronRoutes,
    op: &Op,
    update: &RouteUpdate,
    current: &[Route],
) -> Result<(), OpenStackError> {
    let to_remove = update.to_remove(current);
    send_routes(routes, op, Call::RouterRemoveRoutes, "remove_extraroutes", to_remove).await?;
    let to_add = update.to_add(current);
    send_routes(routes, op, Call::RouterAddRoutes, "add_extraroutes", to_add).await
}

async fn send_routes(
    routes: &NeutronRoutes,
    op: &Op,
    call: Call,
    action: &str,
    list: Vec<Route>,
) -> Result<(), OpenStackError> {
    if list.is_empty() {
        return Ok(());
    }
    let path = ["routers", &*routes.router, action];
    let names: Vec<String> = list
        .iter()
        .map(|route| format!("{} via {}", route.destination, route.nexthop))
        .collect();
    let detail = names.join(", ");
    let request = Request::new(call, &path).with_detail(&detail);
    let body = ExtraRoutes { routes: list };
    routes.client.put::<IgnoredAny>(op, &request, &body).await?;
    Ok(())
}
