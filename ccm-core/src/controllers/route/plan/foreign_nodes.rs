//! The routes and pod CIDRs of foreign nodes, which are those of other cloud providers.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use ipnet::IpNet;

use super::network;
use crate::{k8s::NodeView, provider::Route};

/// The foreign nodes. Routes that lead to one of them, and routes to one of their pod CIDRs, are
/// unmanaged.
pub(super) struct ForeignNodes<'a> {
    names: HashSet<&'a str>,
    /// Their pod CIDRs.
    networks: BTreeSet<IpNet>,
    /// The destinations of all routes that lead to them.
    route_destinations: HashSet<IpNet>,
}

impl<'a> ForeignNodes<'a> {
    pub(super) fn new(nodes: &'a [Arc<NodeView>], routes: &[Route]) -> Self {
        let mut foreign = Self {
            names: nodes.iter().map(|node| &*node.name).collect(),
            networks: nodes
                .iter()
                .flat_map(|node| node.pod_cidrs.iter())
                .filter_map(|cidr| network(cidr))
                .collect(),
            route_destinations: HashSet::new(),
        };
        for route in routes {
            if foreign.is_target_of(route) {
                foreign.route_destinations.insert(route.destination.trunc());
            }
        }
        foreign
    }

    /// Returns true if a route leads to a foreign node.
    fn is_target_of(&self, route: &Route) -> bool {
        match &route.node {
            Some(node) => self.names.contains(&**node),
            None => false,
        }
    }

    /// Returns true if a route with this destination leads to a foreign node.
    pub(super) fn has_route(&self, destination: &IpNet) -> bool {
        self.route_destinations.contains(destination)
    }

    /// Returns true if a route is unmanaged because of foreign nodes.
    pub(super) fn owns_route(&self, route: &Route, destination: &IpNet) -> bool {
        self.is_target_of(route) || self.overlaps(destination)
    }

    /// Returns true if the network overlaps with a pod CIDR of a foreign node. This takes
    /// logarithmic time, because it is called for every route.
    pub(super) fn overlaps(&self, network: &IpNet) -> bool {
        if self.networks.is_empty() {
            return false;
        }
        // Of two overlapping networks, one contains the other. In the order of the set, a network
        // comes right before those that it contains.
        if let Some(next) = self.networks.range(network..).next()
            && network.contains(next)
        {
            return true;
        }
        std::iter::successors(network.supernet(), IpNet::supernet)
            .any(|supernet| self.networks.contains(&supernet))
    }
}
