//! Initialises nodes, keeps their addresses and labels (upstream's `cloud-node-controller`).
//!
//! A node with the uninitialized taint is looked up in the cloud, gets its addresses, then its provider ID and labels,
//! and loses the taint. Later its addresses are compared with the cloud's once per period. Nodes that the provider does
//! not claim are left alone.

pub(crate) mod apply;
mod dry_run;
pub(crate) mod metrics;
pub(crate) mod plan;
mod status_update;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::sync::CancellationToken;

use self::{
    apply::{InitializeOutcome, NodeWriteError},
    metrics::{NodeMetrics, NodeOperation, NodeOutcome},
};
use super::{ControllerContext, event_dedup::EventDeduplicator, route::NetworkConditions};
use crate::{
    config::controllers as names,
    error::{caught, chain},
    k8s::NodeView,
    provider::{
        CloudError, ErrorKind, EventType, InstanceBatcher, InstanceQuery, InstanceStatus, MetadataScope, NodeOwnership,
        PowerState,
    },
    runtime::{
        api::{ApiError, ApiErrorKind},
        cache::Change,
        events::ObjectRef,
        work_queue::{Backoff, WorkQueue},
    },
    telemetry::controllers::{ReconcileOutcome as Reconciled, record_reason},
};

/// Nodes worked on at a time: enough that a thousand that appear together fill the cloud's batches.
const MAX_NODES_AT_ONCE: usize = 512;
/// API writes in flight at least, whatever `--concurrent-node-syncs` says: upstream's default of one would make the
/// start of a large cluster wait for single round trips.
const MIN_WRITES_AT_ONCE: usize = 16;
/// Back-off of a node that cannot be initialised yet. Upstream's grows to 1,000 s, during which a node whose instance
/// became visible a second later waits (W8).
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), cap: Duration::from_secs(30) };
/// Back-off of a mistake that only a person can mend. A change of the node is looked at at once all the same.
const LONG_BACKOFF: Duration = Duration::from_secs(300);

/// Failures in a row before a trouble that may pass by itself (an outage, throttling) becomes an event of the node.
const FAILURES_BEFORE_EVENT: u32 = 3;

/// Settings of the cloud-node controller.
#[derive(Clone, Debug)]
pub struct NodeControllerConfig {
    /// `--concurrent-node-syncs`: API writes in flight, if more than 16.
    pub concurrent_syncs: usize,
    /// `--concurrent-node-status-updates`: API writes of the periodic update in flight, if more than 16.
    pub concurrent_status_updates: usize,
    /// `--node-status-update-frequency`: time between two comparisons of a node's addresses.
    pub status_update_period: Duration,
    /// Gate `CloudNodeAdditionalLabelsReconciliation`: refresh additional labels with the addresses. Needs
    /// [`NodeFields::all_labels`](crate::k8s::NodeFields::all_labels).
    pub refresh_additional_labels: bool,
}

/// The cloud-node controller. Built before its caches start, so that it sees every change.
pub struct NodeController {
    cx: ControllerContext,
    config: NodeControllerConfig,
    instances: InstanceBatcher,
    metrics: NodeMetrics,
    queue: WorkQueue<Arc<str>>,
    writes: Semaphore,
    status_writes: Semaphore,
    event_dedup: EventDeduplicator,
    network_conditions: Option<NetworkConditions>,
    started_at: Instant,
}

impl NodeController {
    /// Makes the controller and attaches it to the node cache.
    ///
    /// # Errors
    /// When its metrics are registered already.
    pub fn new(
        cx: ControllerContext,
        config: NodeControllerConfig,
        instances: InstanceBatcher,
    ) -> prometheus::Result<Self> {
        let metrics = NodeMetrics::register(&cx.metrics)?;
        let queue = WorkQueue::named("Nodes", &cx.controller_metrics.queues);
        let (sender, provider) = (queue.clone(), cx.provider.clone());
        cx.nodes.on_change(move |change: &Change<NodeView>| match change {
            Change::Added(node) if needs_work(node) && provider.node_ownership(node) == NodeOwnership::Ours => {
                sender.add(node.name.clone());
            }
            Change::Updated { old, new }
                if needs_work(new)
                    && provider.node_ownership(new) == NodeOwnership::Ours
                    && (needs_sync_after(old, new) || provider.node_ownership(old) != NodeOwnership::Ours) =>
            {
                sender.add(new.name.clone());
            }
            // Comes by once more, to be forgotten.
            Change::Deleted(node) => sender.add(node.name.clone()),
            Change::Added(_) | Change::Updated { .. } => {}
        });
        let writes = Semaphore::new(config.concurrent_syncs.max(MIN_WRITES_AT_ONCE));
        let status_writes = Semaphore::new(config.concurrent_status_updates.max(MIN_WRITES_AT_ONCE));
        let reports = EventDeduplicator::default();
        let (network, began) = (None, Instant::now());
        Ok(Self {
            cx,
            config,
            instances,
            metrics,
            queue,
            writes,
            status_writes,
            event_dedup: reports,
            network_conditions: network,
            started_at: began,
        })
    }

    /// Has condition `NetworkUnavailable` written along with addresses, where the route controller of this process has
    /// decided it by then.
    #[must_use]
    pub fn with_network_conditions(mut self, network: NetworkConditions) -> Self {
        self.network_conditions = Some(network);
        self
    }

    /// Runs until `cancel`; then begins nothing new and ends when what was begun has ended.
    pub async fn run(self, cancel: CancellationToken) {
        tokio::join!(self.work(&cancel), self.update_periodically(&cancel));
    }

    /// Works on keys, many at a time, in one task: the work is waiting, not computing.
    async fn work(&self, cancel: &CancellationToken) {
        // As upstream: not before the cache is complete. Nodes that are there at the start then fill batches, however slowly
        // the list arrived.
        cancel.run_until_cancelled(self.cx.nodes.synced()).await;
        let mut working = FuturesUnordered::new();
        let mut taking = true;
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                Some(()) = working.next(), if !working.is_empty() => {}
                name = self.queue.get(), if taking => working.push(self.process(name)),
            }
            // Once full, taken again in bulk: one node for each that is done would make a cloud call of each.
            taking = working.len() <= MAX_NODES_AT_ONCE / 2 || (taking && working.len() < MAX_NODES_AT_ONCE);
        }
        while working.next().await.is_some() {}
    }

    async fn process(&self, name: Arc<str>) {
        let node = self.cx.nodes.get(&name).filter(|node| self.is_ours(node));
        let result = match &node {
            Some(node) => {
                self.cx.controller_metrics.reconcile(names::CLOUD_NODE, &name, self.sync_with_outcome(node)).await
            }
            None => Ok(()),
        };
        match result {
            Ok(()) => {
                self.queue.forget(&name);
                self.event_dedup.clear(&name);
            }
            // Also when the process seems to be stopping: if it is not after all, the node is not forgotten.
            Err(error) => {
                let failures = self.queue.failed(&name);
                if let Some(node) = node {
                    self.report_failure(&node, &error, failures);
                }
                self.queue.add_after(name.clone(), error.delay().unwrap_or_else(|| self.backoff(&error, failures)));
            }
        }
        self.queue.done(&name);
    }

    /// Nodes that wait for the cloud come back together, because they are asked about together: chance would make one
    /// cloud call of each. Writes are one request each whenever they come, so they are spread.
    fn backoff(&self, error: &NodeSyncError, failures: u32) -> Duration {
        match error {
            NodeSyncError::Unknown | NodeSyncError::Cloud(_) => {
                BACKOFF.shared_delay(failures, self.started_at.elapsed())
            }
            NodeSyncError::Apply(_) | NodeSyncError::Race | NodeSyncError::Stopping | NodeSyncError::Panicked(_) => {
                BACKOFF.delay(failures)
            }
        }
    }

    fn is_ours(&self, node: &NodeView) -> bool {
        !node.deleting && self.cx.provider.node_ownership(node) == NodeOwnership::Ours
    }

    async fn sync_with_outcome(&self, node: &Arc<NodeView>) -> (Reconciled, Result<(), NodeSyncError>) {
        record_reason(if node.is_uninitialized() { "node is not initialised" } else { "labels differ" });
        let result = self.sync(node).await;
        let outcome = match &result {
            Ok(()) => Reconciled::Done,
            Err(NodeSyncError::Stopping | NodeSyncError::Race | NodeSyncError::Unknown) => Reconciled::Pending,
            Err(_) => Reconciled::Failed,
        };
        (outcome, result)
    }

    /// Does the work of one node. A panic in it, of the provider's code or ours, is this node's failure alone.
    async fn sync(&self, node: &Arc<NodeView>) -> Result<(), NodeSyncError> {
        let work = async {
            if node.is_uninitialized() { self.initialize(node).await } else { self.reconcile_labels(node).await }
        };
        caught(work).await.unwrap_or_else(|panic| Err(NodeSyncError::Panicked(panic)))
    }

    async fn initialize(&self, node: &Arc<NodeView>) -> Result<(), NodeSyncError> {
        let query = InstanceQuery { node: node.clone(), scope: MetadataScope::All, max_age: Duration::ZERO };
        let meta = match self.instances.describe(query).await? {
            InstanceStatus::NotFound | InstanceStatus::Found { power_state: PowerState::Terminated, .. } => {
                return Err(NodeSyncError::Unknown);
            }
            InstanceStatus::Found { meta, .. } => meta,
        };
        let applied = apply::initialize(
            &self.cx.api,
            &self.cx.node_fields,
            &self.writes,
            self.network_conditions.as_ref(),
            node,
            &meta,
        )
        .await?;
        let InitializeOutcome::Done(dropped) = applied else { return Ok(()) };
        for label in dropped {
            tracing::warn!(node = %node.name, label = %label.key, why = label.reason.as_str(), "label of the cloud not set");
        }
        let age = self.cx.clock.now().duration_since(node.created).as_secs_f64().max(0.0);
        self.metrics.taint_removal.observe(age);
        self.metrics.initial_sync.observe(age);
        self.metrics.count(NodeOperation::Initialize, NodeOutcome::Changed);
        tracing::info!(node = %node.name, provider_id = meta.provider_id.as_deref(), zone = meta.zone.as_deref(), "node initialised");
        self.cx.events.event(
            &ObjectRef::node(node.name.clone(), &*node.uid),
            EventType::Normal,
            "Synced",
            "Node synced successfully",
        );
        Ok(())
    }

    async fn reconcile_labels(&self, node: &NodeView) -> Result<(), NodeSyncError> {
        let copies = plan::labels::reconciled_labels(node);
        if copies.is_empty() {
            return Ok(());
        }
        let _permit = self.writes.acquire().await;
        match apply::patch_label_copies(&self.cx.api, node, copies).await {
            Ok(()) => self.metrics.count(NodeOperation::Labels, NodeOutcome::Changed),
            Err(error) if error.is_not_found() => {}
            // Somebody changed the node; by the next attempt the watch has brought it.
            Err(error) if error.is_conflict() => return Err(NodeSyncError::Race),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Logs a failure, and records an event when its reason is another than before.
    fn report_failure(&self, node: &NodeView, error: &NodeSyncError, failures: u32) {
        let Some(reason) = error.event_reason() else { return };
        let work = if node.is_uninitialized() { NodeOperation::Initialize } else { NodeOperation::Labels };
        self.metrics.count(work, NodeOutcome::Failed);
        let note = error.event_note(node);
        tracing::warn!(node = %node.name, reason, error = note, failures, ?work, "node not synced");
        // What often passes by itself concerns every node at once: not each of them is told about it at once.
        if error.is_transient() && failures < FAILURES_BEFORE_EVENT {
            return;
        }
        self.event_dedup.warn_once(&self.cx.events, node, reason, &note);
    }
}

/// Tells whether there may be anything to do for the node.
fn needs_work(node: &NodeView) -> bool {
    !node.deleting && (node.is_uninitialized() || !plan::labels::reconciled_labels(node).is_empty())
}

/// Tells whether an update changes what the controller would do. Heartbeats and our own writes do not, so they do not
/// shorten a back-off either (W8).
fn needs_sync_after(old: &NodeView, new: &NodeView) -> bool {
    old.uid != new.uid
        || old.is_uninitialized() != new.is_uninitialized()
        || old.provider_id != new.provider_id
        || old.labels != new.labels
        || old.annotations != new.annotations
        || old.system_uuid != new.system_uuid
}

/// Why a node is to be tried again.
#[derive(Debug, thiserror::Error)]
enum NodeSyncError {
    #[error("the process is stopping")]
    Stopping,
    #[error("the cloud does not know its instance (yet)")]
    Unknown,
    #[error("the node changed meanwhile")]
    Race,
    #[error("the work panicked: {0}")]
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
            ErrorKind::NotFound => Self::Unknown,
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
    /// Returns the delay that the error itself asks for.
    fn delay(&self) -> Option<Duration> {
        match self {
            Self::Cloud(error) => error.retry_after().or(match error.kind() {
                ErrorKind::InvalidInput | ErrorKind::QuotaExceeded => Some(LONG_BACKOFF),
                _ => None,
            }),
            Self::Apply(NodeWriteError::Api(error)) => error.retry_after(),
            _ => None,
        }
    }

    /// Returns the event reason, or `None` for what is nobody's business.
    fn event_reason(&self) -> Option<&'static str> {
        match self {
            Self::Stopping | Self::Race | Self::Apply(NodeWriteError::NodeReplaced) => None,
            Self::Unknown => Some("InstanceNotFound"),
            Self::Cloud(error) => Some(error.reason().unwrap_or(match error.kind() {
                ErrorKind::InvalidInput => "InvalidInstanceReference",
                ErrorKind::Denied => "CloudAccessDenied",
                ErrorKind::Throttled => "CloudThrottled",
                _ => "CloudError",
            })),
            Self::Apply(NodeWriteError::Plan(plan::InitializationError::Address { .. })) => Some("InvalidNodeIP"),
            Self::Apply(NodeWriteError::Plan(plan::InitializationError::NoProviderId(_))) => Some("MissingProviderID"),
            Self::Panicked(_) => Some("NodeSyncFailed"),
            Self::Apply(NodeWriteError::Api(error)) => match error.kind() {
                ApiErrorKind::NotLeader | ApiErrorKind::Canceled => None,
                _ => Some("NodeUpdateFailed"),
            },
        }
    }

    fn event_note(&self, node: &NodeView) -> String {
        match self {
            Self::Unknown => match &node.provider_id {
                Some(id) => format!("the cloud does not know an instance {id} for node {} yet", node.name),
                None => format!("the cloud does not know an instance for node {} yet", node.name),
            },
            other => chain(other),
        }
    }

    /// Tells whether the trouble is likely not the node's own and may be over soon.
    fn is_transient(&self) -> bool {
        match self {
            Self::Cloud(error) => {
                matches!(error.kind(), ErrorKind::Transient | ErrorKind::Throttled | ErrorKind::Conflict)
            }
            Self::Apply(NodeWriteError::Api(error)) => {
                !matches!(error.kind(), ApiErrorKind::Forbidden | ApiErrorKind::Invalid(_))
            }
            _ => false,
        }
    }
}
