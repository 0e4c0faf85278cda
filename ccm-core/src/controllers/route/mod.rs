//! Creates routes to the nodes' pod CIDRs in the cloud (upstream's `node-route-controller`).
//!
//! The controller compares the routes in the cloud with the nodes' pod CIDRs once per period, and
//! whenever a relevant property of a node changes. It creates missing routes and deletes obsolete
//! ones in batches. A change that fails is retried on its own. The condition `NetworkUnavailable`
//! of a node says whether all its routes exist.

mod apply;
mod backoff;
mod dry_run;
mod explain;
pub(crate) mod metrics;
mod network_condition;
mod observe;
mod plan;
mod reconcile;
mod report;
mod schedule;

use std::{sync::Arc, time::Duration};

use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::network_condition::ConditionWritePermit;
pub use self::network_condition::NetworkConditions;
pub(crate) use self::reconcile::WATCH_BASED_PERIOD;
use self::{
    explain::RouteHistory,
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

/// The timeout of one provider call, after which it counts as failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Settings of the route controller.
#[derive(Clone, Debug)]
pub struct RouteControllerConfig {
    /// The networks within which routes are created and deleted (`--cluster-cidr`). If there are
    /// none, no routes are managed.
    pub cluster_cidrs: Vec<IpNet>,
    /// The time from the start of one reconcile to the start of the next
    /// (`--route-reconciliation-period`).
    pub period: Duration,
    /// True to reconcile only when nodes change, and otherwise about once an hour, whatever the
    /// period (feature gate `CloudControllerManagerWatchBasedRoutesReconciliation`).
    pub watch_based: bool,
}

/// The route controller. It must be created before its caches start, so that it sees every change.
pub struct RouteController {
    ctx: ControllerContext,
    config: RouteControllerConfig,
    /// The template for the `Op` of each provider call.
    op: Op,
    cloud: CloudMetrics,
    metrics: RouteMetrics,
    network: NetworkConditions,
    /// The nodes whose condition may have to be written.
    condition_queue: WorkQueue<Arc<str>>,
    pending_changes: Arc<PendingNodeChanges>,
    throttle: Mutex<Throttle>,
    history: Arc<Mutex<RouteHistory>>,
    started_at: Instant,
}

impl RouteController {
    /// Creates the controller and subscribes it to the node cache. `network` is shared with the
    /// node controller of the same process.
    ///
    /// # Errors
    /// Returns an error if the metrics are already registered.
    pub fn new(
        ctx: ControllerContext,
        config: RouteControllerConfig,
        op: Op,
        cloud: CloudMetrics,
        network: NetworkConditions,
    ) -> prometheus::Result<Self> {
        let metrics = RouteMetrics::register(&ctx.metrics)?;
        let pending_changes = Arc::new(PendingNodeChanges::default());
        let condition_queue = WorkQueue::named("Routes", &ctx.controller_metrics.queues);
        let watcher = NodeWatcher {
            provider: ctx.provider.clone(),
            network: network.clone(),
            pending_changes: pending_changes.clone(),
            condition_queue: condition_queue.clone(),
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
            condition_queue,
            pending_changes,
            throttle: Mutex::default(),
            history: Arc::default(),
            started_at: Instant::now(),
        })
    }

    /// Runs the controller until it is cancelled.
    ///
    /// It then starts nothing new and abandons calls that only read, but waits for the responses to
    /// requests that change something.
    pub async fn run(self, cancel: CancellationToken) {
        tokio::join!(self.run_reconcile_loop(&cancel), self.write_conditions(&cancel));
    }

    /// Reconciles whenever the schedule says so, until `cancel`.
    async fn run_reconcile_loop(&self, cancel: &CancellationToken) {
        // Until the cache is synced, a node that it lacks may exist nevertheless.
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
        // If the provider does not implement routes, do not return, because that would end the
        // process.
        cancel.cancelled().await;
    }
}

/// Handles changes of the node cache.
struct NodeWatcher {
    provider: Arc<dyn CloudProvider>,
    network: NetworkConditions,
    pending_changes: Arc<PendingNodeChanges>,
    condition_queue: WorkQueue<Arc<str>>,
}

impl NodeWatcher {
    fn on_node_change(&self, change: &Change<NodeView>) {
        match change {
            // A node without pod CIDRs needs no route. If it has one, the next periodic reconcile
            // deletes it.
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
                // The condition may have waited for this change, for example for the addresses.
                if !self.network.is_up_to_date(new) {
                    self.condition_queue.add(new.name.clone());
                }
            }
        }
    }

    /// Returns the kind of an update; `None` for one that does not matter, such as a heartbeat or
    /// our own write.
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
