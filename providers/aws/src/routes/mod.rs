//! Routes from pod networks to instances, in the cluster's route tables.
//!
//! The routes are written to the route tables that `RouteTableID` names, or else to the one table
//! in the VPC with the cluster's tag. If there are several tables, each gets every route. Only
//! routes to instances and blackhole routes are managed. Routes to gateways, NAT gateways, peering
//! connections and instances that are not in the cluster are neither listed nor changed.
//!
//! With the source/destination check, an instance drops packets of pods, so the check is disabled.
//! If an instance has several interfaces, EC2 accepts only an interface as target. The primary
//! interface is used then.
//!
//! The tables are read once per pass of the route controller, when it lists the routes. The module
//! `route_tables` defines how old they may be when they are used.

mod apply;
mod error;
mod plan;
mod route_tables;

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use ccm_core::{
    k8s::NodeView,
    provider::{CloudError, Op, Progress, Route, RouteChange, Routes, UNINITIALIZED_NODE_DELAY},
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

/// Maximum age of cached instances. Interfaces and tags seldom change, and EC2 rejects a route to a
/// target that is no longer valid.
const MAX_INSTANCE_AGE: Duration = Duration::from_secs(600);
/// Maximum number of changes in flight. Their rate is limited by the client.
const MAX_CONCURRENT_CHANGES: usize = 10;

/// Instances by ID; `None` for those that are proven not to exist.
type InstancesById = HashMap<InstanceId, Option<Arc<Instance>>>;

/// [`Routes`] for EC2 route tables.
pub struct Ec2Routes {
    scope: Scope,
    instance_cache: Arc<InstanceCache>,
    tables: RouteTableCache,
    /// Instances and interfaces whose source/destination check was disabled, with the time of the
    /// change. A cached instance may be older and show the check as enabled.
    source_dest_check_disabled_at: Mutex<HashMap<Box<str>, Instant>>,
}

impl Ec2Routes {
    /// Creates the routes capability.
    pub fn new(scope: Scope, instance_cache: Arc<InstanceCache>) -> Self {
        let tables = RouteTableCache::new(scope.clone());
        Self {
            scope,
            instance_cache,
            tables,
            source_dest_check_disabled_at: Mutex::default(),
        }
    }

    /// Looks up instances, none of them older than `max_age`.
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
            .map_err(RouteError::DescribeInstances)
    }

    /// Returns those of the given hops that do not belong to the cluster. None of the hops may
    /// belong to a current node.
    ///
    /// Instances without the cluster's tag are foreign, and so are interfaces and instances about
    /// which nothing is known. An instance that does not exist is not foreign, because it may have
    /// been a node.
    async fn foreign_hops(&self, op: &Op, hops: &[RouteHop]) -> Result<Vec<RouteHop>, RouteError> {
        let mut ids = Vec::new();
        for hop in hops {
            if let RouteHop::Instance(id) = hop {
                ids.push(id.clone());
            }
        }
        let instances = self.instances_by_id(op, &ids, MAX_INSTANCE_AGE).await?;
        let mut foreign_hops = hops.to_vec();
        foreign_hops.retain(|hop| is_foreign(hop, &instances));
        Ok(foreign_hops)
    }

    fn apply_change<'a>(
        &'a self,
        op: &'a Op,
        change: &'a RouteChange,
        instances: &'a Result<InstancesById, RouteError>,
    ) -> BoxFuture<'a, Result<Progress, CloudError>> {
        async move {
            let result = match change {
                RouteChange::Create { node, destination } => {
                    self.create(op, node, *destination, instances).await
                }
                RouteChange::Delete(route) => self.delete(op, route).await,
            };
            match result {
                Ok(()) => Ok(Progress::Done),
                // The node is not initialised yet. Its next change repeats this one.
                Err(error @ RouteError::NoProviderId { .. }) => Ok(Progress::Pending {
                    after: UNINITIALIZED_NODE_DELAY,
                    reason: error.to_string().into(),
                }),
                Err(error) => Err(CloudError::from(error)),
            }
        }
        .boxed()
    }

    /// Lists the routes of all tables, each once, with the node to which it leads.
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
        // The nodes' interfaces are only needed if a route leads to an interface.
        let has_interface_hops = plan::unmatched_hops(&tables, &nodes_by_hop)
            .iter()
            .any(|hop| matches!(hop, RouteHop::Interface(_)));
        if has_interface_hops {
            let instances = self.instances_by_id(op, &ids, MAX_INSTANCE_AGE).await?;
            for instance in instances.into_values().flatten() {
                nodes_by_hop.add_interfaces(&instance);
            }
        }
        let unmatched_hops = plan::unmatched_hops(&tables, &nodes_by_hop);
        let foreign_hops = self.foreign_hops(op, &unmatched_hops).await?;
        Ok(plan::list_routes(&tables, &nodes_by_hop, |hop| foreign_hops.contains(hop)))
    }
}

/// Returns true if a hop without a node is foreign, see [`Ec2Routes::foreign_hops`].
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

    async fn apply(&self, op: &Op, changes: &[RouteChange]) -> Vec<Result<Progress, CloudError>> {
        let mut ids = Vec::new();
        for change in changes {
            if let RouteChange::Create { node, .. } = change {
                ids.extend(instance_of(node));
            }
        }
        ids.sort();
        ids.dedup();
        // Look up the instances once for all changes. If this fails, every creation fails with the
        // same error.
        let instances = &self.instances_by_id(op, &ids, MAX_INSTANCE_AGE).await;
        let pending_changes: Vec<_> = changes
            .iter()
            .map(|change| self.apply_change(op, change, instances))
            .collect();
        stream::iter(pending_changes)
            .buffered(MAX_CONCURRENT_CHANGES)
            .collect()
            .await
    }
}

#[cfg(test)]
mod tests;
