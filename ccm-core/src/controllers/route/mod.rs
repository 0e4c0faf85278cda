//! Makes routes to the nodes' pod networks in the cloud (upstream's `node-route-controller`).
//!
//! The routes of the cloud are compared with the nodes' pod networks when a node changes in a way that matters, and once
//! per period. What is missing is created and what is obsolete is deleted, in batches; a change that fails is tried again
//! by itself. Each node's condition `NetworkUnavailable` says whether all its routes are there.

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
    config::controllers as names,
    k8s::NodeView,
    provider::{CloudProvider, NodeOwnership, Op, Throttle, metrics::CloudMetrics},
    runtime::{cache::Change, work_queue::WorkQueue},
};

/// Longest time that one provider call may take before it counts as failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Settings of the route controller.
#[derive(Clone, Debug)]
pub struct RouteControllerConfig {
    /// `--cluster-cidr`: the networks within which routes are made and deleted. None means no routes at all.
    pub cluster_cidrs: Vec<IpNet>,
    /// `--route-reconciliation-period`: time from the start of one comparison to the start of the next.
    pub period: Duration,
    /// Gate `CloudControllerManagerWatchBasedRoutesReconciliation`: without a reason all is compared about once an hour
    /// only, whatever the period.
    pub watch_based: bool,
}

/// The route controller. Built before its caches start, so that it sees every change.
pub struct RouteController {
    cx: ControllerContext,
    config: RouteControllerConfig,
    /// From which those of the provider calls are derived.
    op: Op,
    cloud: CloudMetrics,
    metrics: RouteMetrics,
    network: NetworkConditions,
    /// Nodes whose condition may have to be written.
    conditions: WorkQueue<Arc<str>>,
    signals: Arc<PendingNodeChanges>,
    throttle: Mutex<Throttle>,
    started_at: Instant,
}

impl RouteController {
    /// Makes the controller and attaches it to the node cache. `network` is given to the node controller of the same
    /// process, too.
    ///
    /// # Errors
    /// When its metrics are registered already.
    pub fn new(
        cx: ControllerContext,
        config: RouteControllerConfig,
        op: Op,
        cloud: CloudMetrics,
        network: NetworkConditions,
    ) -> prometheus::Result<Self> {
        let metrics = RouteMetrics::register(&cx.metrics)?;
        let signals = Arc::new(PendingNodeChanges::default());
        let conditions = WorkQueue::named("Routes", &cx.controller_metrics.queues);
        let watcher = NodeWatcher {
            provider: cx.provider.clone(),
            network: network.clone(),
            signals: signals.clone(),
            conditions,
        };
        let conditions = watcher.conditions.clone();
        cx.nodes.on_change(move |change| watcher.on_node_change(change));
        let (throttle, began) = (Mutex::default(), Instant::now());
        Ok(Self { cx, config, op, cloud, metrics, network, conditions, signals, throttle, started_at: began })
    }

    /// Runs until `cancel`; then begins nothing new, gives up what only asks, and ends when the changes that were requested
    /// have their answers.
    pub async fn run(self, cancel: CancellationToken) {
        tokio::join!(self.run_reconcile_loop(&cancel), self.write_conditions(&cancel));
    }

    /// Compares whenever there is a reason to.
    async fn run_reconcile_loop(&self, cancel: &CancellationToken) {
        // A node that is not in the cache yet is not one that is gone.
        cancel.run_until_cancelled(self.cx.nodes.synced()).await;
        let mut state = RouteSyncState::new(Instant::now());
        while !cancel.is_cancelled() {
            let (at, trigger) = state.schedule.next(self.signals.pending(), self.backoff_until(&state));
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.signals.changed() => {}
                () = tokio::time::sleep_until(at) => {
                    let pass = self.sync_with_outcome(trigger, &mut state);
                    if self.cx.controller_metrics.reconcile(names::NODE_ROUTE, "routes", pass).await == SyncControl::Stop {
                        break;
                    }
                }
            }
        }
        // Ending early would end the process.
        cancel.cancelled().await;
    }
}

/// Sees the changes of the node cache.
struct NodeWatcher {
    provider: Arc<dyn CloudProvider>,
    network: NetworkConditions,
    signals: Arc<PendingNodeChanges>,
    conditions: WorkQueue<Arc<str>>,
}

impl NodeWatcher {
    fn on_node_change(&self, change: &Change<NodeView>) {
        match change {
            // Without pod networks nothing is missing; a route that is left over can wait for its time.
            Change::Added(node) if !node.pod_cidrs.is_empty() => {
                self.signals.record(&node.name, NodeChangeKind::Routes);
            }
            Change::Added(_) => {}
            Change::Deleted(node) => self.signals.record(&node.name, NodeChangeKind::Routes),
            Change::Updated { old, new } => {
                let news = self.change_of(old, new);
                if let Some(news) = news {
                    self.signals.record(&new.name, news);
                }
                // For example because it waited for the addresses that are there now.
                if !self.network.is_up_to_date(new) {
                    self.conditions.add(new.name.clone());
                }
            }
        }
    }

    /// Tells what an update means. Heartbeats and our own writes mean nothing.
    fn change_of(&self, old: &NodeView, new: &NodeView) -> Option<NodeChangeKind> {
        let claim = |node| self.provider.node_ownership(node) == NodeOwnership::Ours;
        let routes = old.pod_cidrs != new.pod_cidrs
            || old.addresses != new.addresses
            || old.provider_id != new.provider_id
            || claim(old) != claim(new);
        let condition = old.network_unavailable != new.network_unavailable && !self.network.is_up_to_date(new);
        match (routes && !(old.pod_cidrs.is_empty() && new.pod_cidrs.is_empty()), condition) {
            (true, _) => Some(NodeChangeKind::Routes),
            (false, true) => Some(NodeChangeKind::NetworkCondition),
            (false, false) => None,
        }
    }
}
