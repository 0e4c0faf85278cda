//! Initialises nodes and keeps their addresses and labels up to date (upstream's
//! `cloud-node-controller`).
//!
//! For a node with the uninitialized taint, the controller reads the instance from the cloud and
//! writes the addresses. Then it writes provider ID and labels and removes the taint. From then on,
//! it compares the node's addresses with those of the instance once per period. Nodes that the
//! provider does not claim are never changed.

pub(crate) mod apply;
mod dry_run;
mod explain;
pub(crate) mod metrics;
pub(crate) mod plan;
mod status_update;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::sync::CancellationToken;

use self::{
    apply::{InitializeOutcome, NodeWriteError},
    explain::NodeHistory,
    metrics::{NodeMetrics, NodeOperation, NodeOutcome},
};
use super::{ControllerContext, event_dedup::EventDeduplicator, route::NetworkConditions};
use crate::{
    config::controller_names as names,
    error::{caught, chain},
    k8s::NodeView,
    provider::{
        CloudError, CloudProvider, ErrorKind, EventType, InstanceBatcher, InstanceQuery,
        InstanceStatus, MetadataScope, NodeOwnership, PowerState,
    },
    runtime::{
        api::{ApiError, ApiErrorKind},
        cache::Change,
        events::ObjectRef,
        work_queue::{Backoff, WorkQueue},
    },
    telemetry::controller_metrics::{ReconcileOutcome as Reconciled, record_reason},
};

/// The maximum number of nodes synced at a time. It is large enough to fill the cloud's batches
/// when a thousand nodes appear together.
const MAX_CONCURRENT_NODES: usize = 512;
/// The minimum number of API writes that may be in flight, even if `--concurrent-node-syncs` is
/// lower. With upstream's default of one, a large cluster would start at one node per round trip.
const MIN_CONCURRENT_WRITES: usize = 16;
/// The back-off of a node that cannot be initialised yet. Upstream's grows to 1,000 s, and a node
/// whose instance becomes visible a second later then waits in vain.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    cap: Duration::from_secs(30),
};
/// The back-off after an error that only a person can fix, such as invalid input or an exceeded
/// quota. A change of the node is synced at once nevertheless.
const LONG_BACKOFF: Duration = Duration::from_secs(300);

/// The number of consecutive failures after which a transient error, such as an outage or
/// throttling, is reported as an event of the node.
const FAILURES_BEFORE_EVENT: u32 = 3;

/// Settings of the cloud-node controller.
#[derive(Clone, Debug)]
pub struct NodeControllerConfig {
    /// The maximum number of API writes in flight (`--concurrent-node-syncs`). Values below 16
    /// count as 16.
    pub concurrent_syncs: usize,
    /// The maximum number of API writes in flight for the periodic update
    /// (`--concurrent-node-status-updates`). Values below 16 count as 16.
    pub concurrent_status_updates: usize,
    /// The time between two comparisons of a node's addresses with those of its instance
    /// (`--node-status-update-frequency`).
    pub status_update_period: Duration,
    /// True to refresh additional labels together with the addresses (feature gate
    /// `CloudNodeAdditionalLabelsReconciliation`). Requires
    /// [`NodeFields::all_labels`](crate::k8s::NodeFields::all_labels).
    pub refresh_additional_labels: bool,
}

/// The cloud-node controller. It must be created before its caches start, so that it sees every
/// change.
pub struct NodeController {
    ctx: ControllerContext,
    config: NodeControllerConfig,
    instances: InstanceBatcher,
    metrics: NodeMetrics,
    queue: WorkQueue<Arc<str>>,
    write_permits: Semaphore,
    status_write_permits: Semaphore,
    event_dedup: EventDeduplicator,
    history: NodeHistory,
    network_conditions: Option<NetworkConditions>,
    started_at: Instant,
}

impl NodeController {
    /// Creates the controller and subscribes it to the node cache.
    ///
    /// # Errors
    /// Returns an error if the metrics are already registered.
    pub fn new(
        ctx: ControllerContext,
        config: NodeControllerConfig,
        instances: InstanceBatcher,
    ) -> prometheus::Result<Self> {
        let metrics = NodeMetrics::register(&ctx.metrics)?;
        let queue = WorkQueue::named("Nodes", &ctx.controller_metrics.queues);
        let sender = queue.clone();
        let provider = ctx.provider.clone();
        ctx.nodes.on_change(move |change: &Change<NodeView>| {
            if let Some(node) = node_to_sync(&*provider, change) {
                sender.add(node.name.clone());
            }
        });
        // Limit the writes in flight, separately for syncs and for the periodic update.
        let write_permits = Semaphore::new(config.concurrent_syncs.max(MIN_CONCURRENT_WRITES));
        let status_write_permits =
            Semaphore::new(config.concurrent_status_updates.max(MIN_CONCURRENT_WRITES));
        Ok(Self {
            ctx,
            config,
            instances,
            metrics,
            queue,
            write_permits,
            status_write_permits,
            event_dedup: EventDeduplicator::default(),
            history: NodeHistory::default(),
            network_conditions: None,
            started_at: Instant::now(),
        })
    }

    /// Makes the controller write the condition `NetworkUnavailable` in the same patch as the
    /// addresses, if the route controller of this process has already decided the condition.
    #[must_use]
    pub fn with_network_conditions(mut self, network: NetworkConditions) -> Self {
        self.network_conditions = Some(network);
        self
    }

    /// Runs the controller until it is cancelled. It then starts nothing new and waits for the work
    /// in flight.
    pub async fn run(self, cancel: CancellationToken) {
        tokio::join!(self.work(&cancel), self.update_periodically(&cancel));
    }

    /// Syncs nodes from the queue until `cancel`. One task syncs many nodes concurrently, because a
    /// sync mostly waits for responses.
    async fn work(&self, cancel: &CancellationToken) {
        // As upstream, wait for the complete list of nodes. However slowly it arrives, the existing
        // nodes then fill batches.
        cancel.run_until_cancelled(self.ctx.nodes.synced()).await;
        let mut working = FuturesUnordered::new();
        let mut accepts_more = true;
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                Some(()) = working.next(), if !working.is_empty() => {}
                name = self.queue.get(), if accepts_more => working.push(self.process(name)),
            }
            // Once full, accept new nodes only when half of the slots are free. If each finished
            // node were replaced at once, each new node would get a cloud call to itself.
            accepts_more = working.len() <= MAX_CONCURRENT_NODES / 2
                || (accepts_more && working.len() < MAX_CONCURRENT_NODES);
        }
        while working.next().await.is_some() {}
    }

    async fn process(&self, name: Arc<str>) {
        let node = self.ctx.nodes.get(&name).filter(|node| self.is_ours(node));
        let result = match &node {
            Some(node) => {
                self.ctx
                    .controller_metrics
                    .reconcile(names::CLOUD_NODE, &name, self.sync_with_outcome(node))
                    .await
            }
            None => Ok(()),
        };
        match result {
            Ok(()) => {
                self.queue.forget(&name);
                self.event_dedup.clear(&name);
                self.history.syncs.clear(&name);
                if node.is_none() {
                    self.history.forget(&name);
                }
            }
            // Requeue the node even if the process seems to be stopping, or it would be lost if the
            // process went on.
            Err(error) => {
                let failures = self.queue.failed(&name);
                let delay = self.retry_delay(&error, failures);
                if let Some(node) = node {
                    self.report_failure(&node, &error, failures);
                    self.history
                        .record_failure(&node, &error, failures, Instant::now() + delay);
                }
                self.queue.add_after(name.clone(), delay);
            }
        }
        self.queue.done(&name);
    }

    /// Returns the delay before the next attempt to sync a node.
    fn retry_delay(&self, error: &NodeSyncError, failures: u32) -> Duration {
        if let Some(delay) = error.prescribed_delay() {
            return delay;
        }
        match error {
            // Retry nodes that wait for the cloud at the same moments, so that they share a batch.
            NodeSyncError::InstanceNotFound | NodeSyncError::Cloud(_) => {
                BACKOFF.shared_delay(failures, self.started_at.elapsed())
            }
            // A write takes one request per node in any case, so spread the retries at random.
            NodeSyncError::Apply(_)
            | NodeSyncError::NodeChanged
            | NodeSyncError::Stopping
            | NodeSyncError::Panicked(_) => BACKOFF.delay(failures),
        }
    }

    fn is_ours(&self, node: &NodeView) -> bool {
        !node.deleting && self.ctx.provider.node_ownership(node) == NodeOwnership::Ours
    }

    async fn sync_with_outcome(
        &self,
        node: &Arc<NodeView>,
    ) -> (Reconciled, Result<(), NodeSyncError>) {
        record_reason(if node.is_uninitialized() {
            "node is not initialised"
        } else {
            "labels differ"
        });
        let result = self.sync(node).await;
        let outcome = match &result {
            Ok(()) => Reconciled::Done,
            Err(
                NodeSyncError::Stopping
                | NodeSyncError::NodeChanged
                | NodeSyncError::InstanceNotFound,
            ) => Reconciled::Pending,
            Err(_) => Reconciled::Failed,
        };
        (outcome, result)
    }

    /// Syncs one node. A panic, in the provider's code or ours, fails only this node.
    async fn sync(&self, node: &Arc<NodeView>) -> Result<(), NodeSyncError> {
        let work = async {
            if node.is_uninitialized() {
                self.initialize(node).await
            } else {
                self.reconcile_labels(node).await
            }
        };
        match caught(work).await {
            Ok(result) => result,
            Err(panic) => Err(NodeSyncError::Panicked(panic)),
        }
    }

    async fn initialize(&self, node: &Arc<NodeView>) -> Result<(), NodeSyncError> {
        let query = InstanceQuery {
            node: node.clone(),
            scope: MetadataScope::All,
            max_age: Duration::ZERO,
        };
        let meta = match self.instances.describe(query).await? {
            InstanceStatus::NotFound
            | InstanceStatus::Found { power_state: PowerState::Terminated, .. } => {
                return Err(NodeSyncError::InstanceNotFound);
            }
            InstanceStatus::Found { meta, .. } => meta,
        };
        // Write everything, and remove the taint.
        let outcome = apply::initialize(
            &self.ctx.api,
            &self.ctx.node_fields,
            &self.write_permits,
            self.network_conditions.as_ref(),
            node,
            &meta,
        )
        .await?;
        let InitializeOutcome::Done(dropped) = outcome else {
            return Ok(());
        };
        for label in &dropped {
            tracing::warn!(node = %node.name, label = %label.key, reason = label.reason.as_str(), "label from the cloud not set");
        }
        self.history.record_dropped_labels(&node.name, dropped);
        // Report the success.
        let age = self
            .ctx
            .clock
            .now()
            .duration_since(node.created)
            .as_secs_f64()
            .max(0.0);
        self.metrics.taint_removal.observe(age);
        self.metrics.initial_sync.observe(age);
        self.metrics
            .count(NodeOperation::Initialize, NodeOutcome::Changed);
        tracing::info!(node = %node.name, provider_id = meta.provider_id.as_deref(), zone = meta.zone.as_deref(), "node initialised");
        self.ctx.events.event(
            &ObjectRef::node(node.name.clone(), &*node.uid),
            EventType::Normal,
            "Synced",
            "Node synced successfully",
        );
        Ok(())
    }

    /// Copies the values of beta labels to the stable labels.
    async fn reconcile_labels(&self, node: &NodeView) -> Result<(), NodeSyncError> {
        let copies = plan::labels::reconciled_labels(node);
        if copies.is_empty() {
            return Ok(());
        }
        let _permit = self.write_permits.acquire().await;
        match apply::patch_label_copies(&self.ctx.api, node, copies).await {
            Ok(()) => self
                .metrics
                .count(NodeOperation::Labels, NodeOutcome::Changed),
            Err(error) if error.is_not_found() => {}
            // Another client changed the node. The watch delivers the change before the next
            // attempt.
            Err(error) if error.is_conflict() => return Err(NodeSyncError::NodeChanged),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Logs and counts a failure, and emits an event if the reason differs from that of the last
    /// event.
    fn report_failure(&self, node: &NodeView, error: &NodeSyncError, failures: u32) {
        let Some(reason) = error.event_reason() else {
            return;
        };
        let operation = if node.is_uninitialized() {
            NodeOperation::Initialize
        } else {
            NodeOperation::Labels
        };
        self.metrics.count(operation, NodeOutcome::Failed);
        let error_text = error.text(node);
        tracing::warn!(node = %node.name, reason, error = error_text, failures, work = ?operation, "node not synced");
        // A transient error usually affects all nodes at once, so do not emit an event for each of
        // them right away.
        if error.is_transient() && failures < FAILURES_BEFORE_EVENT {
            return;
        }
        let mut note = error_text;
        if let Some(cause) = error.cause() {
            note = cause.with_next_step(&note);
        }
        self.event_dedup
            .warn_once(&self.ctx.events, node, reason, &note);
    }
}

/// Returns the node to sync after a change of the cache, if there is one.
fn node_to_sync<'a>(
    provider: &dyn CloudProvider,
    change: &'a Change<NodeView>,
) -> Option<&'a NodeView> {
    let (old, new) = match change {
        Change::Added(node) => (None, node),
        Change::Updated { old, new } => (Some(old), new),
        // A last sync clears the node's back-off and its last event.
        Change::Deleted(node) => return Some(node),
    };
    if !needs_work(new) || provider.node_ownership(new) != NodeOwnership::Ours {
        return None;
    }
    // Skip an update that changes nothing that matters.
    if let Some(old) = old
        && !needs_sync_after(old, new)
        && provider.node_ownership(old) == NodeOwnership::Ours
    {
        return None;
    }
    Some(new)
}

/// Returns true if a sync may have something to do for the node.
fn needs_work(node: &NodeView) -> bool {
    !node.deleting && (node.is_uninitialized() || !plan::labels::reconciled_labels(node).is_empty())
}

/// Returns true if an update may change the result of a sync.
///
/// Heartbeats and our own writes do not. If they queued the node, they would bypass its back-off,
/// as they do upstream.
fn needs_sync_after(old: &NodeView, new: &NodeView) -> bool {
    old.uid != new.uid
        || old.is_uninitialized() != new.is_uninitialized()
        || old.provider_id != new.provider_id
        || old.labels != new.labels
        || old.annotations != new.annotations
        || old.system_uuid != new.system_uuid
}

/// An error after which a node is retried.
#[derive(Debug, thiserror::Error)]
enum NodeSyncError {
    #[error("the process is stopping")]
    Stopping,
    #[error("the cloud does not know its instance (yet)")]
    InstanceNotFound,
    #[error("the node changed meanwhile")]
    NodeChanged,
    #[error("the sync panicked: {0}")]
    Panicked(String),
    #[error(transparent)]
    Cloud(CloudError),
    #[error(transparent)]
    Apply(#[from] NodeWriteError),
}

impl From<CloudError> for NodeSyncError {
    fn from(error: CloudError) -> Self {
        match error.kind() {
            ErrorKind::Canceled | ErrorKind::NotLeader => Self::Stopping,
            ErrorKind::NotFound => Self::InstanceNotFound,
            _ => Self::Cloud(error),
        }
    }
}

impl From<ApiError> for NodeSyncError {
    fn from(error: ApiError) -> Self {
        Self::Apply(error.into())
    }
}

impl NodeSyncError {
    /// Returns the delay before a retry if it depends only on the error, not on earlier failures.
    fn prescribed_delay(&self) -> Option<Duration> {
        match self {
            Self::Cloud(error) => match error.kind() {
                ErrorKind::InvalidInput | ErrorKind::QuotaExceeded => {
                    Some(error.retry_after().unwrap_or(LONG_BACKOFF))
                }
                _ => error.retry_after(),
            },
            Self::Apply(NodeWriteError::Api(error)) => error.retry_after(),
            _ => None,
        }
    }

    /// Returns the event reason; `None` for an error that is neither logged nor reported.
    fn event_reason(&self) -> Option<&'static str> {
        match self {
            Self::Stopping | Self::NodeChanged | Self::Apply(NodeWriteError::NodeReplaced) => None,
            Self::InstanceNotFound => Some("InstanceNotFound"),
            Self::Cloud(error) => Some(error.reason().unwrap_or(match error.kind() {
                ErrorKind::InvalidInput => "InvalidInstanceReference",
                ErrorKind::Denied => "CloudAccessDenied",
                ErrorKind::Throttled => "CloudThrottled",
                _ => "CloudError",
            })),
            Self::Apply(NodeWriteError::Plan(plan::InitializationError::Address { .. })) => {
                Some("InvalidNodeIP")
            }
            Self::Apply(NodeWriteError::Plan(plan::InitializationError::NoProviderId(_))) => {
                Some("MissingProviderID")
            }
            Self::Panicked(_) => Some("NodeSyncFailed"),
            Self::Apply(NodeWriteError::Api(error)) => match error.kind() {
                ApiErrorKind::NotLeader | ApiErrorKind::Canceled => None,
                _ => Some("NodeUpdateFailed"),
            },
        }
    }

    /// Returns the text of the error, which names the node or its instance.
    fn text(&self, node: &NodeView) -> String {
        match self {
            Self::InstanceNotFound => match &node.provider_id {
                Some(id) => {
                    format!("the cloud does not know an instance {id} for node {} yet", node.name)
                }
                None => format!("the cloud does not know an instance for node {} yet", node.name),
            },
            other => chain(other),
        }
    }

    /// Returns true if the error is probably not specific to the node and may go away soon.
    fn is_transient(&self) -> bool {
        match self {
            Self::Cloud(error) => {
                matches!(
                    error.kind(),
                    ErrorKind::Transient | ErrorKind::Throttled | ErrorKind::Conflict
                )
            }
            Self::Apply(NodeWriteError::Api(error)) => {
                !matches!(error.kind(), ApiErrorKind::Forbidden | ApiErrorKind::Invalid(_))
            }
            _ => false,
        }
    }
}
