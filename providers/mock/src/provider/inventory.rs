use async_trait::async_trait;
use ccm_core::provider::{CloudError, Inventory, Op, OwnedObject, Owner, Progress};

use super::MockProvider;
use crate::cloud::{LoadBalancerKey, OwnedLoadBalancer, OwnedRoute, RouteEdit};

const LOAD_BALANCER: &str = "load balancer";
const ROUTE: &str = "route";

/// Load balancers and routes that carry this cluster's name. A route made by hand carries none and is nobody's.
#[async_trait]
impl Inventory for MockProvider {
    async fn list_owned(&self, op: &Op) -> Result<Vec<OwnedObject>, CloudError> {
        let balancers = op.run(self.api.list_load_balancers(op.cluster_name())).await?;
        let routes = op.run(self.api.list_routes(op.cluster_name())).await?;
        let routes = routes.into_iter().filter(|route| route.cluster.is_some());
        Ok(balancers.into_iter().map(owned_balancer).chain(routes.map(owned_route)).collect())
    }

    async fn delete_owned(&self, op: &Op, object: &OwnedObject) -> Result<Progress, CloudError> {
        match &*object.kind {
            LOAD_BALANCER => {
                let service = match &object.owner {
                    Owner::Service { namespace, name, .. } => format!("{namespace}/{name}"),
                    _ => String::new(),
                };
                let key =
                    LoadBalancerKey { cluster: op.cluster_name().to_owned(), name: object.id.to_string(), service };
                // The cloud deletes it only if it is this cluster's.
                self.delete_balancer(op, &key).await
            }
            ROUTE => {
                let routes = op.run(self.api.list_routes(op.cluster_name())).await?;
                let ours = |owned: &OwnedRoute| owned.cluster.is_some() && *owned.route.name == *object.id;
                let Some(owned) = routes.into_iter().find(ours) else { return Ok(Progress::Done) };
                let answers = self.apply_edits(op, vec![RouteEdit::Delete(owned.route)]).await;
                answers.into_iter().collect::<Result<(), _>>().map(|()| Progress::Done)
            }
            other => Err(CloudError::invalid_input(format!("the mock cloud has no objects of kind {other:?}"))),
        }
    }
}

fn owned_balancer(owned: OwnedLoadBalancer) -> OwnedObject {
    let owner = match owned.load_balancer.service.split_once('/') {
        Some((namespace, name)) => {
            Owner::Service { namespace: namespace.into(), name: name.into(), uid: Some(owned.uid.into()) }
        }
        None => Owner::Cluster,
    };
    OwnedObject { kind: LOAD_BALANCER.into(), id: owned.load_balancer.name.into(), owner, created: None }
}

fn owned_route(owned: OwnedRoute) -> OwnedObject {
    let owner = Owner::Node { name: owned.route.node.into() };
    OwnedObject { kind: ROUTE.into(), id: owned.route.name.into(), owner, created: None }
}
