//! Creates routes to the nodes' pod CIDRs in the cloud (upstream's `node-route-controller`).
//!
//! The routes in the cloud are compared with the nodes' pod CIDRs when a node changes in a way that
//! matters, and once per period. Missing routes are created and obsolete ones are deleted, in
//! batches; a change that fails is retried by itself. Each node's condition `NetworkUnavailable`
//! says whether all its routes exist.

mod apply;
mod backoff;
mod dry_run;
pub(crate) mod metrics;
mod network_condition;
mod observe;
mod plan;
mod reconcile;
mod schedule;

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::network_condition::ConditionPatch;
pub use self::network_condition::NetworkConditions;
use self::{
    metrics::RouteMetrics,
    reconcile::{RouteSyncState, SyncControl},
    schedule::{NodeChangeKind, PendingNodeChanges},
};
use super::ControllerContext;
use crate::{
    config::controller_names as names,
    k8s::NodeView,
    provider::{CloudProvider, NodeOwnership, Op, Throttle, call_metrics::CloudMetrics},
    runtime::{cache::Change, work_queue::WorkQueue},
};

/// Timeout of one provider call, after which it counts as failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Settings of the route controller.
#[derive(Clone, Debug)]
pub struct RouteControllerConfig {
    /// `--cluster-cidr`: the networks within which routes are created and deleted. Empty means no
    /// routes at all.
    pub cluster_cidrs: Vec<IpNet>,
    /// `--route-reconciliation-period`: time from the start of one reconcile to the start of the
    /// next.
    pub period: Duration,
    /// Feature gate `CloudControllerManagerWatchBasedRoutesReconciliation`: without a trigger,
    /// reconciles run only about once an hour, whatever the period.
    pub watch_based: bool,
}

/// The route controller. Must be created before its caches start, so that it sees every change.
pub struct RouteController {
    ctx: ControllerContext,
    config: RouteControllerConfig,
    /// Template of the `Op` of each provider call.
    op: Op,
    cloud: CloudMetrics,
    metrics: RouteMetrics,
    network: NetworkConditions,
    /// Nodes whose condition may have to be written.
    conditions: WorkQueue<Arc<str>>,
    pending_changes: Arc<PendingNodeChanges>,
    throttle: Mutex<Throttle>,
    started_at: Instant,
}

impl RouteController {
    /// Creates the controller and subscribes it to the node cache. `network` is shared with the
    /// node controller of the same process.
    ///
    /// # Errors
    /// When its metrics are registered already.
    pub fn new(
        ctx: ControllerContext,
        config: RouteControllerConfig,
        op: Op,
        cloud: CloudMetrics,
        network: NetworkConditions,
    ) -> prometheus::Result<Self> {
        let metrics = RouteMetrics::register(&ctx.metrics)?;
        let pending_changes = Arc::new(PendingNodeChanges::default());
        let conditions = WorkQueue::named("Routes", &ctx.controller_metrics.queues);
        let watcher = NodeWatcher {
            provider: ctx.provider.clone(),
            network: network.clone(),
            pending_changes: pending_changes.clone(),
            conditions: conditions.clone(),
        };
        ctx.nodes
            .on_change(move |change| watcher.on_node_change(change));
        Ok(Self {
            ctx,
            config,
            op,
            cloud,
            metrics,
            network,
            conditions,
            pending_changes,
            throttle: Mutex::default(),
            started_at: Instant::now(),
        })
    }

    /// Runs until `cancel`. Then starts nothing new, abandons calls that only read, and returns
    /// when the changes that were requested have been answered.
    pub async fn run(self, cancel: CancellationToken) {
        tokio::join!(self.run_reconcile_loop(&cancel), self.write_conditions(&cancel));
    }

    /// Reconciles whenever there is a reason to.
    async fn run_reconcile_loop(&self, cancel: &CancellationToken) {
        // Before the cache is synced, a missing node is not a deleted one.
        cancel.run_until_cancelled(self.ctx.nodes.synced()).await;
        let mut state = RouteSyncState::new(Instant::now());
        while !cancel.is_cancelled() {
            let (at, trigger) = state
                .schedule
                .next(self.pending_changes.pending(), self.backoff_until(&state));
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.pending_changes.changed() => {}
                () = tokio::time::sleep_until(at) => {
                    let pass = self.sync_with_outcome(trigger, &mut state);
                    if self.ctx.controller_metrics.reconcile(names::NODE_ROUTE, "routes", pass).await == SyncControl::Stop {
                        break;
                    }
                }
            }
        }
        // Returning early would end the process.
        cancel.cancelled().await;
    }
}

/// Handles changes of the node cache.
struct NodeWatcher {
    provider: Arc<dyn CloudProvider>,
    network: NetworkConditions,
    pending_changes: Arc<PendingNodeChanges>,
    conditions: WorkQueue<Arc<str>>,
}

impl NodeWatcher {
    fn on_node_change(&self, change: &Change<NodeView>) {
        match change {
            // A node without pod CIDRs needs no route. An obsolete route can wait for the next
            // period.
            Change::Added(node) if !node.pod_cidrs.is_empty() => {
                self.pending_changes
                    .record(&node.name, NodeChangeKind::Routes);
            }
            Change::Added(_) => {}
            Change::Deleted(node) => {
                self.pending_changes
                    .record(&node.name, NodeChangeKind::Routes);
            }
            Change::Updated { old, new } => {
                if let Some(kind) = self.kind_of_change(old, new) {
                    self.pending_changes.record(&new.name, kind);
                }
                // For example, the condition waited for the addresses, which exist now.
                if !self.network.is_up_to_date(new) {
                    self.conditions.add(new.name.clone());
                }
            }
        }
    }

    /// Returns what an update affects. Heartbeats and our own writes affect nothing.
    fn kind_of_change(&self, old: &NodeView, new: &NodeView) -> Option<NodeChangeKind> {
        let has_pod_cidrs = !old.pod_cidrs.is_empty() || !new.pod_cidrs.is_empty();
        if has_pod_cidrs && self.may_affect_routes(old, new) {
            return Some(NodeChangeKind::Routes);
        }
        if old.network_unavailable != new.network_unavailable && !self.network.is_up_to_date(new) {
            return Some(NodeChangeKind::NetworkCondition);
        }
        None
    }

    fn may_affect_routes(&self, old: &NodeView, new: &NodeView) -> bool {
        old.pod_cidrs != new.pod_cidrs
            || old.addresses != new.addresses
            || old.provider_id != new.provider_id
            || self.is_ours(old) != self.is_ours(new)
    }

    fn is_ours(&self, node: &NodeView) -> bool {
        self.provider.node_ownership(node) == NodeOwnership::Ours
    }
}
