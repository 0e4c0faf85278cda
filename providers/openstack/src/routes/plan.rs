//! Finds the router's routes that belong to the cluster, and plans the updates that change them to
//! the desired state. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ccm_core::{
    k8s::{AddressType, IpFamily, NodeView},
    provider::Route,
};
use ipnet::IpNet;
use openstack_api::neutron;

use crate::node_address::first_address;

/// A route of a router (Neutron's extra route), in canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtraRoute {
    /// Destination, canonical.
    pub destination: IpNet,
    /// Next hop.
    pub next: IpAddr,
}

impl ExtraRoute {
    /// Returns the handle that the framework keeps. It identifies the route even after its node was
    /// deleted.
    pub fn handle(&self) -> String {
        format!("{} via {}", self.destination, self.next)
    }

    /// Parses Neutron's route. Returns `None` if a network or address is invalid.
    pub fn from_neutron(route: &neutron::Route) -> Option<Self> {
        let destination: IpNet = route.destination.parse().ok()?;
        Some(Self {
            destination: destination.trunc(),
            next: route.nexthop.parse().ok()?,
        })
    }

    /// Converts the route to Neutron's form.
    pub fn to_neutron(&self) -> neutron::Route {
        neutron::Route {
            destination: self.destination.to_string(),
            nexthop: self.next.to_string(),
        }
    }

    /// Parses a handle.
    pub fn parse_handle(text: &str) -> Option<Self> {
        let (destination, next) = text.split_once(" via ")?;
        Some(Self {
            destination: destination.parse().ok()?,
            next: next.parse().ok()?,
        })
    }
}

/// Returns the next hop for routes to a node: its first internal address of the family.
pub fn next_hop(node: &NodeView, family: IpFamily) -> Option<IpAddr> {
    first_address(node, AddressType::InternalIp, Some(family))
}

/// Kind of a next hop that no node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnownedAddress {
    /// No port of the router's networks has the address, or a node had it since this process
    /// started. The route is an orphan.
    Leftover,
    /// A port of something else has the address. The route does not belong to the cluster.
    Foreign,
}

/// Maps the addresses of all nodes to their names. An address of two nodes belongs to neither, and
/// is mapped to `None`.
pub fn map_owners(nodes: &[Arc<NodeView>]) -> BTreeMap<IpAddr, Option<Arc<str>>> {
    let mut owners: BTreeMap<IpAddr, Option<Arc<str>>> = BTreeMap::new();
    for node in nodes {
        let ips: BTreeSet<IpAddr> = node
            .addresses
            .iter()
            .filter_map(|address| address.address.parse().ok())
            .collect();
        for ip in ips {
            owners
                .entry(ip)
                .and_modify(|owner| *owner = None)
                .or_insert_with(|| Some(node.name.clone()));
        }
    }
    owners
}

/// Finds next hops that no node has.
pub fn find_unowned_addresses(
    routes: &[neutron::Route],
    owners: &BTreeMap<IpAddr, Option<Arc<str>>>,
) -> BTreeSet<IpAddr> {
    routes
        .iter()
        .filter_map(ExtraRoute::from_neutron)
        .map(|hop| hop.next)
        .filter(|next| !owners.contains_key(next))
        .collect()
}

/// Lists the router's routes that belong to the cluster: those that lead to nodes, and orphans of
/// deleted nodes. Leaves out other routes, because the framework would delete them.
pub fn list_cluster_routes(
    routes: &[neutron::Route],
    owners: &BTreeMap<IpAddr, Option<Arc<str>>>,
    unowned: &BTreeMap<IpAddr, UnownedAddress>,
) -> Vec<Route> {
    let mut listed = Vec::new();
    for route in routes.iter().filter_map(ExtraRoute::from_neutron) {
        match owners.get(&route.next) {
            Some(Some(node)) => listed.push(to_route(&route, Some(node.clone()))),
            // Two nodes have the address.
            Some(None) => {}
            None => {
                if unowned.get(&route.next) == Some(&UnownedAddress::Leftover) {
                    listed.push(to_route(&route, None));
                }
            }
        }
    }
    listed
}

/// Returns a route as the framework knows it; without a node it is an orphan.
fn to_route(route: &ExtraRoute, node: Option<Arc<str>>) -> Route {
    Route {
        name: route.handle().into(),
        blackhole: node.is_none(),
        node,
        node_addresses: None,
        destination: route.destination,
    }
}

/// A change of a router's routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteUpdate {
    /// Desired routes.
    pub add: BTreeSet<ExtraRoute>,
    /// Routes to remove; one that is also desired stays.
    pub remove: BTreeSet<ExtraRoute>,
}

impl RouteUpdate {
    /// Returns true if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }

    /// Also removes conflicting routes, which lead to a desired destination by another next hop.
    /// The destination is a node's pod network, so whoever has that next hop no longer owns it.
    #[must_use]
    pub fn with_conflicts_removed(mut self, current: &[neutron::Route]) -> Self {
        let destinations: BTreeSet<IpNet> =
            self.add.iter().map(|route| route.destination).collect();
        for route in current.iter().filter_map(ExtraRoute::from_neutron) {
            if destinations.contains(&route.destination) && !self.add.contains(&route) {
                self.remove.insert(route);
            }
        }
        self
    }

    /// Returns what has to be added to `current`.
    pub fn to_add(&self, current: &[neutron::Route]) -> Vec<neutron::Route> {
        let existing: BTreeSet<ExtraRoute> = current
            .iter()
            .filter_map(ExtraRoute::from_neutron)
            .collect();
        self.add
            .difference(&existing)
            .map(ExtraRoute::to_neutron)
            .collect()
    }

    /// Returns what has to be removed from `current`, as it is written there.
    pub fn to_remove(&self, current: &[neutron::Route]) -> Vec<neutron::Route> {
        current
            .iter()
            .filter(|route| {
                ExtraRoute::from_neutron(route).is_some_and(|route| self.removes(&route))
            })
            .cloned()
            .collect()
    }

    fn removes(&self, route: &ExtraRoute) -> bool {
        self.remove.contains(route) && !self.add.contains(route)
    }

    /// Returns the complete list for a router without atomic changes; `None` when the router has it
    /// already. Routes that are neither added nor removed stay unchanged, in their place.
    pub fn full_list(&self, current: &[neutron::Route]) -> Option<Vec<neutron::Route>> {
        let missing = self.to_add(current);
        let surplus = self.to_remove(current);
        if missing.is_empty() && surplus.is_empty() {
            return None;
        }
        let mut routes = current.to_vec();
        routes.retain(|route| !surplus.contains(route));
        routes.extend(missing);
        Some(routes)
    }
}

/// Returns a port's address pairs with a network added; `None` when it is there already.
pub fn with_pair(
    pairs: &[neutron::AddressPair],
    network: IpNet,
) -> Option<Vec<neutron::AddressPair>> {
    if pairs.iter().any(|pair| is_for(pair, network)) {
        return None;
    }
    let mut pairs = pairs.to_vec();
    pairs.push(neutron::AddressPair { ip_address: network.to_string(), mac_address: None });
    Some(pairs)
}

/// Returns a port's address pairs with a network removed; `None` when it is not there.
pub fn without_pair(
    pairs: &[neutron::AddressPair],
    network: IpNet,
) -> Option<Vec<neutron::AddressPair>> {
    let mut remaining = pairs.to_vec();
    remaining.retain(|pair| !is_for(pair, network));
    if remaining.len() == pairs.len() {
        return None;
    }
    Some(remaining)
}

fn is_for(pair: &neutron::AddressPair, network: IpNet) -> bool {
    pair.ip_address
        .parse::<IpNet>()
        .is_ok_and(|own| own.trunc() == network)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
