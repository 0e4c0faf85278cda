//! Routes from pod networks to instances, in the cluster's route tables.
//!
//! The table is the one in the VPC with the cluster's tag, or those that `RouteTableID` names; with
//! several, each gets every route. Only routes to instances and blackhole routes are managed.
//! Routes to gateways, NAT gateways, peering connections and instances of others are neither listed
//! nor changed.
//!
//! An instance forwards packets of pods only without the source/destination check, which is
//! disabled where it is on. If an instance has several interfaces, EC2 accepts only an interface as
//! target, so the primary one is used.
//!
//! The tables are read once per pass of the route controller, when it lists the routes; see
//! `route_tables` for how old they may be when they are used.

mod apply;
mod error;
mod plan;
mod route_tables;

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, Op, Route, RouteChange, Routes},
};
use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::{
    error::RouteError,
    plan::{NodesByHop, RouteHop},
    route_tables::RouteTableCache,
};
use crate::{
    api::InstanceId,
    instances::{Instance, InstanceCache},
    provider_id::instance_of,
    scope::Scope,
};

/// Greatest age of cached instances: interfaces and tags seldom change, and EC2 rejects what is no
/// longer right.
const INSTANCE_AGE: Duration = Duration::from_secs(600);
/// Changes in flight. The client's rate limiters limit them anyway.
const CONCURRENT: usize = 10;

/// Instances by ID; `None` for those that are proven not to exist.
type InstancesById = HashMap<InstanceId, Option<Arc<Instance>>>;

/// [`Routes`] for EC2 route tables.
pub struct Ec2Routes {
    scope: Scope,
    instance_cache: Arc<InstanceCache>,
    tables: RouteTableCache,
    /// Instances and interfaces whose source/destination check was disabled, and when. The cached
    /// instance may be older.
    source_dest_check_disabled: Mutex<HashMap<Box<str>, Instant>>,
}

impl Ec2Routes {
    /// Creates the routes capability.
    pub fn new(scope: Scope, instance_cache: Arc<InstanceCache>) -> Self {
        let tables = RouteTableCache::new(scope.clone());
        Self {
            scope,
            instance_cache,
            tables,
            source_dest_check_disabled: Mutex::default(),
        }
    }

    async fn instances_by_id(
        &self,
        op: &Op,
        ids: &[InstanceId],
        max_age: Duration,
    ) -> Result<InstancesById, RouteError> {
        if ids.is_empty() {
            return Ok(HashMap::new());
        }
        self.instance_cache
            .get_many(op, ids, max_age)
            .await
            .map_err(RouteError::Instances)
    }

    /// Returns which of these hops, none of which is a node's, are foreign: instances without the
    /// cluster's tag, interfaces (their instance is unknown), and instances about which nothing is
    /// known. An instance that does not exist is not foreign: it was a node.
    async fn foreign_hops(&self, op: &Op, hops: &[RouteHop]) -> Result<Vec<RouteHop>, RouteError> {
        let instances = hops.iter().filter_map(|hop| match hop {
            RouteHop::Instance(id) => Some(id.clone()),
            RouteHop::Interface(_) => None,
        });
        let known = self
            .instances_by_id(op, &instances.collect::<Vec<_>>(), INSTANCE_AGE)
            .await?;
        let is_foreign = |hop: &&RouteHop| match hop {
            RouteHop::Instance(id) => match known.get(id) {
                Some(Some(instance)) => !instance.in_cluster,
                Some(None) => false,
                None => true,
            },
            RouteHop::Interface(_) => true,
        };
        Ok(hops.iter().filter(is_foreign).cloned().collect())
    }

    fn apply_one<'a>(
        &'a self,
        op: &'a Op,
        change: &'a RouteChange,
        instances: &'a Result<InstancesById, RouteError>,
    ) -> BoxFuture<'a, Result<(), CloudError>> {
        async move {
            match change {
                RouteChange::Create { node, destination } => {
                    self.create(op, node, *destination, instances).await
                }
                RouteChange::Delete(route) => self.delete(op, route).await,
            }
            .map_err(CloudError::from)
        }
        .boxed()
    }

    async fn list_routes(
        &self,
        op: &Op,
        nodes: &[Arc<NodeView>],
    ) -> Result<Vec<Route>, RouteError> {
        let tables = self.tables.read(op).await?;
        let mut known = NodesByHop::default();
        let mut ids = Vec::new();
        for node in nodes {
            if let Some(id) = instance_of(node) {
                known.add(id.clone(), node);
                ids.push(id);
            }
        }
        let is_interface = |hop: &RouteHop| matches!(hop, RouteHop::Interface(_));
        if plan::unmatched_hops(&tables, &known)
            .iter()
            .any(is_interface)
        {
            // Only the instances say which interfaces are theirs.
            for instance in self
                .instances_by_id(op, &ids, INSTANCE_AGE)
                .await?
                .into_values()
                .flatten()
            {
                known.add_interfaces(&instance);
            }
        }
        let foreign = self
            .foreign_hops(op, &plan::unmatched_hops(&tables, &known))
            .await?;
        Ok(plan::list(&tables, &known, |hop| foreign.contains(hop)))
    }
}

#[async_trait]
impl Routes for Ec2Routes {
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        Ok(self.list_routes(op, nodes).await?)
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        let wanted = changes.iter().filter_map(|change| match change {
            RouteChange::Create { node, .. } => instance_of(node),
            RouteChange::Delete(_) => None,
        });
        let mut wanted: Vec<InstanceId> = wanted.collect();
        wanted.sort();
        wanted.dedup();
        // Look up the instances once for all changes; if that fails, every creation fails with the
        // same error.
        let instances = &self.instances_by_id(op, &wanted, INSTANCE_AGE).await;
        let answers: Vec<_> = changes
            .iter()
            .map(|change| self.apply_one(op, change, instances))
            .collect();
        stream::iter(answers).buffered(CONCURRENT).collect().await
    }
}

#[cfg(test)]
mod tests;
