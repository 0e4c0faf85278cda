//! Load balancers for Services (upstream's `service-lb-controller`).
//!
//! Each Service is owned by one worker at a time; a change of nodes only puts Services in line, those whose backends
//! really changed. What was last applied is remembered, so that what does not differ costs no cloud call; once per period
//! each balancer is compared with the cloud all the same. A balancer that the cloud is still making holds no worker.
//!
//! RBAC: `list` and `watch` on `services`, `patch` on `services/status`, `list` and `watch` on `nodes`; with endpoints
//! as backends `list` and `watch` on `endpointslices`.

mod cloud;
mod lanes;
pub(crate) mod metrics;
mod node_set;
mod nodes;
mod pace;
mod plan;
mod slices;
mod sync;
mod trouble;
pub(crate) mod writes;

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

pub use self::slices::Slices;
use self::{
    cloud::Cloud,
    metrics::ServiceMetrics,
    node_set::Urgency,
    nodes::NodeSets,
    pace::Pacer,
    plan::{Applied, Known},
    sync::Next,
};
use super::ControllerContext;
use crate::{
    error::chain,
    k8s::{ServiceFields, ServiceView},
    provider::{Backends, LabelRequirement, Op},
    runtime::{
        cache::{Cache, Change},
        queue::WorkQueue,
    },
    telemetry::metrics::CloudMetrics,
};

/// Services worked on at a time when nothing was wished: upstream's default of one makes each new balancer wait for every
/// other (kubernetes-sigs/cloud-provider-azure#5909).
const DEFAULT_WORKERS: usize = 8;
/// Pause before the balancers are looked at again when the nodes were in doubt.
const DOUBT_PAUSE: Duration = Duration::from_secs(5);

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
    slices: Option<Slices>,
    sets: NodeSets,
    cloud: Cloud,
    /// Template of the operations of provider calls.
    op: Op,
    metrics: ServiceMetrics,
    queue: WorkQueue<Arc<str>>,
    /// What is known of each Service that was looked at and is still there, or whose balancer is.
    known: Mutex<HashMap<Arc<str>, Known>>,
    news: Arc<News>,
    pass: Mutex<Pass>,
    began: Instant,
}

/// Changes of nodes that balancers should see.
struct News {
    pacer: Mutex<Pacer>,
    wake: Notify,
    began: Instant,
}

/// What the last pass over the balancers put in line and is not done yet, with the time of the change.
#[derive(Default)]
struct Pass {
    began: Option<Instant>,
    left: HashMap<Arc<str>, Duration>,
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
        slices: Option<Slices>,
        op: Op,
        cloud: CloudMetrics,
    ) -> prometheus::Result<Self> {
        let metrics = ServiceMetrics::register(&cx.metrics)?;
        let (queue, began) = (WorkQueue::named("service", &cx.shared.queues), Instant::now());
        let sender = queue.clone();
        services.on_change(move |change: &Change<ServiceView>| match change {
            // Also echoes of our own writes: looking costs nothing where nothing differs.
            Change::Added(service) | Change::Deleted(service) | Change::Updated { new: service, .. } => {
                sender.add(service.key().into());
            }
        });
        if let Some(slices) = &slices {
            slices.follow(&services, queue.clone());
        }
        let news = Arc::new(News { pacer: Mutex::default(), wake: Notify::new(), began });
        let sets = NodeSets::new(cx.clone());
        let listener = news.clone();
        sets.follow(move |urgency| listener.note(urgency));
        let cloud = Cloud::new(cx.provider.clone(), cloud, config.workers());
        let (known, pass) = (Mutex::default(), Mutex::default());
        Ok(Self { cx, config, services, fields, slices, sets, cloud, op, metrics, queue, known, news, pass, began })
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
        self.news.pacer.lock().pass(self.now());
        tokio::join!(self.work(&cancel), self.follow_nodes(&cancel));
    }

    /// Works on keys, many at a time, in one task: the work is waiting, not computing.
    async fn work(&self, cancel: &CancellationToken) {
        let mut working = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                Some(()) = working.next(), if !working.is_empty() => {}
                key = self.queue.get(), if working.len() < self.cloud.lanes() => working.push(self.process(key)),
            }
        }
        while working.next().await.is_some() {}
    }

    async fn process(&self, key: Arc<str>) {
        let known = self.known.lock().get(&key).cloned().unwrap_or_default();
        let (known, next) = self.sync(&key, known).await;
        match next {
            Next::Forget => {
                self.known.lock().remove(&key);
                self.queue.forget(&key);
            }
            Next::Rest { until, settled } => {
                self.known.lock().insert(key.clone(), known);
                if settled {
                    // Delays stay: one may be from a change that came while the key was worked on.
                    self.queue.succeeded(&key);
                }
                if let Some(until) = until {
                    self.queue.add_after(key.clone(), until.saturating_sub(self.now()));
                }
            }
            Next::Again => {
                self.known.lock().insert(key.clone(), known);
                self.queue.add(key.clone());
            }
        }
        self.passed(&key);
        self.queue.done(&key);
    }

    /// Brings changes of nodes to the balancers that they concern.
    async fn follow_nodes(&self, cancel: &CancellationToken) {
        while !cancel.is_cancelled() {
            let woken = self.news.wake.notified();
            let due = self.news.pacer.lock().due();
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(self.began + due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = cancel.cancelled() => {}
                () = woken => {}
                () = wait => self.look_at_all().await,
            }
        }
    }

    /// Puts those Services in line whose backends are not those that were last applied. Costs no request, unless most
    /// nodes seem to be gone.
    async fn look_at_all(&self) {
        let since = self.news.pacer.lock().pass(self.now());
        // What is in flight may end with older backends than it will say that it has, and is not known at all the first
        // time. To look at it again costs nothing.
        self.queue.owned().into_iter().for_each(|key| self.queue.add(key));
        let mut used: HashMap<Vec<LabelRequirement>, Vec<_>> = HashMap::new();
        for (key, known) in &*self.known.lock() {
            if let Some(Backends::Nodes(requirements)) = &known.takes {
                used.entry(requirements.clone()).or_default().push((key.clone(), known.applied));
            }
        }
        let mut changed = HashSet::new();
        for (requirements, services) in &used {
            match self.sets.get(requirements).await {
                Ok(set) => changed.extend(services.iter().filter_map(|(key, applied)| {
                    let current = applied.is_some_and(|applied: Applied| applied.backends == Some(set.fingerprint));
                    (!current).then(|| key.clone())
                })),
                Err(doubt) => {
                    tracing::error!(error = chain(&doubt), "backends of load balancers are not changed");
                    self.news.pacer.lock().again(self.now() + DOUBT_PAUSE);
                }
            }
        }
        self.sets.retain(|requirements| used.contains_key(requirements));
        let mut pass = self.pass.lock();
        if !changed.is_empty() {
            pass.began.get_or_insert_with(Instant::now);
        }
        for key in changed {
            pass.left.entry(key.clone()).or_insert(since.unwrap_or_else(|| self.now()));
            self.queue.add(key);
        }
    }

    /// Tells whether a pass is to come that this Service was not put in line by: what makes it be looked at before, an echo
    /// of our own write for instance, is no reason to bring it half of the changes.
    fn awaits_pass(&self, key: &str) -> bool {
        self.news.pacer.lock().due().is_some() && !self.pass.lock().left.contains_key(key)
    }

    /// Takes note that a Service was looked at after the last pass.
    fn passed(&self, key: &str) {
        let mut pass = self.pass.lock();
        if pass.left.remove(key).is_some()
            && pass.left.is_empty()
            && let Some(began) = pass.began.take()
        {
            self.metrics.node_sync.observe(began.elapsed().as_secs_f64());
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

impl News {
    fn note(&self, urgency: Urgency) {
        self.pacer.lock().note(urgency, self.began.elapsed());
        self.wake.notify_one();
    }
}
