//! What belongs to nodes of other clouds.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use ipnet::IpNet;

use super::network;
use crate::{k8s::NodeView, provider::Route};

/// Names and pod networks of the nodes of other clouds. Their routes, wherever they lead, are left alone, and so are
/// routes to their networks.
pub(super) struct ForeignNodes<'a> {
    names: HashSet<&'a str>,
    networks: BTreeSet<IpNet>,
    /// Destinations of routes to those nodes, whosever network that is.
    route_destinations: HashSet<IpNet>,
}

impl<'a> ForeignNodes<'a> {
    pub(super) fn new(nodes: &'a [Arc<NodeView>], routes: &[Route]) -> Self {
        let names: HashSet<&str> = nodes.iter().map(|node| &*node.name).collect();
        let networks = nodes.iter().flat_map(|node| node.pod_cidrs.iter()).filter_map(|cidr| network(cidr)).collect();
        let is_theirs = |route: &&Route| route.node.as_deref().is_some_and(|node| names.contains(node));
        let route_destinations = routes.iter().filter(is_theirs).map(|route| route.destination.trunc()).collect();
        Self { names, networks, route_destinations }
    }

    /// Tells whether there is a route to one of those nodes with this destination.
    pub(super) fn has_route(&self, destination: &IpNet) -> bool {
        self.route_destinations.contains(destination)
    }

    /// Tells whether a route is not ours to touch.
    pub(super) fn owns_route(&self, route: &Route, destination: &IpNet) -> bool {
        route.node.as_deref().is_some_and(|node| self.names.contains(node)) || self.overlaps(destination)
    }

    /// Tells whether the network has addresses in common with one of theirs. Logarithmic: this is asked for every route.
    pub(super) fn overlaps(&self, network: &IpNet) -> bool {
        if self.networks.is_empty() {
            return false;
        }
        // Of two networks that overlap one contains the other. What it contains follows it in the order.
        let contained = self.networks.range(network..).next().is_some_and(|next| network.contains(next));
        contained || std::iter::successors(network.supernet(), IpNet::supernet).any(|net| self.networks.contains(&net))
    }
}
