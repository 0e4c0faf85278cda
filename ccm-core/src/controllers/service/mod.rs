//! Load balancers for Services (upstream's `service-lb-controller`).
//!
//! Only one worker syncs a Service at a time. A node change queues only the Services whose backends
//! really changed. The controller remembers what it last applied, so a sync without differences
//! makes no cloud call. In addition, each load balancer is compared with the cloud once per period.
//! A load balancer that the cloud is still creating occupies no worker.
//!
//! RBAC: `list` and `watch` on `services`, `patch` on `services/status`, `list` and `watch` on
//! `nodes`; with endpoints as backends `list` and `watch` on `endpointslices`.

mod backend_node_cache;
mod backend_nodes;
mod concurrency;
mod condition;
mod endpoint_slices;
mod explain;
pub(crate) mod metrics;
mod node_change_batch;
pub(crate) mod patches;
mod plan;
mod provider_calls;
mod sync;
mod sync_error;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

pub use self::endpoint_slices::EndpointSliceIndex;
use self::{
    backend_node_cache::BackendNodeCache, backend_nodes::Urgency, metrics::ServiceMetrics,
    node_change_batch::NodeChangeBatcher, plan::ServiceSyncState,
    provider_calls::LoadBalancerCalls, sync::SyncResult,
};
use super::ControllerContext;
use crate::{
    error::chain,
    k8s::{ServiceFields, ServiceView},
    provider::{BackendKind, LabelRequirement, Op, Retention, call_metrics::CloudMetrics},
    runtime::{
        cache::{Cache, Change},
        work_queue::WorkQueue,
    },
};

/// The delay before a retry if the API server did not confirm what the cache shows.
const UNCONFIRMED_RETRY: Duration = Duration::from_secs(5);

/// Settings of the service controller.
#[derive(Clone, Copy, Debug)]
pub struct ServiceControllerConfig {
    /// The number of Services synced at a time.
    pub workers: usize,
    /// The time between two drift checks of a load balancer, plus or minus up to a quarter
    /// (`--load-balancer-verify-period`).
    pub verify_period: Duration,
    /// True if the Services get our condition (`--service-conditions`). The cache must then keep
    /// it, see [`ServiceFields::own_condition`].
    pub conditions: bool,
}

/// The service controller. Must be created before its caches start, so that it sees every change.
pub struct ServiceController {
    ctx: ControllerContext,
    config: ServiceControllerConfig,
    services: Cache<ServiceView>,
    fields: ServiceFields,
    slices: Option<EndpointSliceIndex>,
    backend_nodes: BackendNodeCache,
    cloud: LoadBalancerCalls,
    /// The template for the `Op` of each provider call.
    op: Op,
    metrics: ServiceMetrics,
    queue: WorkQueue<Arc<str>>,
    /// The sync states of the Services that were synced and still exist, or whose load balancers
    /// still exist.
    states: Arc<Mutex<HashMap<Arc<str>, ServiceSyncState>>>,
    node_changes: Arc<NodeChanges>,
    node_sync: Mutex<NodeSyncPass>,
    started_at: Instant,
}

/// The Services whose load balancers must not be deleted, as far as this process has observed them.
/// Nothing else remembers the wish of a Service whose finalizer was removed by hand.
#[derive(Clone, Default)]
pub(crate) struct RetainingServices {
    states: Arc<Mutex<HashMap<Arc<str>, ServiceSyncState>>>,
}

impl RetainingServices {
    /// Returns true if the Service has a load balancer that must not be deleted. Without a UID it
    /// may be any Service of the name.
    pub(crate) fn contains(&self, namespace: &str, name: &str, uid: Option<&str>) -> bool {
        self.states
            .lock()
            .get(&*format!("{namespace}/{name}"))
            .is_some_and(|state| {
                state.may_exist_in_cloud
                    && state.retention != Retention::Delete
                    && uid.is_none_or(|uid| *uid == *state.uid)
            })
    }
}

/// Node changes that are not applied to the load balancers yet.
struct NodeChanges {
    batcher: Mutex<NodeChangeBatcher>,
    wake: Notify,
    started_at: Instant,
}

/// The progress of the Services that node changes have queued.
#[derive(Default)]
struct NodeSyncPass {
    started_at: Option<Instant>,
    /// The Services that are not synced yet, each with the time of the node change.
    remaining: HashMap<Arc<str>, Duration>,
}

/// A Service with nodes as backends.
struct ServiceBackends {
    key: Arc<str>,
    /// The fingerprint of the backends that were last applied; `None` if it is uncertain.
    applied_backends: Option<u64>,
}

impl ServiceController {
    /// Creates the controller and subscribes it to the caches.
    ///
    /// `fields` must be the same as those of the cache `services`. `slices` is only needed if the
    /// provider supports endpoints as backends.
    ///
    /// # Errors
    /// Returns an error if the metrics are already registered.
    pub fn new(
        ctx: ControllerContext,
        config: ServiceControllerConfig,
        services: Cache<ServiceView>,
        fields: ServiceFields,
        slices: Option<EndpointSliceIndex>,
        op: Op,
        cloud: CloudMetrics,
    ) -> prometheus::Result<Self> {
        let metrics = ServiceMetrics::register(&ctx.metrics)?;
        let queue = WorkQueue::named("service", &ctx.controller_metrics.queues);
        let started_at = Instant::now();
        // Queue a Service whenever it or its EndpointSlices change. Our own writes queue it too,
        // but a sync without differences sends no request.
        let sender = queue.clone();
        services.on_change(move |change: &Change<ServiceView>| match change {
            Change::Added(service)
            | Change::Deleted(service)
            | Change::Updated { new: service, .. } => {
                sender.add(service.key().into());
            }
        });
        if let Some(slices) = &slices {
            slices.watch(&services, queue.clone());
        }
        // Node changes are batched first; `sync_node_changes` queues the Services that they affect.
        let node_changes =
            Arc::new(NodeChanges { batcher: Mutex::default(), wake: Notify::new(), started_at });
        let backend_nodes = BackendNodeCache::new(ctx.clone());
        let recorder = node_changes.clone();
        backend_nodes.watch_nodes(move |urgency| recorder.record(urgency));
        let cloud = LoadBalancerCalls::new(ctx.provider.clone(), cloud, config.workers);
        Ok(Self {
            ctx,
            config,
            services,
            fields,
            slices,
            backend_nodes,
            cloud,
            op,
            metrics,
            queue,
            states: Arc::default(),
            node_changes,
            node_sync: Mutex::default(),
            started_at,
        })
    }

    /// Returns the Services whose load balancers must not be deleted, while the controller runs.
    pub(crate) fn retaining_services(&self) -> RetainingServices {
        RetainingServices { states: self.states.clone() }
    }

    /// Runs the controller until it is cancelled.
    ///
    /// It then starts nothing new and abandons calls that only read, but waits for the responses to
    /// requests that change something.
    pub async fn run(self, cancel: CancellationToken) {
        let synced = async {
            self.services.synced().await;
            self.ctx.nodes.synced().await;
        };
        cancel.run_until_cancelled(synced).await;
        // Every set of backends is built after this point and includes the earlier node changes.
        self.node_changes.batcher.lock().start_pass(self.now());
        tokio::join!(self.work(&cancel), self.sync_node_changes(&cancel));
    }

    /// Syncs keys from the queue until `cancel`. One task runs several syncs concurrently, because
    /// a sync mostly waits for responses.
    async fn work(&self, cancel: &CancellationToken) {
        let mut working = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                Some(()) = working.next(), if !working.is_empty() => {}
                key = self.queue.get(), if working.len() < self.cloud.concurrency() => working.push(self.process(key)),
            }
        }
        while working.next().await.is_some() {}
    }

    async fn process(&self, key: Arc<str>) {
        let state = self.states.lock().get(&key).cloned().unwrap_or_default();
        let (state, sync_result) = self.sync(&key, state).await;
        match sync_result {
            SyncResult::Forget => {
                self.states.lock().remove(&key);
                self.queue.forget(&key);
            }
            SyncResult::RequeueAt { at, resets_failures } => {
                self.states.lock().insert(key.clone(), state);
                if resets_failures {
                    // This keeps a delayed requeue, which a change during the sync may have added.
                    self.queue.succeeded(&key);
                }
                if let Some(at) = at {
                    self.queue
                        .add_after(key.clone(), at.saturating_sub(self.now()));
                }
            }
            SyncResult::RequeueNow => {
                self.states.lock().insert(key.clone(), state);
                self.queue.add(key.clone());
            }
        }
        self.finish_node_sync(&key);
        self.queue.done(&key);
    }

    /// Queues the Services that node changes affect, whenever a pass is due.
    async fn sync_node_changes(&self, cancel: &CancellationToken) {
        while !cancel.is_cancelled() {
            let woken = self.node_changes.wake.notified();
            let due = self.node_changes.batcher.lock().due();
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(self.started_at + due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = cancel.cancelled() => {}
                () = woken => {}
                () = wait => self.queue_changed_backends().await,
            }
        }
    }

    /// Queues the Services whose backends differ from those that were last applied. Sends no
    /// request, unless most nodes seem to be gone.
    async fn queue_changed_backends(&self) {
        let first_change_at = self.node_changes.batcher.lock().start_pass(self.now());
        // Sync the Services again that are being synced now. They may be given older backends, and
        // a Service that is synced for the first time has no sync state yet.
        for key in self.queue.in_progress() {
            self.queue.add(key);
        }
        // Find the other Services whose backends changed.
        let services_by_requirements = self.services_by_requirements();
        let mut changed = HashSet::new();
        for (requirements, services) in &services_by_requirements {
            let set = match self.backend_nodes.get(requirements).await {
                Ok(set) => set,
                Err(error) => {
                    tracing::error!(
                        error = chain(&error),
                        "backends of load balancers are not changed"
                    );
                    self.node_changes
                        .batcher
                        .lock()
                        .schedule_by(self.now() + UNCONFIRMED_RETRY);
                    continue;
                }
            };
            for service in services {
                if service.applied_backends != Some(set.fingerprint) {
                    changed.insert(service.key.clone());
                }
            }
        }
        self.backend_nodes
            .retain(|requirements| services_by_requirements.contains_key(requirements));
        // Queue them, and measure how long it takes until all of them are synced.
        let mut pass = self.node_sync.lock();
        if !changed.is_empty() {
            pass.started_at.get_or_insert_with(Instant::now);
        }
        for key in changed {
            pass.remaining
                .entry(key.clone())
                .or_insert(first_change_at.unwrap_or_else(|| self.now()));
            self.queue.add(key);
        }
    }

    /// Groups the Services that have nodes as backends by the labels that these nodes must have.
    fn services_by_requirements(&self) -> HashMap<Vec<LabelRequirement>, Vec<ServiceBackends>> {
        let mut services: HashMap<_, Vec<ServiceBackends>> = HashMap::new();
        for (key, state) in &*self.states.lock() {
            let Some(BackendKind::Nodes(requirements)) = &state.backend_kind else {
                continue;
            };
            let applied_backends = state
                .last_applied
                .and_then(|applied| applied.backend_fingerprint);
            services
                .entry(requirements.clone())
                .or_default()
                .push(ServiceBackends { key: key.clone(), applied_backends });
        }
        services
    }

    /// Returns true while a pass over node changes is scheduled and has not queued this Service
    /// yet.
    ///
    /// Until then, a sync for another reason, such as the watch event of our own write, should not
    /// apply half of the node changes.
    fn is_node_sync_scheduled(&self, key: &str) -> bool {
        self.node_changes.batcher.lock().due().is_some()
            && !self.node_sync.lock().remaining.contains_key(key)
    }

    /// Records that a Service was synced. If it was the last one that a pass over node changes
    /// queued, records how long the pass took.
    fn finish_node_sync(&self, key: &str) {
        let mut pass = self.node_sync.lock();
        if pass.remaining.remove(key).is_some()
            && pass.remaining.is_empty()
            && let Some(started_at) = pass.started_at.take()
        {
            self.metrics
                .node_sync
                .observe(started_at.elapsed().as_secs_f64());
        }
    }

    /// Returns the time since the start of the controller.
    fn now(&self) -> Duration {
        self.started_at.elapsed()
    }
}

impl NodeChanges {
    fn record(&self, urgency: Urgency) {
        self.batcher
            .lock()
            .record(urgency, self.started_at.elapsed());
        self.wake.notify_one();
    }
}
