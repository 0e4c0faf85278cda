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

/// A route of a router (Neutron's extra route).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// Destination, canonical.
    pub destination: IpNet,
    /// Where packets go.
    pub next: IpAddr,
}

impl Hop {
    /// Returns the handle that the framework keeps: what finds this very route again when its node is gone.
    pub fn handle(&self) -> String {
        format!("{} via {}", self.destination, self.next)
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
pub enum Stray {
    /// No port of the router's networks has it, or it was a node's while this process runs: the route is left over.
    Left,
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

/// Lists the routes of the cluster among those of the router: the ones that lead to nodes, and what is left over of nodes
/// that are gone. Other people's are left out, so that nobody deletes them.
pub fn listed(
    routes: &[Hop],
    owners: &BTreeMap<IpAddr, Option<Arc<str>>>,
    strays: &BTreeMap<IpAddr, Stray>,
) -> Vec<Route> {
    let route = |hop: &Hop, node: Option<Arc<str>>| Route {
        name: hop.handle().into(),
        blackhole: node.is_none(),
        node,
        node_addresses: None,
        destination: hop.destination,
    };
    let of_cluster = |hop: &Hop| match owners.get(&hop.next) {
        Some(Some(node)) => Some(route(hop, Some(node.clone()))),
        Some(None) => None,
        None => (strays.get(&hop.next) == Some(&Stray::Left)).then(|| route(hop, None)),
    };
    routes.iter().filter_map(of_cluster).collect()
}

/// Returns the whole list that a router without atomic changes gets; `None` when it is there already. What is neither added
/// nor removed stays as it is, in its place.
pub fn replaced(now: &[Hop], add: &BTreeSet<Hop>, remove: &BTreeSet<Hop>) -> Option<Vec<Hop>> {
    let mut routes: Vec<Hop> = now.iter().copied().filter(|hop| add.contains(hop) || !remove.contains(hop)).collect();
    let missing: Vec<Hop> = add.iter().copied().filter(|hop| !routes.contains(hop)).collect();
    routes.extend(missing);
    (routes != now).then_some(routes)
}

/// Finds routes to the same destination that lead elsewhere than wanted. The destination is a node's pod network, so
/// whoever else is named there has lost it.
pub fn displaced(now: &[Hop], add: &BTreeSet<Hop>) -> BTreeSet<Hop> {
    let wanted: BTreeSet<IpNet> = add.iter().map(|hop| hop.destination).collect();
    now.iter().copied().filter(|hop| wanted.contains(&hop.destination) && !add.contains(hop)).collect()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
