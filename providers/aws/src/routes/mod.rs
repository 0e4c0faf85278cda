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
/// Maximum number of changes in flight. The client's rate limiters limit them anyway.
const MAX_CONCURRENT_CHANGES: usize = 10;

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
        let mut ids = Vec::new();
        for hop in hops {
            if let RouteHop::Instance(id) = hop {
                ids.push(id.clone());
            }
        }
        let instances = self.instances_by_id(op, &ids, INSTANCE_AGE).await?;
        let mut foreign_hops = hops.to_vec();
        foreign_hops.retain(|hop| is_foreign(hop, &instances));
        Ok(foreign_hops)
    }

    fn apply_change<'a>(
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
        let mut nodes_by_hop = NodesByHop::default();
        let mut ids = Vec::new();
        for node in nodes {
            if let Some(id) = instance_of(node) {
                nodes_by_hop.add(id.clone(), node);
                ids.push(id);
            }
        }
        // Which interfaces belong to an instance is read only if a route leads to an interface.
        if plan::unmatched_hops(&tables, &nodes_by_hop)
            .iter()
            .any(|hop| matches!(hop, RouteHop::Interface(_)))
        {
            let instances = self.instances_by_id(op, &ids, INSTANCE_AGE).await?;
            for instance in instances.into_values().flatten() {
                nodes_by_hop.add_interfaces(&instance);
            }
        }
        let unmatched_hops = plan::unmatched_hops(&tables, &nodes_by_hop);
        let foreign_hops = self.foreign_hops(op, &unmatched_hops).await?;
        Ok(plan::list(&tables, &nodes_by_hop, |hop| foreign_hops.contains(hop)))
    }
}

/// Returns whether a hop that is no node's is foreign, see [`Ec2Routes::foreign_hops`].
fn is_foreign(hop: &RouteHop, instances: &InstancesById) -> bool {
    let RouteHop::Instance(id) = hop else {
        return true;
    };
    match instances.get(id) {
        Some(Some(instance)) => !instance.in_cluster,
        Some(None) => false,
        None => true,
    }
}

#[async_trait]
impl Routes for Ec2Routes {
    async fn list(&self, op: &Op, nodes: &[Arc<NodeView>]) -> Result<Vec<Route>, CloudError> {
        Ok(self.list_routes(op, nodes).await?)
    }

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        let mut ids = Vec::new();
        for change in changes {
            if let RouteChange::Create { node, .. } = change {
                ids.extend(instance_of(node));
            }
        }
        ids.sort();
        ids.dedup();
        // Look up the instances once for all changes; if that fails, every creation fails with the
        // same error.
        let instances = &self.instances_by_id(op, &ids, INSTANCE_AGE).await;
        let results: Vec<_> = changes
            .iter()
            .map(|change| self.apply_change(op, change, instances))
            .collect();
        stream::iter(results)
            .buffered(MAX_CONCURRENT_CHANGES)
            .collect()
            .await
    }
}

#[cfg(test)]
mod tests;
