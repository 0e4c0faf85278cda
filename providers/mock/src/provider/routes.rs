//! Lists and changes routes to nodes in the mock cloud.

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    k8s::{NodeAddress, NodeView},
    provider::{
        CloudError, ErrorKind, Mutation, MutationResponse, Op, Progress, Route, RouteChange, Routes,
    },
};

use super::MockProvider;
use crate::cloud::{self, OwnedRoute, RouteBatch, RouteEdit};

/// Names of the mutations of routes.
pub(super) const CREATE: &str = "create_route";
pub(super) const DELETE: &str = "delete_route";

#[async_trait]
impl Routes for MockProvider {
    async fn list(&self, op: &Op, _: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        let routes = op.run(self.api.list_routes(op.cluster_name())).await?;
        Ok(routes
            .into_iter()
            .map(|owned| self.to_route(owned))
            .collect())
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<Progress, CloudError>> {
        if changes.is_empty() {
            return Vec::new();
        }
        let edits = changes.iter().map(|change| self.to_edit(change)).collect();
        let results = self.apply_edits(op, edits).await;
        results
            .into_iter()
            .map(|result| result.map(|()| Progress::Done))
            .collect()
    }
}

impl MockProvider {
    /// Sends all edits in one call. Deleting a route that does not exist is a success.
    pub(super) async fn apply_edits(
        &self,
        op: &Op,
        edits: Vec<RouteEdit>,
    ) -> Vec<Result<(), CloudError>> {
        let mutations = edits.iter().map(mutation).collect();
        let batch = RouteBatch { cluster: op.cluster_name().to_owned(), edits };
        let request = async {
            let answers = self.api.apply_routes(&batch).await?;
            Ok(MutationResponse::new(answers))
        };
        let mut results = op.mutate_batch(mutations, request).await;
        for (result, edit) in results.iter_mut().zip(&batch.edits) {
            if let RouteEdit::Delete(_) = edit
                && let Err(error) = &*result
                && error.kind() == ErrorKind::NotFound
            {
                *result = Ok(());
            }
        }
        results
    }

    /// Translates a route of the cloud. The addresses of its node are included only if the feature
    /// is enabled.
    fn to_route(&self, owned: OwnedRoute) -> Route {
        let route = owned.route;
        let mut node_addresses = None;
        if self.settings.features.route_node_addresses {
            let addresses = route.node_addresses.unwrap_or_default();
            node_addresses = Some(addresses.into_iter().map(NodeAddress::from).collect());
        }
        let node = match route.node.as_str() {
            "" => None,
            node => Some(node.into()),
        };
        Route {
            name: route.name.into(),
            node,
            node_addresses,
            destination: route.destination,
            blackhole: route.blackhole,
        }
    }

    fn to_edit(&self, change: &RouteChange) -> RouteEdit {
        match change {
            RouteChange::Create { node, destination } => {
                let mut node_addresses = None;
                if self.settings.features.route_node_addresses {
                    let addresses = node.addresses.iter().map(cloud::Address::from);
                    node_addresses = Some(addresses.collect());
                }
                RouteEdit::Create {
                    node: node.name.to_string(),
                    destination: *destination,
                    node_addresses,
                }
            }
            RouteChange::Delete(route) => RouteEdit::Delete(cloud::Route {
                name: route.name.to_string(),
                node: route.node.as_deref().unwrap_or_default().to_owned(),
                destination: route.destination,
                blackhole: route.blackhole,
                node_addresses: None,
            }),
        }
    }
}

fn mutation(edit: &RouteEdit) -> Mutation {
    match edit {
        RouteEdit::Create { node, destination, .. } => {
            Mutation::new(CREATE, format!("{destination} to {node}"))
        }
        RouteEdit::Delete(route) => Mutation::new(DELETE, &*route.name),
    }
}
