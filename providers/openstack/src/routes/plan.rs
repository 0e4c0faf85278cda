//! What a router's routes mean for the cluster, and which requests bring them to the desired state.

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

/// A route of a router (Neutron's extra route), in canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtraRoute {
    /// Destination, canonical.
    pub destination: IpNet,
    /// Next hop.
    pub next: IpAddr,
}

impl ExtraRoute {
    /// Returns the handle that the framework keeps. It finds this route again when its node is
    /// deleted.
    pub fn handle(&self) -> String {
        format!("{} via {}", self.destination, self.next)
    }

    /// Parses Neutron's route; `None` if it has an invalid network or address.
    pub fn of(route: &neutron::Route) -> Option<Self> {
        let destination: IpNet = route.destination.parse().ok()?;
        Some(Self {
            destination: destination.trunc(),
            next: route.nexthop.parse().ok()?,
        })
    }

    /// Returns it in Neutron's form.
    pub fn to_neutron(&self) -> neutron::Route {
        neutron::Route {
            destination: self.destination.to_string(),
            nexthop: self.next.to_string(),
        }
    }

    /// Parses a handle.
    pub fn of_handle(text: &str) -> Option<Self> {
        let (destination, next) = text.split_once(" via ")?;
        Some(Self {
            destination: destination.parse().ok()?,
            next: next.parse().ok()?,
        })
    }
}

/// Returns the next hop for routes to a node: its first internal address of the family.
pub fn next_hop(node: &NodeView, family: IpFamily) -> Option<IpAddr> {
    let internal = node
        .addresses
        .iter()
        .filter(|address| address.kind == AddressType::InternalIp);
    internal
        .filter_map(|address| address.address.parse().ok())
        .find(|ip: &IpAddr| of_family(*ip, family))
}

fn of_family(ip: IpAddr, family: IpFamily) -> bool {
    match family {
        IpFamily::V4 => ip.is_ipv4(),
        IpFamily::V6 => ip.is_ipv6(),
    }
}

/// What is known about a next hop that no node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnownedAddress {
    /// No port of the router's networks has it, or a node had it while this process runs: the route
    /// is an orphan.
    Leftover,
    /// Something else has it. The route does not belong to the cluster.
    Foreign,
}

/// Returns the node's name for each address of a node. An address of two nodes belongs to neither.
pub fn owners(nodes: &[Arc<NodeView>]) -> BTreeMap<IpAddr, Option<Arc<str>>> {
    let mut owners: BTreeMap<IpAddr, Option<Arc<str>>> = BTreeMap::new();
    for node in nodes {
        let ips: BTreeSet<IpAddr> = node
            .addresses
            .iter()
            .filter_map(|a| a.address.parse().ok())
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
pub fn unowned_addresses(
    routes: &[neutron::Route],
    owners: &BTreeMap<IpAddr, Option<Arc<str>>>,
) -> BTreeSet<IpAddr> {
    routes
        .iter()
        .filter_map(ExtraRoute::of)
        .map(|hop| hop.next)
        .filter(|next| !owners.contains_key(next))
        .collect()
}

/// Lists the router's routes that belong to the cluster: those that lead to nodes, and orphans of
/// deleted nodes. Routes of others are left out, so that nobody deletes them.
pub fn listed(
    routes: &[neutron::Route],
    owners: &BTreeMap<IpAddr, Option<Arc<str>>>,
    unowned: &BTreeMap<IpAddr, UnownedAddress>,
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
        None => {
            (unowned.get(&hop.next) == Some(&UnownedAddress::Leftover)).then(|| route(hop, None))
        }
    };
    routes
        .iter()
        .filter_map(ExtraRoute::of)
        .filter_map(|hop| of_cluster(&hop))
        .collect()
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
    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.add.is_empty() && self.remove.is_empty()
    }

    /// Also removes conflicting routes, which lead to a desired destination by another next hop.
    /// The destination is a node's pod network, so whoever has that next hop no longer owns it.
    #[must_use]
    pub fn with_conflicts_removed(mut self, now: &[neutron::Route]) -> Self {
        let wanted: BTreeSet<IpNet> = self.add.iter().map(|hop| hop.destination).collect();
        let elsewhere =
            |hop: &ExtraRoute| wanted.contains(&hop.destination) && !self.add.contains(hop);
        self.remove
            .extend(now.iter().filter_map(ExtraRoute::of).filter(elsewhere));
        self
    }

    /// Returns what has to be added to `now`.
    pub fn to_add(&self, now: &[neutron::Route]) -> Vec<neutron::Route> {
        let there: BTreeSet<ExtraRoute> = now.iter().filter_map(ExtraRoute::of).collect();
        self.add
            .difference(&there)
            .map(ExtraRoute::to_neutron)
            .collect()
    }

    /// Returns what has to be removed from `now`, as it is written there.
    pub fn to_remove(&self, now: &[neutron::Route]) -> Vec<neutron::Route> {
        let goes = |hop: &ExtraRoute| self.remove.contains(hop) && !self.add.contains(hop);
        now.iter()
            .filter(|route| ExtraRoute::of(route).is_some_and(|hop| goes(&hop)))
            .cloned()
            .collect()
    }

    /// Returns the complete list for a router without atomic changes; `None` when the router has it
    /// already. Routes that are neither added nor removed stay unchanged, in their place.
    pub fn full_list(&self, now: &[neutron::Route]) -> Option<Vec<neutron::Route>> {
        let missing = self.to_add(now);
        let extra = self.to_remove(now);
        if missing.is_empty() && extra.is_empty() {
            return None;
        }
        let kept = now.iter().filter(|route| !extra.contains(route)).cloned();
        Some(kept.chain(missing).collect())
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
    let more = neutron::AddressPair { ip_address: network.to_string(), mac_address: None };
    Some(pairs.iter().cloned().chain([more]).collect())
}

/// Returns a port's address pairs with a network removed; `None` when it is not there.
pub fn without_pair(
    pairs: &[neutron::AddressPair],
    network: IpNet,
) -> Option<Vec<neutron::AddressPair>> {
    let left: Vec<_> = pairs
        .iter()
        .filter(|pair| !is_for(pair, network))
        .cloned()
        .collect();
    (left.len() < pairs.len()).then_some(left)
}

fn is_for(pair: &neutron::AddressPair, network: IpNet) -> bool {
    pair.ip_address
        .parse::<IpNet>()
        .is_ok_and(|own| own.trunc() == network)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
