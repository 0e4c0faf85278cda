//! Routes of the project's network. Those that this cluster made carry its name.

use std::{collections::HashMap, sync::Arc};

use ccm_core::provider::prelude::*;
use futures::{StreamExt, stream};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Meadow, instances::instance_id};

pub(crate) const CREATE: &str = "create_route";
pub(crate) const DELETE: &str = "delete_route";

#[derive(Deserialize)]
struct CloudRoute {
    id: Box<str>,
    cluster: String,
    destination: IpNet,
    instance: String,
    /// True if its instance was deleted.
    broken: bool,
}

#[derive(Serialize)]
struct NewRoute<'a> {
    cluster: &'a str,
    destination: IpNet,
    instance: &'a str,
}

#[async_trait]
impl Routes for Meadow {
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        let named = nodes
            .iter()
            .filter_map(|node| Some((instance_id(node).ok()??, &node.name)));
        let names: HashMap<_, _> = named.collect();
        let route = |CloudRoute { id, destination, instance, broken, .. }| {
            let node = names.get(&*instance).map(|name| Arc::clone(name));
            Route {
                name: id,
                node,
                node_addresses: None,
                destination,
                blackhole: broken,
            }
        };
        Ok(self.own_routes(op).await?.into_iter().map(route).collect())
    }

    /// Lists the cluster's routes once, to skip changes without effect, and then sends one request
    /// per change.
    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        match self.own_routes(op).await {
            Ok(own) => {
                let requests: Vec<_> = changes
                    .iter()
                    .map(|change| self.change_route(op, &own, change))
                    .collect();
                stream::iter(requests).buffered(8).collect().await
            }
            Err(error) => vec![Err(error); changes.len()],
        }
    }
}

impl Meadow {
    async fn own_routes(&self, op: &Op) -> Result<Vec<CloudRoute>, CloudError> {
        let mut routes: Vec<CloudRoute> = self
            .list(op, "v1/routes", &[("cluster", op.cluster_name())])
            .await?;
        routes.retain(|route| route.cluster == op.cluster_name());
        Ok(routes)
    }

    async fn change_route(
        &self,
        op: &Op,
        own: &[CloudRoute],
        change: &RouteChange,
    ) -> Result<(), CloudError> {
        match change {
            RouteChange::Create { node, destination } => {
                let Some(instance) = instance_id(node)? else {
                    let message = format!("node {} has no provider ID to route to", node.name);
                    return Err(CloudError::invalid_input(message));
                };
                let destination = destination.trunc();
                if own
                    .iter()
                    .any(|route| route.destination == destination && route.instance == instance)
                {
                    return Ok(());
                }
                let mutation = Mutation::new(CREATE, format!("{destination} to {instance}"));
                let new = NewRoute { cluster: op.cluster_name(), destination, instance };
                self.api
                    .mutate::<CloudRoute>(op, mutation, Method::POST, "v1/routes", &new)
                    .await
                    .map(drop)
            }
            RouteChange::Delete(route) if own.iter().any(|own| own.id == route.name) => {
                let mutation = Mutation::new(DELETE, route.name.clone());
                self.api
                    .delete(op, mutation, &path("v1/routes", &[&route.name], &[]))
                    .await
            }
            RouteChange::Delete(_) => Ok(()),
        }
    }
}
