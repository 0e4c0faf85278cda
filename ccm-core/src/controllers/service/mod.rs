//! Load balancers for Services (upstream's `service-lb-controller`).
//!
//! Each Service is owned by one worker at a time; a change of nodes only puts Services in line, those whose backends
//! really changed. What was last applied is remembered, so that what does not differ costs no cloud call; once per period
//! each balancer is compared with the cloud all the same. A balancer that the cloud is still making holds no worker.
//!
//! RBAC: `list` and `watch` on `services`, `patch` on `services/status`, `list` and `watch` on `nodes`; with endpoints
//! as backends `list` and `watch` on `endpointslices`.

mod backend_node_cache;
mod backend_nodes;
mod concurrency;
mod endpoint_slices;
mod error;
pub(crate) mod metrics;
mod node_change_batch;
pub(crate) mod patches;
mod plan;
mod provider_calls;
mod sync;

use std::{
    collections::{HashMap, HashSet},
    num::NonZeroUsize,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

pub use self::endpoint_slices::EndpointSliceIndex;
use self::{
    backend_node_cache::BackendNodeCache,
    backend_nodes::Urgency,
    metrics::ServiceMetrics,
    node_change_batch::NodeChangeBatcher,
    plan::{AppliedState, ServiceSyncState},
    provider_calls::LoadBalancerCalls,
    sync::SyncResult,
};
use super::ControllerContext;
use crate::{
    error::chain,
    k8s::{ServiceFields, ServiceView},
    provider::{BackendKind, LabelRequirement, Op, metrics::CloudMetrics},
    runtime::{
        cache::{Cache, Change},
        work_queue::WorkQueue,
    },
};

/// Services worked on at a time when nothing was wished: upstream's default of one makes each new balancer wait for every
/// other (kubernetes-sigs/cloud-provider-azure#5909).
const DEFAULT_WORKERS: usize = 8;
/// Pause before the balancers are looked at again when the nodes were in doubt.
const UNCONFIRMED_RETRY: Duration = Duration::from_secs(5);

/// Settings of the service controller.
#[derive(Clone, Copy, Debug)]
pub struct ServiceControllerConfig {
    /// `--concurrent-service-syncs`: Services worked on at a time. One, upstream's default, counts as no wish: then eight.
    pub concurrent_syncs: NonZeroUsize,
    /// `--load-balancer-verify-period`: time between two comparisons of a balancer with the cloud, give or take a quarter.
    pub verify_period: Duration,
}

impl ServiceControllerConfig {
    fn workers(&self) -> usize {
        match self.concurrent_syncs.get() {
            1 => DEFAULT_WORKERS,
            wished => wished,
        }
    }
}

/// The service controller. Built before its caches start, so that it sees every change.
pub struct ServiceController {
    cx: ControllerContext,
    config: ServiceControllerConfig,
    services: Cache<ServiceView>,
    fields: ServiceFields,
    slices: Option<EndpointSliceIndex>,
    backend_nodes: BackendNodeCache,
    cloud: LoadBalancerCalls,
    /// Template of the operations of provider calls.
    op: Op,
    metrics: ServiceMetrics,
    queue: WorkQueue<Arc<str>>,
    /// What is known of each Service that was looked at and is still there, or whose balancer is.
    states: Mutex<HashMap<Arc<str>, ServiceSyncState>>,
    node_changes: Arc<NodeChanges>,
    node_sync: Mutex<NodeSyncPass>,
    began: Instant,
}

/// Changes of nodes that balancers should see.
struct NodeChanges {
    batcher: Mutex<NodeChangeBatcher>,
    wake: Notify,
    began: Instant,
}

/// What the last pass over the balancers put in line and is not done yet, with the time of the change.
#[derive(Default)]
struct NodeSyncPass {
    started_at: Option<Instant>,
    remaining: HashMap<Arc<str>, Duration>,
}

impl ServiceController {
    /// Makes the controller and attaches it to the caches. `fields` are those of the cache of Services.
    ///
    /// # Errors
    /// When its metrics are registered already.
    pub fn new(
        cx: ControllerContext,
        config: ServiceControllerConfig,
        services: Cache<ServiceView>,
        fields: ServiceFields,
        slices: Option<EndpointSliceIndex>,
        op: Op,
        cloud: CloudMetrics,
    ) -> prometheus::Result<Self> {
        let metrics = ServiceMetrics::register(&cx.metrics)?;
        let (queue, began) = (WorkQueue::named("service", &cx.controller_metrics.queues), Instant::now());
        let sender = queue.clone();
        services.on_change(move |change: &Change<ServiceView>| match change {
            // Also echoes of our own writes: looking costs nothing where nothing differs.
            Change::Added(service) | Change::Deleted(service) | Change::Updated { new: service, .. } => {
                sender.add(service.key().into());
            }
        });
        if let Some(slices) = &slices {
            slices.watch(&services, queue.clone());
        }
        let news = Arc::new(NodeChanges { batcher: Mutex::default(), wake: Notify::new(), began });
        let sets = BackendNodeCache::new(cx.clone());
        let listener = news.clone();
        sets.watch_nodes(move |urgency| listener.record(urgency));
        let cloud = LoadBalancerCalls::new(cx.provider.clone(), cloud, config.workers());
        let (known, pass) = (Mutex::default(), Mutex::default());
        Ok(Self {
            cx,
            config,
            services,
            fields,
            slices,
            backend_nodes: sets,
            cloud,
            op,
            metrics,
            queue,
            states: known,
            node_changes: news,
            node_sync: pass,
            began,
        })
    }

    /// Runs until `cancel`; then begins nothing new, gives up what only asks, and ends when the changes that were requested
    /// have their answers.
    pub async fn run(self, cancel: CancellationToken) {
        let synced = async {
            self.services.synced().await;
            self.cx.nodes.synced().await;
        };
        cancel.run_until_cancelled(synced).await;
        // Whatever came until now is in the sets that are made from now on.
        self.node_changes.batcher.lock().start_pass(self.now());
        tokio::join!(self.work(&cancel), self.sync_node_changes(&cancel));
    }

    /// Works on keys, many at a time, in one task: the work is waiting, not computing.
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
        let known = self.states.lock().get(&key).cloned().unwrap_or_default();
        let (known, next) = self.sync(&key, known).await;
        match next {
            SyncResult::Forget => {
                self.states.lock().remove(&key);
                self.queue.forget(&key);
            }
            SyncResult::RequeueAt { until, resets_failures: settled } => {
                self.states.lock().insert(key.clone(), known);
                if settled {
                    // Delays stay: one may be from a change that came while the key was worked on.
                    self.queue.succeeded(&key);
                }
                if let Some(until) = until {
                    self.queue.add_after(key.clone(), until.saturating_sub(self.now()));
                }
            }
            SyncResult::RequeueNow => {
                self.states.lock().insert(key.clone(), known);
                self.queue.add(key.clone());
            }
        }
        self.finish_node_sync(&key);
        self.queue.done(&key);
    }

    /// Brings changes of nodes to the balancers that they concern.
    async fn sync_node_changes(&self, cancel: &CancellationToken) {
        while !cancel.is_cancelled() {
            let woken = self.node_changes.wake.notified();
            let due = self.node_changes.batcher.lock().due();
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(self.began + due).await,
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

    /// Puts those Services in line whose backends are not those that were last applied. Costs no request, unless most
    /// nodes seem to be gone.
    async fn queue_changed_backends(&self) {
        let since = self.node_changes.batcher.lock().start_pass(self.now());
        // What is in flight may end with older backends than it will say that it has, and is not known at all the first
        // time. To look at it again costs nothing.
        self.queue.in_progress().into_iter().for_each(|key| self.queue.add(key));
        let mut used: HashMap<Vec<LabelRequirement>, Vec<_>> = HashMap::new();
        for (key, known) in &*self.states.lock() {
            if let Some(BackendKind::Nodes(requirements)) = &known.backend_kind {
                used.entry(requirements.clone()).or_default().push((key.clone(), known.applied));
            }
        }
        let mut changed = HashSet::new();
        for (requirements, services) in &used {
            match self.backend_nodes.get(requirements).await {
                Ok(set) => changed.extend(services.iter().filter_map(|(key, applied)| {
                    let current = applied
                        .is_some_and(|applied: AppliedState| applied.backend_fingerprint == Some(set.fingerprint));
                    (!current).then(|| key.clone())
                })),
                Err(doubt) => {
                    tracing::error!(error = chain(&doubt), "backends of load balancers are not changed");
                    self.node_changes.batcher.lock().schedule_by(self.now() + UNCONFIRMED_RETRY);
                }
            }
        }
        self.backend_nodes.retain(|requirements| used.contains_key(requirements));
        let mut pass = self.node_sync.lock();
        if !changed.is_empty() {
            pass.started_at.get_or_insert_with(Instant::now);
        }
        for key in changed {
            pass.remaining.entry(key.clone()).or_insert(since.unwrap_or_else(|| self.now()));
            self.queue.add(key);
        }
    }

    /// Tells whether a pass is to come that this Service was not put in line by: what makes it be looked at before, an echo
    /// of our own write for instance, is no reason to bring it half of the changes.
    fn node_sync_scheduled(&self, key: &str) -> bool {
        self.node_changes.batcher.lock().due().is_some() && !self.node_sync.lock().remaining.contains_key(key)
    }

    /// Takes note that a Service was looked at after the last pass.
    fn finish_node_sync(&self, key: &str) {
        let mut pass = self.node_sync.lock();
        if pass.remaining.remove(key).is_some()
            && pass.remaining.is_empty()
            && let Some(began) = pass.started_at.take()
        {
            self.metrics.node_sync.observe(began.elapsed().as_secs_f64());
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

impl NodeChanges {
    fn record(&self, urgency: Urgency) {
        self.batcher.lock().record(urgency, self.began.elapsed());
        self.wake.notify_one();
    }
}
