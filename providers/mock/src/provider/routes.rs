use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    k8s::{NodeAddress, NodeView},
    provider::{CloudError, ErrorKind, Mutation, MutationResponse, Op, Route, RouteChange, Routes},
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
        let addresses = self.settings.features.route_node_addresses;
        Ok(routes
            .into_iter()
            .map(|owned| to_route(owned, addresses))
            .collect())
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        if changes.is_empty() {
            return Vec::new();
        }
        let addresses = self.settings.features.route_node_addresses;
        self.apply_edits(
            op,
            changes
                .iter()
                .map(|change| to_edit(change, addresses))
                .collect(),
        )
        .await
    }
}

impl MockProvider {
    /// Sends all edits in one call. Deleting a route that does not exist is a success.
    pub(super) async fn apply_edits(
        &self,
        op: &Op,
        edits: Vec<RouteEdit>,
    ) -> Vec<Result<(), CloudError>> {
        let deletes: Vec<bool> = edits
            .iter()
            .map(|edit| matches!(edit, RouteEdit::Delete(_)))
            .collect();
        let mutations = edits.iter().map(mutation).collect();
        let batch = RouteBatch { cluster: op.cluster_name().to_owned(), edits };
        let request = async {
            self.api
                .apply_routes(&batch)
                .await
                .map(MutationResponse::new)
        };
        let answers = op.mutate_batch(mutations, request).await;
        let forgive = |(answer, delete): (Result<(), CloudError>, bool)| match answer {
            Err(error) if delete && error.kind() == ErrorKind::NotFound => Ok(()),
            answer => answer,
        };
        answers.into_iter().zip(deletes).map(forgive).collect()
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

fn to_route(owned: OwnedRoute, addresses: bool) -> Route {
    let route = owned.route;
    let made_for = route.node_addresses.unwrap_or_default();
    Route {
        name: route.name.into(),
        node: (!route.node.is_empty()).then(|| route.node.into()),
        node_addresses: addresses.then(|| made_for.into_iter().map(NodeAddress::from).collect()),
        destination: route.destination,
        blackhole: route.blackhole,
    }
}

fn to_edit(change: &RouteChange, addresses: bool) -> RouteEdit {
    match change {
        RouteChange::Create { node, destination } => RouteEdit::Create {
            node: node.name.to_string(),
            destination: *destination,
            node_addresses: addresses
                .then(|| node.addresses.iter().map(cloud::Address::from).collect()),
        },
        RouteChange::Delete(route) => RouteEdit::Delete(cloud::Route {
            name: route.name.to_string(),
            node: route.node.as_deref().unwrap_or_default().to_owned(),
            destination: route.destination,
            blackhole: route.blackhole,
            node_addresses: None,
        }),
    }
}
