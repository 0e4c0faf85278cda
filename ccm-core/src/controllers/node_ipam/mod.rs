//! Allocates pod CIDRs to the nodes of the cluster (upstream's `node-ipam-controller` with its
//! `RangeAllocator`).
//!
//! As upstream, nodes that the provider does not claim get pod CIDRs too, because pod CIDRs belong
//! to the cluster, not to the cloud.
//!
//! The `CidrAllocator` of the `plan` module keeps the allocations. It processes all changes of the
//! node cache in order, so no decision is based on a state that is older than the cache.

pub(crate) mod apply;
mod cidr_pool;
pub(crate) mod cidr_set;
mod dry_run;
mod explain;
pub(crate) mod metrics;
mod plan;

use std::{sync::Arc, time::Duration};

use futures::{
    StreamExt,
    stream::{self, FuturesUnordered},
};
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use self::{
    apply::PatchFailure,
    metrics::NodeIpamMetrics,
    plan::{AllocationDecision, CidrAllocator},
};
use super::{ControllerContext, event_dedup::EventDeduplicator};
use crate::{
    config::{InvalidBlocks, NodeIpamOptions, controller_names as names},
    error::chain,
    explain::{AttemptLog, AttemptRecord, Cause},
    k8s::NodeView,
    provider::EventType,
    runtime::{
        api::{ApiError, ApiErrorKind},
        cache::Change,
        work_queue::{Backoff, WorkQueue},
    },
    telemetry::controller_metrics::{ReconcileOutcome, record_reason},
};

/// The maximum number of nodes processed at a time, and so of writes in flight. As many as
/// upstream's workers.
const MAX_CONCURRENT_NODES: usize = 30;
/// The number of attempts at a node before it is requeued with a back-off, as upstream.
const MAX_ATTEMPTS: usize = 3;
/// The minimum delay between two attempts, which upstream lacks. Up to the same amount is added at
/// random.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The back-off of a node that got no pod CIDRs. Upstream's grows to 1,000 s.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    cap: Duration::from_secs(30),
};
/// The number of consecutive failures after which throttling by the API server is reported as an
/// event of the node.
const FAILURES_BEFORE_EVENT: u32 = 3;
/// The time for which the last request of a previous leader's allocator may still take effect. The
/// API server ends writes after 34 s.
const LATE_REQUEST_LIMIT: Duration = Duration::from_secs(35);

/// An error because of which the controller cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum NodeIpamError {
    /// A cluster CIDR cannot be divided into blocks of the given size. The check of the flags
    /// rejects such values.
    #[error(transparent)]
    Networks(#[from] InvalidBlocks),
    /// A metric is already registered.
    #[error(transparent)]
    Metrics(#[from] prometheus::Error),
}

/// The node-IPAM controller. It must be created before its caches start, so that it sees every
/// change.
pub struct NodeIpamController {
    ctx: ControllerContext,
    shared: Arc<SharedAllocator>,
    event_dedup: EventDeduplicator,
}

/// The state that the workers share with the change handler of the cache.
struct SharedAllocator {
    allocator: Mutex<CidrAllocator>,
    metrics: NodeIpamMetrics,
    queue: WorkQueue<Arc<str>>,
    initial_nodes_confirmed: Notify,
    started_at: Instant,
    /// The last allocations that failed, for explanations.
    failed: AttemptLog,
}

impl SharedAllocator {
    /// Calls `operation` with the allocator. Then updates the metrics, and queues waiting nodes if
    /// blocks became free.
    fn with_allocator<R>(&self, operation: impl FnOnce(&mut CidrAllocator) -> R) -> R {
        let mut allocator = self.allocator.lock();
        let result = operation(&mut allocator);
        let (changes, nodes_to_retry) = allocator.take_changes();
        for (pool, changes) in allocator.pools().iter().zip(changes) {
            self.metrics.record(pool.set(), &changes);
        }
        drop(allocator);
        self.queue_all(nodes_to_retry);
        result
    }

    /// Handles a change of the node cache. Heartbeats and other irrelevant changes do not queue the
    /// node.
    fn on_node_change(&self, change: &Change<NodeView>) {
        match change {
            Change::Added(node) => {
                let other_nodes = self.with_allocator(|allocator| allocator.observe_node(node));
                self.queue_all(other_nodes);
                self.queue.add(node.name.clone());
            }
            Change::Updated { old, new }
                if old.pod_cidrs == new.pod_cidrs && old.deleting == new.deleting =>
            {
                self.record_change_since_start(&new.name);
            }
            // Record the node's blocks before the node counts as confirmed. The last confirmation
            // lets the workers start to allocate blocks.
            Change::Updated { new, .. } => {
                let other_nodes = self.with_allocator(|allocator| allocator.observe_node(new));
                self.record_change_since_start(&new.name);
                self.queue_all(other_nodes);
                self.queue.add(new.name.clone());
            }
            Change::Deleted(node) => {
                self.with_allocator(|allocator| allocator.node_deleted(node));
                self.record_change_since_start(&node.name);
                self.queue.add(node.name.clone());
            }
        }
    }

    /// Records that a node has changed since the start, and wakes up the controller if it was the
    /// last unconfirmed node.
    fn record_change_since_start(&self, name: &str) {
        if self.allocator.lock().node_changed_since_start(name) {
            self.initial_nodes_confirmed.notify_one();
        }
    }

    fn queue_all(&self, names: Vec<Arc<str>>) {
        for name in names {
            self.queue.add(name);
        }
    }
}

impl NodeIpamController {
    /// Creates the controller and subscribes it to the node cache.
    ///
    /// # Errors
    /// Returns an error if a cluster CIDR cannot be divided into blocks of the given size, or if
    /// the metrics are already registered.
    pub fn new(ctx: ControllerContext, config: &NodeIpamOptions) -> Result<Self, NodeIpamError> {
        let shared = Arc::new(SharedAllocator {
            allocator: Mutex::new(CidrAllocator::new(&config.networks, &config.services)?),
            metrics: NodeIpamMetrics::register(&ctx.metrics)?,
            queue: WorkQueue::named("cidrallocator_node", &ctx.controller_metrics.queues),
            initial_nodes_confirmed: Notify::new(),
            started_at: Instant::now(),
            failed: AttemptLog::default(),
        });
        // Export the metrics of all cluster CIDRs from the start.
        shared.with_allocator(|_| ());
        let observer = shared.clone();
        ctx.nodes
            .on_change(move |change| observer.on_node_change(change));
        Ok(Self { ctx, shared, event_dedup: EventDeduplicator::default() })
    }

    /// Runs the controller until it is cancelled. It then starts nothing new and waits for the work
    /// in flight.
    pub async fn run(self, cancel: CancellationToken) {
        cancel
            .run_until_cancelled(self.wait_for_initial_nodes())
            .await;
        let mut working = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                Some(()) = working.next(), if !working.is_empty() => {}
                name = self.shared.queue.get(), if working.len() < MAX_CONCURRENT_NODES => working.push(self.process(name)),
            }
        }
        while working.next().await.is_some() {}
    }

    /// Waits for the complete list of nodes, and until the last request of a previous leader's
    /// allocator can no longer take effect. It may still be in flight after a failover, and write a
    /// block that looks free here.
    async fn wait_for_initial_nodes(&self) {
        self.ctx.nodes.synced().await;
        let nodes = self.ctx.nodes.list();
        self.shared.allocator.lock().record_initial_nodes(&nodes);
        // A node is confirmed once it changes, because the request then fails. Wait for that as
        // long as the request may take effect.
        let confirmed = async {
            while !self.shared.allocator.lock().are_initial_nodes_confirmed() {
                self.shared.initial_nodes_confirmed.notified().await;
            }
        };
        let wait = tokio::time::timeout(LATE_REQUEST_LIMIT, confirmed);
        if wait.await.is_ok() {
            return;
        }
        // Read the other nodes from the API server until every read has succeeded.
        for failures in 1.. {
            let unconfirmed = self.shared.allocator.lock().unconfirmed_nodes();
            stream::iter(unconfirmed)
                .for_each_concurrent(MAX_CONCURRENT_NODES, |name| self.recheck_node(name))
                .await;
            if self.shared.allocator.lock().are_initial_nodes_confirmed() {
                return;
            }
            tokio::time::sleep(BACKOFF.delay(failures)).await;
        }
    }

    /// Reads a node that has not changed in the cache since the start, because the watch may not
    /// have delivered a write yet.
    async fn recheck_node(&self, name: Arc<str>) {
        match self.ctx.api.get_node(&name, &self.ctx.node_fields).await {
            Ok(fresh) => self
                .shared
                .with_allocator(|allocator| allocator.confirm_initial_node(&name, Some(&fresh))),
            Err(error) if error.is_not_found() => {
                self.shared
                    .with_allocator(|allocator| allocator.confirm_initial_node(&name, None));
            }
            Err(error) => {
                tracing::warn!(node = %name, error = chain(&error), "failed to read node, no pod CIDRs are allocated yet");
            }
        }
    }

    async fn process(&self, name: Arc<str>) {
        let queue = &self.shared.queue;
        let node = self.ctx.nodes.get(&name);
        let mut result = Ok(());
        match &node {
            Some(node) => result = self.sync(&name, node).await,
            None => self.event_dedup.clear(&name),
        }
        if let Err(error) = result
            && let Some(node) = node
        {
            let failures = queue.failed(&name);
            self.report(&node, &error, failures);
            let delay = error
                .prescribed_delay()
                .unwrap_or_else(|| BACKOFF.delay(failures));
            let attempt = AttemptRecord {
                failures,
                retry_at: Some(Instant::now() + delay),
                ..AttemptRecord::now("allocate pod CIDRs", error.cause(), chain(&error))
            };
            self.shared.failed.record(&name, attempt);
            queue.add_after(name.clone(), delay);
        } else {
            queue.forget(&name);
            self.shared.failed.clear(&name);
            // Check again later if the cache does not show the node's pod CIDRs yet.
            if let Some(wait) = self.cache_wait(&name) {
                queue.add_after(name.clone(), wait);
            }
        }
        queue.done(&name);
    }

    /// Checks the node's pod CIDRs, or allocates some if it has none.
    async fn sync(&self, name: &Arc<str>, node: &Arc<NodeView>) -> Result<(), AllocationError> {
        if !node.pod_cidrs.is_empty() {
            self.report_problems(node);
            return Ok(());
        }
        if self.cache_wait(name).is_some() {
            return Ok(());
        }
        // A node that is being deleted gets no blocks. Only an earlier request without a response
        // may have to be followed up.
        if node.deleting && !self.has_in_flight_patch(node) {
            return Ok(());
        }
        let result = self
            .ctx
            .controller_metrics
            .reconcile(names::NODE_IPAM, name, self.allocate_with_outcome(node))
            .await;
        // Free the proposed blocks, except those that a request in flight may still write.
        self.shared
            .with_allocator(|allocator| allocator.cancel(name, &node.uid));
        result
    }

    async fn allocate_with_outcome(
        &self,
        node: &Arc<NodeView>,
    ) -> (ReconcileOutcome, Result<(), AllocationError>) {
        record_reason(if node.deleting {
            "an earlier request is unanswered"
        } else {
            "node has no pod CIDRs"
        });
        let result = self.allocate(node).await;
        let outcome = match &result {
            Ok(()) => ReconcileOutcome::Done,
            Err(_) => ReconcileOutcome::Failed,
        };
        (outcome, result)
    }

    /// Returns the remaining time for the cache to show the pod CIDRs that the node is known to
    /// have; `None` if the cache does not lag.
    fn cache_wait(&self, name: &str) -> Option<Duration> {
        let mut allocator = self.shared.allocator.lock();
        let now = self.shared.started_at.elapsed();
        // Read the cache while holding the lock, so that the allocator cannot have processed a
        // later change.
        let node = self.ctx.nodes.get(name)?;
        if !node.pod_cidrs.is_empty() || node.deleting {
            return None;
        }
        allocator.record_missing_cidrs(name, &node.uid, now)
    }

    /// Logs and reports problems with the pod CIDRs of a node. Pod CIDRs cannot be changed, so
    /// their blocks stay taken.
    fn report_problems(&self, node: &NodeView) {
        let problems = self.shared.allocator.lock().problems(&node.name);
        if problems.is_empty() {
            self.event_dedup.clear(&node.name);
            return;
        }
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let note = format!("{}; the blocks stay taken while the node exists", problems.join("; "));
        tracing::warn!(node = %node.name, problem = note, "node has an invalid pod CIDR");
        let note = Cause::PodCidrInvalid.with_next_step(&note);
        self.event_dedup
            .warn_once(&self.ctx.events, node, "InvalidPodCIDR", &note);
    }

    async fn allocate(&self, node: &Arc<NodeView>) -> Result<(), AllocationError> {
        let mut node = node.clone();
        let mut attempts = 0;
        let mut must_read_first = self.has_in_flight_patch(&node);
        loop {
            // Read the node if an earlier request may have changed it.
            if must_read_first {
                tokio::time::sleep(RETRY_DELAY.mul_f64(rand::random_range(1.0..2.0))).await;
                match self.read(&node).await? {
                    Some(fresh) => node = fresh,
                    None => return Ok(()),
                }
            }
            // Choose blocks and write them.
            let cidrs = match self
                .shared
                .with_allocator(|allocator| allocator.decide(&node.name, &node.uid))
            {
                AllocationDecision::Write(cidrs) => cidrs,
                AllocationDecision::Full => return Err(AllocationError::Full),
                AllocationDecision::Nothing => return Ok(()),
            };
            match self.write(&node, &cidrs).await {
                PatchOutcome::Applied | PatchOutcome::NotNeeded => return Ok(()),
                PatchOutcome::Rejected(error) => return Err(error.into()),
                PatchOutcome::Retry(error) => {
                    attempts += 1;
                    if attempts >= MAX_ATTEMPTS {
                        return Err(error.into());
                    }
                    must_read_first = true;
                }
            }
        }
    }

    fn has_in_flight_patch(&self, node: &NodeView) -> bool {
        self.shared
            .allocator
            .lock()
            .has_in_flight_patch(&node.name, &node.uid)
    }

    /// Writes pod CIDRs to a node, and reports the outcome to the allocator.
    async fn write(&self, node: &NodeView, cidrs: &[IpNet]) -> PatchOutcome {
        let error = match apply::set_pod_cidrs(&self.ctx.api, node, cidrs).await {
            Ok(()) => {
                self.shared
                    .with_allocator(|allocator| allocator.patch_applied(&node.name, &node.uid));
                let cidrs: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
                tracing::info!(node = %node.name, pod_cidrs = cidrs.join(","), "pod CIDRs allocated to node");
                self.event_dedup.clear(&node.name);
                return PatchOutcome::Applied;
            }
            Err(error) => error,
        };
        match apply::classify_failure(&error) {
            PatchFailure::Gone => {
                self.shared
                    .with_allocator(|allocator| allocator.node_not_found(&node.name, &node.uid));
                PatchOutcome::NotNeeded
            }
            PatchFailure::Changed => PatchOutcome::Retry(error),
            PatchFailure::Unknown => {
                self.shared.with_allocator(|allocator| {
                    allocator.patch_unanswered(&node.name, &node.uid, &node.resource_version);
                });
                PatchOutcome::Retry(error)
            }
            PatchFailure::Rejected => PatchOutcome::Rejected(error),
        }
    }

    /// Reads a node from the API server; `None` if it no longer needs pod CIDRs.
    async fn read(&self, node: &NodeView) -> Result<Option<Arc<NodeView>>, ApiError> {
        match self
            .ctx
            .api
            .get_node(&node.name, &self.ctx.node_fields)
            .await
        {
            Ok(fresh) => {
                let other_nodes = self
                    .shared
                    .with_allocator(|allocator| allocator.node_read(&node.name, &node.uid, &fresh));
                self.shared.queue_all(other_nodes);
                if fresh.uid == node.uid && fresh.pod_cidrs.is_empty() && !fresh.deleting {
                    Ok(Some(Arc::new(fresh)))
                } else {
                    Ok(None)
                }
            }
            Err(error) if error.is_not_found() => {
                self.shared
                    .with_allocator(|allocator| allocator.node_not_found(&node.name, &node.uid));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Logs an error, and emits an event if its reason is another one than that of the last event.
    fn report(&self, node: &NodeView, error: &AllocationError, failures: u32) {
        let Some(reason) = error.event_reason(failures) else {
            return;
        };
        tracing::warn!(node = %node.name, reason, error = chain(error), failures, "no pod CIDRs allocated to node");
        let note = format!("Node {} status is now: {reason}", node.name);
        let note = error.cause().with_next_step(&note);
        self.event_dedup
            .emit_once(&self.ctx.events, node, EventType::Normal, reason, &note);
    }
}

/// The outcome of one attempt to write pod CIDRs.
enum PatchOutcome {
    Applied,
    NotNeeded,
    Retry(ApiError),
    Rejected(ApiError),
}

/// An error after which a node is retried.
#[derive(Debug, thiserror::Error)]
enum AllocationError {
    #[error("a cluster CIDR has no free block")]
    Full,
    #[error(transparent)]
    Api(#[from] ApiError),
}

impl AllocationError {
    /// Returns the event reason; `None` for an error that is neither logged nor reported.
    fn event_reason(&self, failures: u32) -> Option<&'static str> {
        match self {
            Self::Full => Some("CIDRNotAvailable"),
            Self::Api(error) => match error.kind() {
                ApiErrorKind::NotLeader | ApiErrorKind::Canceled => None,
                // Throttling usually affects all nodes at once and goes away by itself.
                ApiErrorKind::Throttled if failures < FAILURES_BEFORE_EVENT => None,
                _ => Some("CIDRAssignmentFailed"),
            },
        }
    }

    /// Returns the delay before a retry if the API server has named one.
    fn prescribed_delay(&self) -> Option<Duration> {
        match self {
            Self::Full => None,
            Self::Api(error) => error.retry_after(),
        }
    }
}
