//! What a router's routes mean for the cluster, and which requests bring them in line.

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

/// A route of a router (Neutron's extra route), whichever way it is written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtraRoute {
    /// Destination, canonical.
    pub destination: IpNet,
    /// Where packets go.
    pub next: IpAddr,
}

impl ExtraRoute {
    /// Returns the handle that the framework keeps: what finds this very route again when its node is gone.
    pub fn handle(&self) -> String {
        format!("{} via {}", self.destination, self.next)
    }

    /// Reads a route as Neutron has it; `None` for what is no network or address.
    pub fn of(route: &neutron::Route) -> Option<Self> {
        let destination: IpNet = route.destination.parse().ok()?;
        Some(Self { destination: destination.trunc(), next: route.nexthop.parse().ok()? })
    }

    /// Writes it.
    pub fn to_neutron(&self) -> neutron::Route {
        neutron::Route { destination: self.destination.to_string(), nexthop: self.next.to_string() }
    }

    /// Reads a handle.
    pub fn of_handle(text: &str) -> Option<Self> {
        let (destination, next) = text.split_once(" via ")?;
        Some(Self { destination: destination.parse().ok()?, next: next.parse().ok()? })
    }
}

/// Returns the address of a node that routes of this family lead to: its first internal one.
pub fn next_hop(node: &NodeView, family: IpFamily) -> Option<IpAddr> {
    let internal = node.addresses.iter().filter(|address| address.kind == AddressType::InternalIp);
    internal.filter_map(|address| address.address.parse().ok()).find(|ip: &IpAddr| of_family(*ip, family))
}

fn of_family(ip: IpAddr, family: IpFamily) -> bool {
    match family {
        IpFamily::V4 => ip.is_ipv4(),
        IpFamily::V6 => ip.is_ipv6(),
    }
}

/// What is known about an address that routes lead to and no node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnownedAddress {
    /// No port of the router's networks has it, or it was a node's while this process runs: the route is left over.
    Leftover,
    /// Something else has it. The route is not the cluster's.
    Foreign,
}

/// Returns, for each address of a node, the node's name. An address that two nodes claim is neither's.
pub fn owners(nodes: &[Arc<NodeView>]) -> BTreeMap<IpAddr, Option<Arc<str>>> {
    let mut owners: BTreeMap<IpAddr, Option<Arc<str>>> = BTreeMap::new();
    for node in nodes {
        let ips: BTreeSet<IpAddr> = node.addresses.iter().filter_map(|a| a.address.parse().ok()).collect();
        for ip in ips {
            owners.entry(ip).and_modify(|owner| *owner = None).or_insert_with(|| Some(node.name.clone()));
        }
    }
    owners
}

/// Finds the addresses that routes lead to and no node has.
pub fn unowned_addresses(routes: &[neutron::Route], owners: &BTreeMap<IpAddr, Option<Arc<str>>>) -> BTreeSet<IpAddr> {
    routes.iter().filter_map(ExtraRoute::of).map(|hop| hop.next).filter(|next| !owners.contains_key(next)).collect()
}

/// Lists the routes of the cluster among those of the router: the ones that lead to nodes, and what is left over of nodes
/// that are gone. Other people's are left out, so that nobody deletes them.
pub fn listed(
    routes: &[neutron::Route],
    owners: &BTreeMap<IpAddr, Option<Arc<str>>>,
    strays: &BTreeMap<IpAddr, UnownedAddress>,
) -> Vec<Route> {
    let route = |hop: &ExtraRoute, node: Option<Arc<str>>| Route {
        name: hop.handle().into(),
        blackhole: node.is_none(),
        node,
        node_addresses: None,
        destination: hop.destination,
    };
    let of_cluster = |hop: &ExtraRoute| match owners.get(&hop.next) {
        Some(Some(node)) => Some(route(hop, Some(node.clone()))),
        Some(None) => None,
        None => (strays.get(&hop.next) == Some(&UnownedAddress::Leftover)).then(|| route(hop, None)),
    };
    routes.iter().filter_map(ExtraRoute::of).filter_map(|hop| of_cluster(&hop)).collect()
}

/// A change of a router's routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteUpdate {
    /// Routes to have.
    pub add: BTreeSet<ExtraRoute>,
    /// Routes not to have; one that is to be had as well stays.
    pub remove: BTreeSet<ExtraRoute>,
}

impl RouteUpdate {
    /// Tells whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }

    /// Adds what is in the way: routes to a wanted destination that lead elsewhere. The destination is a node's pod network, so
    /// whoever is named there has lost it.
    #[must_use]
    pub fn with_conflicts_removed(mut self, now: &[neutron::Route]) -> Self {
        let wanted: BTreeSet<IpNet> = self.add.iter().map(|hop| hop.destination).collect();
        let elsewhere = |hop: &ExtraRoute| wanted.contains(&hop.destination) && !self.add.contains(hop);
        self.remove.extend(now.iter().filter_map(ExtraRoute::of).filter(elsewhere));
        self
    }

    /// Returns what has to be added to `now`.
    pub fn to_add(&self, now: &[neutron::Route]) -> Vec<neutron::Route> {
        let there: BTreeSet<ExtraRoute> = now.iter().filter_map(ExtraRoute::of).collect();
        self.add.difference(&there).map(ExtraRoute::to_neutron).collect()
    }

    /// Returns what has to be taken out of `now`, as it is written there.
    pub fn to_remove(&self, now: &[neutron::Route]) -> Vec<neutron::Route> {
        let goes = |hop: &ExtraRoute| self.remove.contains(hop) && !self.add.contains(hop);
        now.iter().filter(|route| ExtraRoute::of(route).is_some_and(|hop| goes(&hop))).cloned().collect()
    }

    /// Returns the whole list that a router without atomic changes gets; `None` when it is there already. What is neither
    /// added nor removed stays as it is, in its place.
    pub fn full_list(&self, now: &[neutron::Route]) -> Option<Vec<neutron::Route>> {
        let (missing, extra) = (self.to_add(now), self.to_remove(now));
        if missing.is_empty() && extra.is_empty() {
            return None;
        }
        let kept = now.iter().filter(|route| !extra.contains(route)).cloned();
        Some(kept.chain(missing).collect())
    }
}

/// Returns a port's address pairs with a network more; `None` when it is there.
pub fn with_pair(pairs: &[neutron::AddressPair], network: IpNet) -> Option<Vec<neutron::AddressPair>> {
    if pairs.iter().any(|pair| is_for(pair, network)) {
        return None;
    }
    let more = neutron::AddressPair { ip_address: network.to_string(), mac_address: None };
    Some(pairs.iter().cloned().chain([more]).collect())
}

/// Returns a port's address pairs without a network; `None` when it is not there.
pub fn without_pair(pairs: &[neutron::AddressPair], network: IpNet) -> Option<Vec<neutron::AddressPair>> {
    let left: Vec<_> = pairs.iter().filter(|pair| !is_for(pair, network)).cloned().collect();
    (left.len() < pairs.len()).then_some(left)
}

fn is_for(pair: &neutron::AddressPair, network: IpNet) -> bool {
    pair.ip_address.parse::<IpNet>().is_ok_and(|own| own.trunc() == network)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
