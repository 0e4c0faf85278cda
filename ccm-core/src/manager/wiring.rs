//! Builds the controllers of one term of leadership, and the caches and clients that they share.
//!
//! Each controller has a file in this directory that adds it to the builder. The manager starts the
//! controllers that were added.

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
        node_lifecycle::NodeLifecycleController, orphans::scanner::OrphanScanner,
        route::RouteController, service::ServiceController,
    },
    explain::Explainer,
    k8s::{NodeView, ServiceView, well_known},
    provider::{Op, ProviderContext, call_metrics::CloudMetrics},
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

/// The time for which controllers that do not need an optional cache wait for it.
const OPTIONAL_CACHE_WAIT: Duration = Duration::from_secs(5);

/// A controller that is not running yet.
pub(super) trait Controller: Sized + Send + 'static {
    /// Runs the controller until `cancel` is cancelled.
    fn run(self, cancel: CancellationToken) -> BoxFuture<'static, ()>;

    /// Turns the controller into a dry run, which only reports what the controller would do. It
    /// checks a difference again after `settle`.
    fn dry_run(self, settle: Duration) -> Box<dyn DryRun>;

    /// Returns what explains objects from the state of the controller.
    fn explainer(&self) -> Arc<dyn Explainer>;
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

            fn explainer(&self) -> Arc<dyn Explainer> {
                Self::explainer(self)
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

/// The purpose for which the controllers are built.
#[derive(Clone, Copy, Debug)]
pub(super) enum RunMode {
    /// The controllers run and write.
    Lead,
    /// The controllers only report what they would do.
    DryRun {
        /// The time for which a difference must last before it is reported.
        settle: Duration,
    },
}

/// Builds the caches, controllers and clients that run while this process leads.
pub(super) struct ControllerBuilder<'a> {
    pub(super) manager: &'a Manager,
    pub(super) stop: &'a CancellationToken,
    gates: &'a WriteGates,
    /// The tokens of the clients that have their own ServiceAccount.
    credentials: ServiceAccountTokens,
    telemetry: &'a Telemetry,
    /// The writes of all controllers that are in flight. Events wait for them.
    writes: WritesInFlight,
    /// The metrics of provider calls, by operation.
    pub(super) cloud_metrics: CloudMetrics,
    /// The cache of Nodes, which all controllers share.
    pub(super) nodes: Cache<NodeView>,
    /// All caches, which are filled before the provider and the controllers start.
    pub(super) caches: Caches,
    /// The controllers and their helper tasks, with the lock that each needs.
    pub(super) controllers: Vec<(ControllerLock, NamedTask)>,
    /// The dry runs of the controllers, in shadow mode.
    pub(super) dry_runs: Vec<Box<dyn DryRun>>,
    /// The cache of Services, if the service controller was added.
    pub(super) services: Option<Cache<ServiceView>>,
    /// The scanner for orphans, in shadow mode.
    pub(super) orphans: Option<OrphanScanner>,
    /// What explains objects, by the name of the controller.
    pub(super) explainers: Vec<(&'static str, Arc<dyn Explainer>)>,
    pub(super) mode: RunMode,
    /// The resources that the provider gets at its start.
    pub(super) context: ProviderContext,
}

impl<'a> ControllerBuilder<'a> {
    pub(super) fn new(
        manager: &'a Manager,
        gates: &'a WriteGates,
        telemetry: &'a Telemetry,
        stop: &'a CancellationToken,
        mode: RunMode,
    ) -> Self {
        let nodes = Cache::<NodeView>::new(manager.node_fields());
        // The caches of Services and EndpointSlices are added with their controller.
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
                (manager.clients)(well_known::COMPONENT_MANAGER),
                gates.for_lock(ControllerLock::Main),
                stop,
            ),
        };
        let credentials = manager
            .service_accounts
            .as_ref()
            .map(|accounts| accounts.credentials(gates.for_lock(ControllerLock::Main)))
            .unwrap_or_default();
        let mut builder = Self {
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
            services: None,
            orphans: None,
            explainers: Vec::new(),
            mode,
            context,
        };
        // All controllers need these tasks.
        builder.watch("node-cache", &nodes);
        if manager.service_accounts.is_some() {
            builder.add(ControllerLock::Main, "tokens", credentials.run(stop.clone()));
        }
        builder
    }

    /// Adds a cache that must be synced before anything else starts.
    pub(super) fn watch<T: CachedObject>(&mut self, task: &'static str, cache: &Cache<T>) {
        self.start_cache(task, cache, None);
    }

    /// Adds a cache that only some controllers need.
    ///
    /// These controllers wait for it themselves. The others wait for at most
    /// [`OPTIONAL_CACHE_WAIT`], because the role may lack only the permission for this cache. A
    /// health check with the name of the task fails until the cache is synced.
    pub(super) fn watch_optional<T: CachedObject>(&mut self, task: &'static str, cache: &Cache<T>) {
        self.telemetry.add_cache_check(task, cache);
        self.start_cache(task, cache, Some(OPTIONAL_CACHE_WAIT));
    }

    fn start_cache<T: CachedObject>(
        &mut self,
        task: &'static str,
        cache: &Cache<T>,
        max_wait: Option<Duration>,
    ) {
        self.caches.metrics.init(T::RESOURCE);
        let client = self.api_client("shared-informers", ControllerLock::Main);
        let streaming = self.manager.config.client_gates.watch_list;
        // A single comparison must end, even if access stays denied.
        let count_denials = self.manager.config.shadow.once;
        let options = ReflectorOptions { streaming, count_denials, ..ReflectorOptions::default() };
        let reflector = Reflector::new(client, cache.clone(), options, self.caches.metrics.clone());
        let stop = self.stop.clone();
        let cache = cache.clone();
        let fill = reflector.run(stop).boxed();
        let synced = async move {
            match max_wait {
                None => cache.synced().await,
                // After a timeout the controllers that do not need this cache continue without it.
                Some(max_wait) => drop(tokio::time::timeout(max_wait, cache.synced()).await),
            }
        };
        self.caches
            .filling
            .push(CacheFill { task, fill, synced: synced.boxed() });
    }

    /// Adds every controller that is enabled and has what it needs.
    pub(super) fn add_all(&mut self) -> Result<(), ManagerError> {
        let network = self.route_controller()?;
        self.node_controllers(network)?;
        self.node_ipam_controller()?;
        self.service_controller()
    }

    /// Adds a controller that runs under this lock or, in shadow mode, as a dry run.
    pub(super) fn add_controller(
        &mut self,
        lock: ControllerLock,
        name: &'static str,
        controller: impl Controller,
    ) {
        self.explainers.push((name, controller.explainer()));
        match self.mode {
            RunMode::Lead => self.add(lock, name, controller.run(self.stop.clone())),
            RunMode::DryRun { settle } => self.dry_runs.push(controller.dry_run(settle)),
        }
    }

    /// Returns true if a controller runs in this process: `--controllers` selects it, and leader
    /// migration does not give it to another manager.
    pub(super) fn is_enabled(&self, name: &str) -> bool {
        self.manager.is_enabled(name)
    }

    /// Returns the lock that a controller needs.
    pub(super) fn lock(&self, name: &str) -> ControllerLock {
        self.manager.lock(name)
    }

    /// Adds a task that runs under this lock.
    pub(super) fn add(
        &mut self,
        lock: ControllerLock,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.controllers
            .push((lock, NamedTask { name, run: infallible(task) }));
    }

    /// Creates the [`Op`] from which a controller derives the [`Op`] of each provider call.
    pub(super) fn op(&self, lock: ControllerLock) -> Op {
        Op::new(
            self.context.cluster_name.clone(),
            self.stop.clone(),
            self.gates.for_lock(lock).clone(),
        )
        .with_mutations(self.telemetry.mutations.clone())
    }

    /// Creates an API client with its own rate limit.
    pub(super) fn api_client(&self, name: &str, lock: ControllerLock) -> ApiClient {
        let Manager { product, config, host, .. } = self.manager;
        let agent = if self.credentials.has(name) {
            service_account::user(name)
        } else {
            name.to_owned()
        };
        let options = ApiClientOptions {
            qps: f64::from(config.kube_client.qps),
            burst: config.kube_client.burst,
            writes: self.writes.clone(),
            shutdown: self.stop.clone(),
            ..ApiClientOptions::new(
                config::kubeconfig::user_agent(product, &agent),
                &**host,
                self.telemetry.api.clone(),
                self.gates.for_lock(lock).clone(),
            )
        };
        ApiClient::new(
            self.connection(name, lock)
                .unwrap_or_else(|| (self.manager.clients)(name)),
            options,
        )
    }

    /// Returns the connection of a client that has its own ServiceAccount, or `None`.
    fn connection(&self, name: &str, lock: ControllerLock) -> Option<kube::Client> {
        self.credentials.client(name, self.gates.for_lock(lock))
    }

    /// Creates the context of a controller. `component` is the source of its events, and `client`
    /// is the client name of its requests.
    pub(super) fn controller_context(
        &mut self,
        component: &'static str,
        client: &str,
        lock: ControllerLock,
    ) -> ControllerContext {
        let Manager { clock, provider, registry, .. } = self.manager;
        let gate = self.gates.for_lock(lock);
        let connection = self
            .connection(client, lock)
            .unwrap_or_else(|| (self.manager.clients)("events"));
        // Events have their own rate limit, so that a flood of them delays neither the controller's
        // writes nor the events of other controllers.
        let (events, driver) = EventRecorder::new(
            self.telemetry.client(
                self.manager,
                connection,
                &gate.untracked(),
                &CancellationToken::new(),
            ),
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

/// The caches that are not synced yet.
pub(super) struct Caches {
    metrics: CacheMetrics,
    filling: Vec<CacheFill>,
}

struct CacheFill {
    task: &'static str,
    fill: BoxFuture<'static, FillResult>,
    synced: BoxFuture<'static, ()>,
}

impl Caches {
    /// Starts the reflectors and waits until every cache is synced, or the wait for an optional
    /// cache is over.
    pub(super) async fn start(self, tasks: &mut Tasks) -> Result<(), ManagerError> {
        let mut filling: FuturesUnordered<_> =
            self.filling.into_iter().map(CacheFill::wait).collect();
        while let Some(outcome) = filling.next().await {
            match outcome {
                // The reflector continues as a separate task while other caches are still filled.
                Ok((task, fill)) => tasks.spawn(task, async move { Ok(fill.await?) }),
                // A reflector that ends without an error was stopped: the process is stopping.
                Err(result) => return Ok(result?),
            }
        }
        Ok(())
    }
}

type FillResult = Result<(), FirstSyncTimedOut>;

impl CacheFill {
    /// Runs the reflector until its cache is synced. Returns its task name and its future, which
    /// must be polled further.
    ///
    /// # Errors
    /// Returns the result of the reflector if it ends before its cache is synced.
    async fn wait(self) -> Result<(&'static str, BoxFuture<'static, FillResult>), FillResult> {
        match futures::future::select(self.fill, self.synced).await {
            Either::Left((result, _)) => Err(result),
            Either::Right(((), fill)) => Ok((self.task, fill)),
        }
    }
}
