//! Lists and deletes the objects that a cluster owns in the mock cloud.

use async_trait::async_trait;
use ccm_core::provider::{CloudError, ErrorKind, Inventory, Op, OwnedObject, Owner, Progress};

use super::MockProvider;
use crate::cloud::{LoadBalancer, LoadBalancerKey, OwnedRoute, RouteEdit};

const LOAD_BALANCER: &str = "load balancer";
const ROUTE: &str = "route";

/// Lists and deletes the load balancers and routes that this cluster owns. Routes created through
/// the admin API have no owner and are not included.
#[async_trait]
impl Inventory for MockProvider {
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        let load_balancers = op
            .run(self.api.list_load_balancers(op.cluster_name()))
            .await?;
        let routes = op.run(self.api.list_routes(op.cluster_name())).await?;
        let mut objects: Vec<_> = load_balancers
            .into_iter()
            .map(owned_load_balancer)
            .collect();
        for route in routes {
            if route.cluster.is_some() {
                objects.push(owned_route(route));
            }
        }
        Ok(objects)
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        match &*object.kind {
            LOAD_BALANCER => {
                let load_balancers = op
                    .run(self.api.list_load_balancers(op.cluster_name()))
                    .await?;
                let Some(found) = load_balancers
                    .into_iter()
                    .find(|load_balancer| *load_balancer.name == *object.id)
                else {
                    return Ok(Progress::Done);
                };
                if owner(&found) != object.owner {
                    let message =
                        format!("load balancer {} now belongs to another service", found.name);
                    return Err(CloudError::new(ErrorKind::Conflict, message));
                }
                let LoadBalancer { cluster, uid, name, service, .. } = found;
                self.delete_load_balancer(op, &LoadBalancerKey { cluster, uid, name, service })
                    .await
            }
            ROUTE => {
                let routes = op.run(self.api.list_routes(op.cluster_name())).await?;
                let Some(owned) = routes
                    .into_iter()
                    .find(|owned| owned.cluster.is_some() && *owned.route.name == *object.id)
                else {
                    return Ok(Progress::Done);
                };
                let edits = vec![RouteEdit::Delete(owned.route)];
                for result in self.apply_edits(op, edits).await {
                    result?;
                }
                Ok(Progress::Done)
            }
            other => Err(CloudError::invalid_input(format!(
                "the mock cloud has no objects of kind {other:?}"
            ))),
        }
    }
}

fn owned_load_balancer(load_balancer: LoadBalancer) -> OwnedObject {
    let owner = owner(&load_balancer);
    OwnedObject {
        kind: LOAD_BALANCER.into(),
        id: load_balancer.name.into(),
        owner,
        created: None,
    }
}

fn owner(load_balancer: &LoadBalancer) -> Owner {
    match load_balancer.service.split_once('/') {
        Some((namespace, name)) => Owner::Service {
            namespace: namespace.into(),
            name: name.into(),
            uid: Some(load_balancer.uid.as_str().into()),
        },
        None => Owner::Cluster,
    }
}

fn owned_route(owned: OwnedRoute) -> OwnedObject {
    let owner = Owner::Node { name: owned.route.node.into() };
    OwnedObject {
        kind: ROUTE.into(),
        id: owned.route.name.into(),
        owner,
        created: None,
    }
}
