//! Routes: one table, targets are instances.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, ErrorKind, Op, Route, RouteChange, Routes},
};

use super::{Aws, ProviderId};

#[async_trait]
impl Routes for Aws {
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        let by_id: BTreeMap<_, _> = nodes.iter().filter_map(|n| Some((instance_of(n).ok()?, n.name.clone()))).collect();
        let routes = self.api.describe_routes().await?;
        Ok(routes
            .into_iter()
            .map(|route| Route {
                name: format!("{}-{}", op.cluster_name(), route.destination).into(),
                // An instance without a Node has no name: the framework then removes the route.
                node: route.instance.and_then(|id| by_id.get(&*id).cloned()),
                node_addresses: None,
                destination: route.destination,
                blackhole: route.blackhole,
            })
            .collect())
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        let mut answers = Vec::with_capacity(changes.len());
        for change in changes {
            answers.push(self.apply_one(op, change).await);
        }
        answers
    }
}

impl Aws {
    async fn apply_one(&self, op: &Op, change: &RouteChange) -> Result<(), CloudError> {
        match change {
            RouteChange::Create { node, destination } => {
                let id = instance_of(node)?;
                Ok(self.writer(op)?.create_route(*destination, &id).await?)
            }
            RouteChange::Delete(route) => {
                match self.writer(op)?.delete_route(route.destination).await.map_err(CloudError::from) {
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                    other => other,
                }
            }
        }
    }
}

fn instance_of(node: &NodeView) -> Result<Box<str>, CloudError> {
    match node.provider_id.as_deref().map(ProviderId::parse).transpose()? {
        Some(ProviderId::Instance(id)) => Ok(id),
        _ => Err(CloudError::invalid_input(format!("node {} is no EC2 instance that a route can lead to", node.name))),
    }
}
