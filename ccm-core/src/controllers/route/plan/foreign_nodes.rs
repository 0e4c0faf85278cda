//! What belongs to foreign nodes, those of other cloud providers.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use ipnet::IpNet;

use super::network;
use crate::{k8s::NodeView, provider::Route};

/// Names and pod CIDRs of foreign nodes. Routes to these nodes, whatever their destination, and
/// routes to these CIDRs are unmanaged.
pub(super) struct ForeignNodes<'a> {
    names: HashSet<&'a str>,
    networks: BTreeSet<IpNet>,
    /// Destinations of routes to foreign nodes, whoever owns the destination.
    route_destinations: HashSet<IpNet>,
}

impl<'a> ForeignNodes<'a> {
    pub(super) fn new(nodes: &'a [Arc<NodeView>], routes: &[Route]) -> Self {
        let names: HashSet<&str> = nodes.iter().map(|node| &*node.name).collect();
        let networks = nodes
            .iter()
            .flat_map(|node| node.pod_cidrs.iter())
            .filter_map(|cidr| network(cidr))
            .collect();
        let is_theirs = |route: &&Route| {
            route
                .node
                .as_deref()
                .is_some_and(|node| names.contains(node))
        };
        let route_destinations = routes
            .iter()
            .filter(is_theirs)
            .map(|route| route.destination.trunc())
            .collect();
        Self { names, networks, route_destinations }
    }

    /// Tells whether a route with this destination leads to a foreign node.
    pub(super) fn has_route(&self, destination: &IpNet) -> bool {
        self.route_destinations.contains(destination)
    }

    /// Tells whether a route is unmanaged because of foreign nodes.
    pub(super) fn owns_route(&self, route: &Route, destination: &IpNet) -> bool {
        route
            .node
            .as_deref()
            .is_some_and(|node| self.names.contains(node))
            || self.overlaps(destination)
    }

    /// Tells whether the network overlaps a foreign CIDR. Logarithmic, because it is called for
    /// every route.
    pub(super) fn overlaps(&self, network: &IpNet) -> bool {
        if self.networks.is_empty() {
            return false;
        }
        // Of two networks that overlap, one contains the other. In the order, a network is followed
        // by those that it contains.
        let contained = self
            .networks
            .range(network..)
            .next()
            .is_some_and(|next| network.contains(next));
        contained
            || std::iter::successors(network.supernet(), IpNet::supernet)
                .any(|net| self.networks.contains(&net))
    }
}
