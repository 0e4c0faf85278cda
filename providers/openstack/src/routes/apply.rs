//! Applies changes of routes: address pairs of ports first, then one request for all routes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ccm_core::{
    k8s::IpFamily,
    provider::{CloudError, Op, RouteChange},
};
use futures::{StreamExt, stream};
use ipnet::IpNet;
use openstack_api::neutron::{self, ExtraRoutes, Router, RouterUpdate};

use super::{
    NeutronRoutes,
    plan::{ExtraRoute, RouteUpdate, next_hop},
};
use crate::{
    client::{Call, ErrorClass, OpenStackError, Request},
    provider_id::ProviderId,
};

/// Maximum number of ports changed at the same time.
const PORTS_AT_ONCE: usize = 4;
/// Maximum number of times that a router is read again because it was changed meanwhile.
const MAX_ATTEMPTS: usize = 3;

/// A requested change of one route.
#[derive(Clone, Debug)]
enum RouteOperation {
    /// Adds a route. With the ID of the node's server, where that is known.
    Add(ExtraRoute, Option<Box<str>>),
    /// Removes a route. The network is removed from the address pairs of the next hop's port, if
    /// that still exists.
    Remove(ExtraRoute),
}

/// Applies changes. Returns one result per change, in their order.
pub(super) async fn apply(
    routes: &NeutronRoutes,
    op: &Op,
    changes: &[RouteChange],
) -> Vec<Result<(), CloudError>> {
    let steps: Vec<Result<RouteOperation, CloudError>> = changes.iter().map(step).collect();
    let mut answers: Vec<Result<(), CloudError>> = steps
        .iter()
        .map(|step| step.as_ref().map(drop).map_err(Clone::clone))
        .collect();
    let mut going: BTreeMap<usize, RouteOperation> = steps
        .into_iter()
        .enumerate()
        .filter_map(|(place, step)| Some((place, step.ok()?)))
        .collect();
    if routes.extensions.address_pairs {
        for (place, error) in sync_address_pairs(routes, op, &going).await {
            going.remove(&place);
            answers[place] = Err(error);
        }
    }
    let together: Vec<RouteOperation> = going.values().cloned().collect();
    match change(routes, op, &together).await {
        Ok(()) => {}
        // One of them was rejected: sent alone, each shows whether it was that one.
        Err(error) if going.len() > 1 && is_about_one(&error) => {
            for (place, step) in going {
                answers[place] = change(routes, op, std::slice::from_ref(&step))
                    .await
                    .map_err(|error| routes.with_router_hint(error));
            }
        }
        Err(error) => {
            let error = routes.with_router_hint(error);
            for place in going.into_keys() {
                answers[place] = Err(error.clone());
            }
        }
    }
    answers
}

fn step(change: &RouteChange) -> Result<RouteOperation, CloudError> {
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
            let hop = ExtraRoute::of_handle(&route.name).ok_or_else(|| {
                CloudError::invalid_input(format!("{:?} is no handle of a route", route.name))
            })?;
            Ok(RouteOperation::Remove(hop))
        }
    }
}

fn is_about_one(error: &OpenStackError) -> bool {
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
    /// Returns why an operation has to wait for its port. A port that does not exist needs no
    /// removal.
    fn blocking_error(&self, step: &RouteOperation) -> Option<CloudError> {
        match (self, step) {
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
    going: &BTreeMap<usize, RouteOperation>,
) -> Vec<(usize, CloudError)> {
    // First, group the operations by next hop, and find its port.
    let mut by_ip: BTreeMap<IpAddr, Vec<(usize, RouteOperation)>> = BTreeMap::new();
    for (place, step) in going {
        let (RouteOperation::Add(hop, _) | RouteOperation::Remove(hop)) = step;
        by_ip
            .entry(hop.next)
            .or_default()
            .push((*place, step.clone()));
    }
    if by_ip.is_empty() {
        return Vec::new();
    }
    let mut ports = match routes
        .unique_ports(op, &by_ip.keys().copied().collect())
        .await
    {
        Ok(ports) => ports,
        Err(error) => {
            let error = CloudError::from(error);
            return by_ip
                .into_values()
                .flatten()
                .map(|(place, _)| (place, error.clone()))
                .collect();
        }
    };
    let jobs: Vec<_> = by_ip
        .into_iter()
        .map(|(ip, steps)| (ip, steps, ports.remove(&ip)))
        .collect();
    // Then change each port once, without the operations that mean another server's port.
    let one = |(ip, steps, port): (IpAddr, Vec<(usize, RouteOperation)>, Option<neutron::Port>)| async move {
        let (steps, lost): (Vec<_>, Vec<_>) = steps
            .into_iter()
            .partition(|(_, step)| is_port_of(port.as_ref(), step));
        let paired = match port {
            None => PairResult::NoPort(ip),
            Some(port) => {
                let (add, remove) = networks(&steps);
                routes
                    .set_address_pairs(op, port, &add, &remove)
                    .await
                    .map_or_else(PairResult::Failed, |()| PairResult::Done)
            }
        };
        let lost = lost.into_iter().filter_map(|(place, step)| {
            Some((place, PairResult::OtherServer(ip).blocking_error(&step)?))
        });
        steps
            .into_iter()
            .filter_map(|(place, step)| Some((place, paired.blocking_error(&step)?)))
            .chain(lost)
            .collect::<Vec<_>>()
    };
    stream::iter(jobs)
        .map(one)
        .buffer_unordered(PORTS_AT_ONCE)
        .concat()
        .await
}

/// Returns whether a port may be the one that an operation means: it belongs to no other server.
/// The port may also belong to something between server and network, such as a trunk, whose
/// `device_owner` is of another kind.
fn is_port_of(port: Option<&neutron::Port>, step: &RouteOperation) -> bool {
    match (port, step) {
        (Some(port), RouteOperation::Add(_, Some(server))) => {
            !port.device_owner.starts_with("compute:") || *port.device_id == **server
        }
        _ => true,
    }
}

/// Returns the networks that a port has to accept packets from, and those that it must not accept
/// any more.
fn networks(steps: &[(usize, RouteOperation)]) -> (BTreeSet<IpNet>, BTreeSet<IpNet>) {
    let mut add = BTreeSet::new();
    let mut remove = BTreeSet::new();
    for (_, step) in steps {
        match step {
            RouteOperation::Add(hop, _) => add.insert(hop.destination),
            RouteOperation::Remove(hop) => remove.insert(hop.destination),
        };
    }
    (add, remove)
}

/// Changes the router's routes.
async fn change(
    routes: &NeutronRoutes,
    op: &Op,
    steps: &[RouteOperation],
) -> Result<(), OpenStackError> {
    let mut change = RouteUpdate::default();
    for step in steps {
        match step {
            RouteOperation::Add(hop, _) => drop(change.add.insert(*hop)),
            RouteOperation::Remove(hop) => drop(change.remove.insert(*hop)),
        }
    }
    if change.is_empty() {
        return Ok(());
    }
    // Without atomic changes each request replaces the whole list: those of this process run one
    // after the other.
    let _turn = if routes.extensions.atomic {
        None
    } else {
        Some(op.wait_shared(routes.router_lock.lock()).await)
    };
    let mut tries = 0;
    loop {
        let router = routes.router(op).await?;
        let change = change.clone().with_conflicts_removed(&router.routes);
        // Before the routes: once they are deleted nothing shows which port had the network.
        remove_address_pairs(routes, op, &change.to_remove(&router.routes), steps).await?;
        if routes.extensions.atomic {
            return one_by_one(routes, op, &change, &router.routes).await;
        }
        let Some(list) = change.full_list(&router.routes) else {
            return Ok(());
        };
        let path = ["routers", &*routes.router];
        let mut request =
            Request::new(Call::RouterUpdate, &path).with_detail("pod networks of nodes");
        if routes.extensions.if_match {
            request = request.if_revision(router.standard.revision_number);
        }
        let body = RouterUpdate { routes: Some(Some(list)), ..RouterUpdate::default() };
        match routes.client.put::<Router>(op, &request, &body).await {
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
    extra: &[neutron::Route],
    steps: &[RouteOperation],
) -> Result<(), OpenStackError> {
    let asked = |hop: &ExtraRoute| {
        steps
            .iter()
            .any(|step| matches!(step, RouteOperation::Remove(removed) if removed == hop))
    };
    let mut displaced: BTreeMap<IpAddr, BTreeSet<IpNet>> = BTreeMap::new();
    for hop in extra
        .iter()
        .filter_map(ExtraRoute::of)
        .filter(|hop| !asked(hop))
    {
        displaced
            .entry(hop.next)
            .or_default()
            .insert(hop.destination);
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

/// Removes and adds routes with the requests that do not change other routes.
async fn one_by_one(
    routes: &NeutronRoutes,
    op: &Op,
    change: &RouteUpdate,
    now: &[neutron::Route],
) -> Result<(), OpenStackError> {
    let requests = [
        (Call::RouterRemoveRoutes, "remove_extraroutes", change.to_remove(now)),
        (Call::RouterAddRoutes, "add_extraroutes", change.to_add(now)),
    ];
    for (call, action, list) in requests.into_iter().filter(|(_, _, list)| !list.is_empty()) {
        let path = ["routers", &*routes.router, action];
        let names: Vec<String> = list
            .iter()
            .map(|route| format!("{} via {}", route.destination, route.nexthop))
            .collect();
        let names = names.join(", ");
        let request = Request::new(call, &path).with_detail(&names);
        let body = ExtraRoutes { routes: list, ..ExtraRoutes::default() };
        routes
            .client
            .put::<ExtraRoutes>(op, &request, &body)
            .await?;
    }
    Ok(())
}
