//! The cloud's route table.

use std::collections::BTreeMap;

use ccm_core::provider::{CloudError, ErrorKind};
use ipnet::IpNet;

use super::{Address, FieldError, OwnedRoute, Route, RouteBody, instances::InstanceTable};

/// The cloud's route table.
#[derive(Debug, Default)]
pub(super) struct RouteTable(BTreeMap<String, StoredRoute>);

#[derive(Clone, Debug)]
struct StoredRoute {
    /// Cluster that created it; `None` for a route created through the admin API.
    cluster: Option<String>,
    route: Route,
    /// Provider ID of the target instance; `None` for a route that was put through the admin API.
    /// Such a route is returned as it was put.
    target: Option<String>,
}

impl StoredRoute {
    fn is_visible_to(&self, cluster: &str) -> bool {
        self.cluster.as_deref().is_none_or(|owner| owner == cluster)
    }

    /// Returns the route. It is a black hole if its instance does not carry traffic any more.
    fn show(&self, instances: &InstanceTable) -> Route {
        let mut route = self.route.clone();
        if let Some(target) = &self.target
            && !instances.carries_traffic(&route.node, target)
        {
            route.blackhole = true;
        }
        route
    }
}

/// A route to create.
pub(super) struct NewRoute<'a> {
    pub(super) cluster: &'a str,
    pub(super) node: &'a str,
    /// Provider ID of the node's instance.
    pub(super) target: String,
    pub(super) destination: IpNet,
    pub(super) node_addresses: Option<Vec<Address>>,
}

impl RouteTable {
    pub(super) fn list(&self, instances: &InstanceTable) -> Vec<Route> {
        self.0.values().map(|entry| entry.show(instances)).collect()
    }

    /// Lists the routes that are visible to a cluster: its own, and those without an owner.
    pub(super) fn list_for(&self, cluster: &str, instances: &InstanceTable) -> Vec<OwnedRoute> {
        let mut routes = Vec::new();
        for entry in self.0.values() {
            if entry.is_visible_to(cluster) {
                let cluster = entry.cluster.clone();
                routes.push(OwnedRoute { cluster, route: entry.show(instances) });
            }
        }
        routes
    }

    pub(super) fn put(&mut self, name: &str, body: RouteBody) -> Result<Route, FieldError> {
        if body.name.as_deref().is_some_and(|given| given != name) {
            return Err(FieldError::new("name", format!("is not {name:?}, the name in the path")));
        }
        let node = body
            .node
            .filter(|node| !node.is_empty())
            .ok_or_else(|| FieldError::new("node", "is required"))?;
        let destination = body
            .destination
            .ok_or_else(|| FieldError::new("destinationCIDR", "is required"))?
            .trunc();
        let route = Route {
            name: name.to_owned(),
            node,
            destination,
            blackhole: body.blackhole.unwrap_or(false),
            node_addresses: None,
        };
        let cluster = self.0.get(name).and_then(|old| old.cluster.clone());
        self.0
            .insert(name.to_owned(), StoredRoute { cluster, route: route.clone(), target: None });
        Ok(route)
    }

    /// Removes a route, regardless of its owner. Returns `false` if it does not exist.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// Creates a route. If a route to the same node exists, it is updated and is no longer a black
    /// hole.
    pub(super) fn create(&mut self, new: NewRoute<'_>) -> Result<(), CloudError> {
        let NewRoute { cluster, node, target, node_addresses, .. } = new;
        let destination = new.destination.trunc();
        let existing = self
            .0
            .values_mut()
            .find(|entry| entry.is_visible_to(cluster) && entry.route.destination == destination);
        if let Some(entry) = existing {
            if entry.route.node != node {
                let message =
                    format!("route to {destination} exists and leads to {}", entry.route.node);
                return Err(CloudError::new(ErrorKind::Conflict, message));
            }
            entry.route.blackhole = false;
            entry.route.node_addresses = node_addresses;
            entry.target = Some(target);
            return Ok(());
        }
        let mut name = route_name(node, destination);
        if self.0.contains_key(&name) {
            // The name is used by another cluster's route, or by one created through the admin API.
            name = format!("{cluster}-{name}");
        }
        if self.0.contains_key(&name) {
            return Err(CloudError::new(
                ErrorKind::Conflict,
                format!("route {name} already exists"),
            ));
        }
        let route = Route {
            name: name.clone(),
            node: node.to_owned(),
            destination,
            blackhole: false,
            node_addresses,
        };
        self.0.insert(
            name,
            StoredRoute {
                cluster: Some(cluster.to_owned()),
                route,
                target: Some(target),
            },
        );
        Ok(())
    }

    /// Deletes a route as it was listed. Does nothing if the route no longer exists or has another
    /// owner.
    pub(super) fn delete(&mut self, cluster: &str, route: &Route) {
        if let Some(entry) = self.0.get(&route.name)
            && entry.is_visible_to(cluster)
            && entry.route.destination == route.destination
        {
            self.0.remove(&route.name);
        }
    }
}

/// Returns a route name that can be part of a URL path.
fn route_name(node: &str, destination: IpNet) -> String {
    format!("{node}-{}", destination.to_string().replace([':', '/', '.'], "-"))
}
