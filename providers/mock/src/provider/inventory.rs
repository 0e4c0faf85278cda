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
        let routes = routes.into_iter().filter(|route| route.cluster.is_some());
        Ok(load_balancers
            .into_iter()
            .map(owned_balancer)
            .chain(routes.map(owned_route))
            .collect())
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
                        format!("load balancer {} belongs to another service by now", found.name);
                    return Err(CloudError::new(ErrorKind::Conflict, message));
                }
                let LoadBalancer { cluster, uid, name, service, .. } = found;
                self.delete_balancer(op, &LoadBalancerKey { cluster, uid, name, service })
                    .await
            }
            ROUTE => {
                let routes = op.run(self.api.list_routes(op.cluster_name())).await?;
                let ours =
                    |owned: &OwnedRoute| owned.cluster.is_some() && *owned.route.name == *object.id;
                let Some(owned) = routes.into_iter().find(ours) else {
                    return Ok(Progress::Done);
                };
                let answers = self
                    .apply_edits(op, vec![RouteEdit::Delete(owned.route)])
                    .await;
                answers
                    .into_iter()
                    .collect::<Result<(), _>>()
                    .map(|()| Progress::Done)
            }
            other => Err(CloudError::invalid_input(format!(
                "the mock cloud has no objects of kind {other:?}"
            ))),
        }
    }
}

fn owned_balancer(load_balancer: LoadBalancer) -> OwnedObject {
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
