//! Routes of the project's network. Those that this cluster made carry its name.

use ccm_core::provider::prelude::*;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Meadow, instances::instance_id};

const ROUTES: &str = "v1/routes";

#[derive(Deserialize)]
struct CloudRoute {
    id: Box<str>,
    cluster: String,
    destination: IpNet,
    instance: Box<str>,
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
impl SimpleRoutes for Meadow {
    fn target<'n>(&self, node: &'n NodeView) -> Result<Option<&'n str>, CloudError> {
        instance_id(node)
    }

    async fn list_routes(&self, op: &Op) -> Result<Vec<SimpleRoute>, CloudError> {
        let mut routes: Vec<CloudRoute> = self
            .list(op, ROUTES, &[("cluster", op.cluster_name())])
            .await?;
        routes.retain(|route| route.cluster == op.cluster_name());
        Ok(routes.into_iter().map(Into::into).collect())
    }

    async fn create_route(
        &self,
        op: &Op,
        mutation: Mutation,
        destination: IpNet,
        instance: &str,
    ) -> Result<Progress, CloudError> {
        let new = NewRoute { cluster: op.cluster_name(), destination, instance };
        self.api
            .mutate::<CloudRoute>(op, mutation, Method::POST, ROUTES, &new)
            .await?;
        Ok(Progress::Done)
    }

    async fn delete_route(
        &self,
        op: &Op,
        mutation: Mutation,
        route: &SimpleRoute,
    ) -> Result<Progress, CloudError> {
        let path = path(ROUTES, &[&route.id], &[]);
        self.api.delete(op, mutation, &path).await?;
        Ok(Progress::Done)
    }
}

impl From<CloudRoute> for SimpleRoute {
    fn from(CloudRoute { id, destination, instance, broken, .. }: CloudRoute) -> Self {
        Self { id, destination, target: instance, broken }
    }
}
