use std::collections::BTreeMap;

use ccm_core::provider::{CloudError, ErrorKind};
use ipnet::IpNet;

use super::{FieldError, OwnedRoute, Route, RouteBody};

/// The cloud's route table.
#[derive(Debug, Default)]
pub(super) struct RouteTable(BTreeMap<String, OwnedRoute>);

impl RouteTable {
    pub(super) fn list(&self) -> Vec<Route> {
        self.0.values().map(|owned| owned.route.clone()).collect()
    }

    /// Lists what a cluster sees: its own routes, and those made by hand.
    pub(super) fn list_for(&self, cluster: &str) -> Vec<OwnedRoute> {
        self.0.values().filter(|owned| visible(owned, cluster)).cloned().collect()
    }

    pub(super) fn put(&mut self, name: &str, body: RouteBody) -> Result<Route, FieldError> {
        if body.name.as_deref().is_some_and(|given| given != name) {
            return Err(FieldError::new("name", format!("is not {name:?}, the name in the path")));
        }
        let node = body.node.filter(|node| !node.is_empty()).ok_or_else(|| FieldError::new("node", "is required"))?;
        let destination = body.destination.ok_or_else(|| FieldError::new("destinationCIDR", "is required"))?.trunc();
        let route = Route { name: name.to_owned(), node, destination, blackhole: body.blackhole.unwrap_or(false) };
        let cluster = self.0.get(name).and_then(|old| old.cluster.clone());
        self.0.insert(name.to_owned(), OwnedRoute { cluster, route: route.clone() });
        Ok(route)
    }

    /// Removes a route, whoever made it; `false` when there is none.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// Creates a route; one that is there already is a success, and one that was a black hole leads somewhere again.
    pub(super) fn create(&mut self, cluster: &str, node: &str, destination: IpNet) -> Result<(), CloudError> {
        let destination = destination.trunc();
        let mut same = self.0.values_mut().filter(|owned| visible(owned, cluster));
        if let Some(owned) = same.find(|owned| owned.route.destination == destination) {
            if owned.route.node != node {
                let message = format!("route to {destination} exists and leads to {}", owned.route.node);
                return Err(CloudError::new(ErrorKind::Conflict, message));
            }
            owned.route.blackhole = false;
            return Ok(());
        }
        let mut name = route_name(node, destination);
        if self.0.contains_key(&name) {
            // Taken by another cluster's route or by one made by hand under this name.
            name = format!("{cluster}-{name}");
        }
        if self.0.contains_key(&name) {
            return Err(CloudError::new(ErrorKind::Conflict, format!("there is a route {name} to somewhere else")));
        }
        let route = Route { name: name.clone(), node: node.to_owned(), destination, blackhole: false };
        self.0.insert(name, OwnedRoute { cluster: Some(cluster.to_owned()), route });
        Ok(())
    }

    /// Deletes a route as listed; does nothing if it is not there any more or is another's.
    pub(super) fn delete(&mut self, cluster: &str, route: &Route) {
        let same = |owned: &OwnedRoute| visible(owned, cluster) && owned.route.destination == route.destination;
        if self.0.get(&route.name).is_some_and(same) {
            self.0.remove(&route.name);
        }
    }
}

fn visible(owned: &OwnedRoute, cluster: &str) -> bool {
    owned.cluster.as_deref().is_none_or(|owner| owner == cluster)
}

/// Returns a name that can stand in a URL path.
fn route_name(node: &str, destination: IpNet) -> String {
    format!("{node}-{}", destination.to_string().replace([':', '/', '.'], "-"))
}
