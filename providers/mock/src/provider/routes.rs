use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, ErrorKind, Op, Route, RouteChange, Routes},
};

use super::MockProvider;
use crate::cloud::{self, OwnedRoute, RouteBatch, RouteEdit};

#[async_trait]
impl Routes for MockProvider {
    async fn list(&self, op: &Op, _: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        let routes = op.run(self.api.list_routes(op.cluster_name())).await?;
        Ok(routes.into_iter().map(to_route).collect())
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        if changes.is_empty() {
            return Vec::new();
        }
        self.apply_edits(op, changes.iter().map(to_edit).collect()).await
    }
}

impl MockProvider {
    /// Sends edits in one call. Deleting what is not there is a success.
    pub(super) async fn apply_edits(&self, op: &Op, edits: Vec<RouteEdit>) -> Vec<Result<(), CloudError>> {
        let count = edits.len();
        let deletes: Vec<bool> = edits.iter().map(|edit| matches!(edit, RouteEdit::Delete(_))).collect();
        let batch = RouteBatch { cluster: op.cluster_name().to_owned(), edits };
        let applied = async {
            Self::check_write(op)?;
            let answers = op.run(self.api.apply_routes(&batch)).await?;
            match answers.len() == count {
                true => Ok(answers),
                false => Err(CloudError::transient(format!("the mock cloud answered {} of {count}", answers.len()))),
            }
        };
        let answers = applied.await.unwrap_or_else(|error| vec![Err(error); count]);
        let forgive = |(answer, delete): (Result<(), CloudError>, bool)| match answer {
            Err(error) if delete && error.kind() == ErrorKind::NotFound => Ok(()),
            answer => answer,
        };
        answers.into_iter().zip(deletes).map(forgive).collect()
    }
}

fn to_route(owned: OwnedRoute) -> Route {
    let route = owned.route;
    Route {
        name: route.name.into(),
        node: Some(route.node.into()),
        node_addresses: None,
        destination: route.destination,
        blackhole: route.blackhole,
    }
}

fn to_edit(change: &RouteChange) -> RouteEdit {
    match change {
        RouteChange::Create { node, destination } => {
            RouteEdit::Create { node: node.name.to_string(), destination: *destination }
        }
        RouteChange::Delete(route) => RouteEdit::Delete(cloud::Route {
            name: route.name.to_string(),
            node: route.node.as_deref().unwrap_or_default().to_owned(),
            destination: route.destination,
            blackhole: route.blackhole,
        }),
    }
}
