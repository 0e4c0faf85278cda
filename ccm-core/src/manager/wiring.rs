//! What the controllers of one term of leadership share, and how each is put together.
//!
//! Every controller has a file here that adds it; the manager starts what was added.

use std::{future::Future, sync::Arc, time::Duration};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, Either},
    stream::FuturesUnordered,
};
use tokio_util::sync::CancellationToken;

use super::{
    Manager, ManagerError,
    election::WriteGates,
    named_task::{NamedTask, infallible},
    telemetry::Telemetry,
};
use crate::{
    config::{self, leader_migration::ControllerLock},
    controllers::{
        ControllerContext, node::NodeController, node_ipam::NodeIpamController,
        node_lifecycle::NodeLifecycleController, route::RouteController, service::ServiceController,
    },
    k8s::{NodeView, well_known as wk},
    provider::{Op, ProviderContext, metrics::CloudMetrics},
    runtime::{
        api::{ApiClient, ApiClientOptions, WritesInFlight},
        cache::Cache,
        encoding::CachedObject,
        events::EventRecorder,
        reflector::{CacheMetrics, FirstSyncTimedOut, Reflector, ReflectorOptions},
        service_account::{self, ServiceAccountTokens},
        shadow::DryRun,
        tasks::Tasks,
    },
};

/// How long what can do without a cache waits for it.
const OPTIONAL_CACHE_WAIT: Duration = Duration::from_secs(5);

/// A controller that is put together.
pub(super) trait Controller: Sized + Send + 'static {
    /// Runs it until `cancel`.
    fn run(self, cancel: CancellationToken) -> BoxFuture<'static, ()>;

    /// Has it say what it would do, and do nothing. What differs is looked at again after `settle`.
    fn dry_run(self, settle: Duration) -> Box<dyn DryRun>;
}

macro_rules! controllers {
    ($($controller:ty: $dry_run:expr;)+) => {$(
        impl Controller for $controller {
            fn run(self, cancel: CancellationToken) -> BoxFuture<'static, ()> {
                Self::run(self, cancel).boxed()
            }

            fn dry_run(self, settle: Duration) -> Box<dyn DryRun> {
                let dry_run: fn(Self, Duration) -> Box<dyn DryRun> = $dry_run;
                dry_run(self, settle)
            }
        }
    )+};
}

controllers! {
    NodeController: Self::dry_run;
    NodeLifecycleController: |controller, _| controller.dry_run();
    RouteController: |controller, _| controller.dry_run();
    ServiceController: Self::dry_run;
    NodeIpamController: |controller, _| controller.dry_run();
}

/// What the controllers are put together for.
#[derive(Clone, Copy, Debug)]
pub(super) enum RunMode {
    /// To do their work.
    Lead,
    /// To say what they would do.
    DryRun {
        /// How long a difference must stand.
        settle: Duration,
    },
}

/// Puts together what runs while this process leads.
pub(super) struct ControllerBuilder<'a> {
    pub(super) manager: &'a Manager,
    pub(super) stop: &'a CancellationToken,
    gates: &'a WriteGates,
    /// Of clients that have a ServiceAccount of their own.
    credentials: ServiceAccountTokens,
    telemetry: &'a Telemetry,
    /// Writes of all controllers, for which their events wait.
    writes: WritesInFlight,
    /// Provider calls, by operation.
    pub(super) cloud_metrics: CloudMetrics,
    /// Nodes.
    pub(super) nodes: Cache<NodeView>,
    /// Caches that are filled before anything else starts.
    pub(super) caches: Caches,
    /// Controllers and their helpers, with the lock that each needs.
    pub(super) controllers: Vec<(ControllerLock, NamedTask)>,
    /// Controllers that only say what they would do.
    pub(super) dry_runs: Vec<Box<dyn DryRun>>,
    pub(super) mode: RunMode,
    /// What the provider is lent.
    pub(super) context: ProviderContext,
}

impl<'a> ControllerBuilder<'a> {
    pub(super) fn new(
        manager: &'a Manager,
        gates: &'a WriteGates,
        telemetry: &'a Telemetry,
        stop: &'a CancellationToken,
        work: RunMode,
    ) -> Self {
        let nodes = Cache::<NodeView>::new(manager.node_fields());
        let context = ProviderContext {
            cluster_name: Arc::from(&*manager.config.generic.cluster_name),
            cancel: stop.clone(),
            metrics: manager.registry.clone(),
            write_gate: gates.for_lock(ControllerLock::Main).clone(),
            nodes: Arc::new(nodes.clone()),
            services: None,
            endpoint_slices: None,
            client: telemetry.client(
                manager,
                (manager.clients)(wk::COMPONENT_MANAGER),
                gates.for_lock(ControllerLock::Main),
                stop,
            ),
        };
        let credentials = manager
            .service_accounts
            .as_ref()
            .map(|accounts| accounts.credentials(gates.for_lock(ControllerLock::Main)))
            .unwrap_or_default();
        let mut wiring = Self {
            manager,
            stop,
            gates,
            credentials: credentials.clone(),
            telemetry,
            writes: WritesInFlight::default(),
            cloud_metrics: telemetry.cloud.clone(),
            nodes: nodes.clone(),
            caches: Caches { metrics: telemetry.caches.clone(), filling: Vec::new() },
            controllers: Vec::new(),
            dry_runs: Vec::new(),
            mode: work,
            context,
        };
        wiring.watch("node-cache", &nodes);
        if manager.service_accounts.is_some() {
            wiring.add(ControllerLock::Main, "tokens", credentials.run(stop.clone()));
        }
        wiring
    }

    /// Has a cache filled and kept. Nothing begins before it is complete.
    pub(super) fn watch<T: CachedObject>(&mut self, task: &'static str, cache: &Cache<T>) {
        self.start_cache(task, cache, None);
    }

    /// Has a cache filled and kept that only some need, and that those wait for by themselves: the others do not wait for it
    /// longer than a moment, as it may be the one right that the role does not have. As long as it is missing, a health check
    /// of the task's name says so.
    pub(super) fn watch_optional<T: CachedObject>(&mut self, task: &'static str, cache: &Cache<T>) {
        self.telemetry.needs(task, cache);
        self.start_cache(task, cache, Some(OPTIONAL_CACHE_WAIT));
    }

    fn start_cache<T: CachedObject>(&mut self, task: &'static str, cache: &Cache<T>, patience: Option<Duration>) {
        self.caches.metrics.init(T::RESOURCE);
        let client = self.api_client("shared-informers", ControllerLock::Main);
        let streaming = self.manager.config.client_gates.watch_list;
        // Whoever wants one comparison waits for its end.
        let count_denials = self.manager.config.shadow.once;
        let options = ReflectorOptions { streaming, count_denials, ..ReflectorOptions::default() };
        let reflector = Reflector::new(client, cache.clone(), options, self.caches.metrics.clone());
        let (stop, cache) = (self.stop.clone(), cache.clone());
        let fill = reflector.run(stop).boxed();
        let full = async move {
            match patience {
                None => cache.synced().await,
                // Either way the others go on.
                Some(patience) => drop(tokio::time::timeout(patience, cache.synced()).await),
            }
        };
        self.caches.filling.push(CacheFill { task, fill, synced: full.boxed() });
    }

    /// Adds every controller that is selected and has what it needs.
    pub(super) fn add_all(&mut self) -> Result<(), ManagerError> {
        let network = self.route_controller()?;
        self.node_controllers(network)?;
        self.node_ipam_controller()?;
        self.service_controller()
    }

    /// Has a controller run under this lock, or say what it would do.
    pub(super) fn add_controller(&mut self, lock: ControllerLock, name: &'static str, controller: impl Controller) {
        match self.mode {
            RunMode::Lead => self.add(lock, name, controller.run(self.stop.clone())),
            RunMode::DryRun { settle } => self.dry_runs.push(controller.dry_run(settle)),
        }
    }

    /// Tells whether a controller runs in this process: selected by `--controllers`, and not another manager's.
    pub(super) fn is_enabled(&self, name: &str) -> bool {
        self.manager.is_enabled(name)
    }

    /// Returns the lock that a controller needs.
    pub(super) fn lock(&self, name: &str) -> ControllerLock {
        self.manager.lock(name)
    }

    /// Has a task run under this lock.
    pub(super) fn add(
        &mut self,
        lock: ControllerLock,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.controllers.push((lock, NamedTask { name, run: infallible(task) }));
    }

    /// Makes the operation from which a controller derives those of its provider calls.
    pub(super) fn op(&self, lock: ControllerLock) -> Op {
        Op::new(self.context.cluster_name.clone(), self.stop.clone(), self.gates.for_lock(lock).clone())
            .with_mutations(self.telemetry.mutations.clone())
    }

    /// Makes an API client with a rate budget of its own.
    pub(super) fn api_client(&self, name: &str, lock: ControllerLock) -> ApiClient {
        let Manager { product, config, host, .. } = self.manager;
        let agent = if self.credentials.has(name) { service_account::user(name) } else { name.to_owned() };
        let options = ApiClientOptions {
            qps: f64::from(config.kube_client.qps),
            burst: config.kube_client.burst,
            writes: self.writes.clone(),
            shutdown: self.stop.clone(),
            ..ApiClientOptions::new(
                config::client::user_agent(product, &agent),
                &**host,
                self.telemetry.api.clone(),
                self.gates.for_lock(lock).clone(),
            )
        };
        ApiClient::new(self.connection(name, lock).unwrap_or_else(|| (self.manager.clients)(name)), options)
    }

    /// Returns the connection of a client that has a ServiceAccount of its own.
    fn connection(&self, name: &str, lock: ControllerLock) -> Option<kube::Client> {
        self.credentials.client(name, self.gates.for_lock(lock))
    }

    /// Makes what a controller is given: its events are those of `component`, its requests those of `client`.
    pub(super) fn controller_context(
        &mut self,
        component: &'static str,
        client: &str,
        lock: ControllerLock,
    ) -> ControllerContext {
        let Manager { clock, provider, registry, .. } = self.manager;
        let gate = self.gates.for_lock(lock);
        let connection = self.connection(client, lock).unwrap_or_else(|| (self.manager.clients)("events"));
        // A budget of their own, so that a flood of events delays neither the controller's writes nor the events of others.
        let (events, driver) = EventRecorder::new(
            self.telemetry.client(self.manager, connection, &gate.untracked(), &CancellationToken::new()),
            component,
            gate.clone(),
            self.telemetry.events.clone(),
            clock.clone(),
        );
        self.add(lock, "events", driver.after(self.writes.clone()).run(self.stop.clone()));
        ControllerContext {
            provider: provider.clone(),
            nodes: self.nodes.clone(),
            node_fields: self.manager.node_fields(),
            api: self.api_client(client, lock),
            events,
            metrics: registry.clone(),
            controller_metrics: self.telemetry.controllers.clone(),
            clock: clock.clone(),
        }
    }
}

/// Caches on their way to be complete.
pub(super) struct Caches {
    metrics: CacheMetrics,
    filling: Vec<CacheFill>,
}

struct CacheFill {
    task: &'static str,
    fill: BoxFuture<'static, Result<(), FirstSyncTimedOut>>,
    synced: BoxFuture<'static, ()>,
}

impl Caches {
    /// Starts the watches and waits until every cache is complete.
    pub(super) async fn start(self, tasks: &mut Tasks) -> Result<(), ManagerError> {
        let complete = |CacheFill { task, fill, synced: full }| async move {
            match futures::future::select(fill, full).await {
                Either::Left((ended, _)) => Err(ended),
                Either::Right(((), fill)) => Ok((task, fill)),
            }
        };
        let mut waiting: FuturesUnordered<_> = self.filling.into_iter().map(complete).collect();
        while let Some(outcome) = waiting.next().await {
            match outcome {
                // From now on it runs by itself, while others are still waited for.
                Ok((task, fill)) => tasks.spawn(task, async move { Ok(fill.await?) }),
                // Without an error only when the process is stopping.
                Err(ended) => return Ok(ended?),
            }
        }
        Ok(())
    }
}
