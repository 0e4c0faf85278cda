//! Builds and runs the parts of the process (API clients, leader election, caches, controllers) and
//! stops them in order.
//!
//! A manager runs once. Before it leads, it renews no lease, watches nothing and sends no requests
//! to the cloud. A standby reads its Lease every half retry period,
//! and checks the users of its own HTTPS server.

mod adoption;
mod check;
mod election;
mod explain;
mod explain_page;
mod health;
mod ipam;
mod named_task;
mod nodes;
mod orphans;
mod page_metrics;
mod provider;
mod read_only;
mod route;
mod services;
mod shadow;
mod telemetry;
#[cfg(test)]
pub(crate) use telemetry::register_own;
mod observability;
mod wiring;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use http::Request;
use kube::{client::Body, config::AuthInfo};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{
    election::WriteGates,
    telemetry::Telemetry,
    wiring::{ControllerBuilder, RunMode},
};
pub use self::{
    explain::{ExplainError, Explanations},
    observability::Observability,
    orphans::OrphanRequest,
    provider::CLOUD_PROVIDER_CHECK,
    read_only::read_only,
};
use crate::{
    config::{
        self, Config, Product,
        feature_gates::ADDITIONAL_LABELS_RECONCILIATION,
        kubeconfig::{
            ClientConfig, ClientConfigError,
            connect::{self, HttpVersions},
        },
        leader_migration::{ControllerLock, LeaderMigration},
        yaml_file::FileError,
    },
    controllers::{node_ipam::NodeIpamError, orphans::OrphanScanError},
    error::chain,
    k8s::{NodeFields, well_known},
    manager::named_task::{NamedTask, infallible},
    provider::{CloudError, CloudProvider, ProviderContext, ProviderController},
    runtime::{
        events::WallClock,
        health::Health,
        leader_election::{InvalidElectionConfig, LeaderElector},
        reflector::FirstSyncTimedOut,
        service_account::{self, ServiceAccounts},
        serving::auth::AuthError,
        shadow::{Output, ShadowReport, Verdict, stdout},
        tasks::{TaskError, Tasks},
    },
};

/// The time for which the process tries to reach the API server before it ends. Upstream waits 10
/// s, which is shorter than a rolling update of the control plane takes.
pub const API_SERVER_WAIT: Duration = Duration::from_secs(60);
/// The delay between two attempts to reach the API server.
const API_SERVER_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The timeout of one attempt.
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that requests in flight have to be answered after the process was told to stop. The
/// lease is not released if a write is given up. Otherwise fail-over takes at most 3 s, because a
/// standby reads the lease every second.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// The client name of both node controllers. As upstream, their ServiceAccount and user agent
/// derive from it.
const NODE_CLIENT: &str = "node-controller";
/// The name of the client of leader election.
const LEADER_ELECTION_CLIENT: &str = "leader-election";
/// The clients that have their own ServiceAccount with `--use-service-account-credentials`.
const CLIENTS_WITH_ACCOUNT: [&str; 3] =
    [NODE_CLIENT, route::ROUTE_CLIENT, services::SERVICE_CLIENT];

/// A function that returns the Kubernetes client with this client name.
pub type ClientFactory = Arc<dyn Fn(&str) -> kube::Client + Send + Sync>;

/// Runs the controllers of one process, under leader election or in shadow mode.
pub struct Manager {
    product: Product,
    config: Config,
    provider: Arc<dyn CloudProvider>,
    clients: ClientFactory,
    host: String,
    registry: Registry,
    health: Health,
    clock: WallClock,
    /// The differences that shadow mode found.
    shadow_report: Arc<Mutex<ShadowReport>>,
    explanations: Explanations,
    output: Output,
    /// A future to run once the API server is reachable. The lock only makes `Manager` `Sync`, and
    /// nothing contends for it.
    on_api_server_reachable: Mutex<Option<BoxFuture<'static, Result<(), AuthError>>>>,
    /// The ServiceAccounts, if `--use-service-account-credentials` is set.
    service_accounts: Option<ServiceAccounts>,
    /// The leader migration, set by [`Manager::run`].
    migration: Option<LeaderMigration>,
}

/// The end of a manager without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagerExit {
    /// The manager was told to stop. Its lease, if any, was released or will expire.
    Stopped,
    /// Leadership was lost. Contains the reason. The process ends with exit code 1.
    LeadershipLost(String),
    /// A single comparison in shadow mode is complete. Nothing was changed.
    Compared(Verdict),
}

/// The error that ended a manager.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The configuration of the Kubernetes client cannot be used.
    #[error(transparent)]
    ClientConfig(#[from] ClientConfigError),
    /// The client cannot be built.
    #[error("could not build the client of the API server")]
    Client(#[source] Box<kube::Error>),
    /// The API server did not answer in time.
    #[error("could not reach the API server {host} within {}s", wait.as_secs())]
    Unreachable {
        /// The host of the API server.
        host: String,
        /// The time for which it was tried.
        wait: Duration,
        /// The last error.
        #[source]
        source: Box<kube::Error>,
    },
    /// Authentication of users of the HTTPS server could not be set up.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The leader migration configuration file cannot be used.
    #[error(transparent)]
    LeaderMigration(#[from] FileError),
    /// The settings of leader election are invalid.
    #[error(transparent)]
    Election(#[from] InvalidElectionConfig),
    /// A metric cannot be registered, for example because its name is already in use.
    #[error("could not register metrics")]
    Metrics(#[from] prometheus::Error),
    /// The provider has no cluster ID. It cannot distinguish the objects of this cluster from those
    /// of another.
    #[error("cloud provider {0:?} has no cluster ID; set one, or pass --allow-untagged-cloud")]
    NoClusterId(String),
    /// The node IPAM controller cannot be built.
    #[error(transparent)]
    NodeIpam(#[from] NodeIpamError),
    /// The start of the provider failed permanently.
    #[error("cloud provider could not start")]
    Provider(#[source] CloudError),
    /// The first list of a resource was not complete in time.
    #[error(transparent)]
    Cache(#[from] FirstSyncTimedOut),
    /// The provider cannot list the objects that a cluster owns.
    #[error(
        "cloud provider {0:?} cannot list the objects that a cluster owns, so orphans cannot be found"
    )]
    NoInventory(String),
    /// The provider has no cluster ID, so another cluster's objects would look like orphans.
    #[error(
        "cloud provider {0:?} has no cluster ID, so orphans cannot be distinguished from another cluster's objects; set one"
    )]
    OrphansWithoutClusterId(String),
    /// The deletion of orphans was confirmed for another cluster.
    #[error(
        "nothing was deleted: --confirm={confirmed} does not match this cluster's ID, {cluster_id:?}"
    )]
    ClusterNotConfirmed {
        /// The cluster ID that was confirmed.
        confirmed: String,
        /// The ID of this cluster.
        cluster_id: Box<str>,
    },
    /// The scan for orphans failed.
    #[error("could not list orphans")]
    Orphans(#[source] Box<OrphanScanError>),
    /// The scan for orphans did not end in time.
    #[error("could not list orphans within the time given by --timeout")]
    OrphansTimedOut,
    /// The process was stopped before the scan for orphans had a result.
    #[error("stopped before orphans were listed")]
    OrphansStopped,
    /// The process was stopped before the checks of the subcommand `check` ended.
    #[error("stopped before everything was checked")]
    CheckStopped,
    /// The adoption report could not be written.
    #[error("could not write the adoption report")]
    Report(#[source] std::io::Error),
    /// A task failed, or ended although it should run as long as the process.
    #[error(transparent)]
    Task(#[from] TaskError),
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("provider", &self.provider.name())
            .finish_non_exhaustive()
    }
}

/// Builds a client whose user agent contains this name. The client does not retry, because the work
/// queues count attempts and a hidden retry could repeat a write.
fn build_client(
    config: &ClientConfig,
    product: &Product,
    name: &str,
) -> Result<kube::Client, ManagerError> {
    let mut config = config.clone();
    config
        .kube
        .headers
        .retain(|(header, _)| header != http::header::USER_AGENT);
    if let Ok(agent) = http::HeaderValue::from_str(&config::kubeconfig::user_agent(product, name)) {
        config.kube.headers.push((http::header::USER_AGENT, agent));
    }
    let versions = if name == LEADER_ELECTION_CLIENT {
        HttpVersions::Http1
    } else {
        HttpVersions::Any
    };
    connect::client(&config, versions).map_err(|error| ManagerError::Client(Box::new(error)))
}

impl Manager {
    /// Creates a manager whose clients are configured by the flags.
    ///
    /// # Errors
    /// Returns an error if the kubeconfig or the pod's service account cannot be used.
    pub async fn from_config(
        product: Product,
        config: Config,
        provider: Arc<dyn CloudProvider>,
    ) -> Result<Self, ManagerError> {
        let base = config::kubeconfig::load(&config.kube_client, &product, NODE_CLIENT).await?;
        let host = base
            .kube
            .cluster_url
            .authority()
            .map(ToString::to_string)
            .unwrap_or_default();
        // Build all clients now, so that an invalid certificate is an error at the start and not
        // later, in a controller.
        let mut clients = BTreeMap::new();
        for name in CLIENTS_WITH_ACCOUNT.into_iter().chain([
            LEADER_ELECTION_CLIENT,
            "events",
            "shared-informers",
        ]) {
            clients.insert(name, build_client(&base, &product, name)?);
        }
        let manager = build_client(&base, &product, well_known::COMPONENT_MANAGER)?;
        // Shadow mode uses no tokens of ServiceAccounts, because requesting one is a write.
        let mut accounts = None;
        if config.generic.use_service_account_credentials && !config.shadow.is_on() {
            let mut without_credentials = base.clone();
            without_credentials.kube.auth_info = AuthInfo::default();
            let mut anonymous = Vec::new();
            for name in CLIENTS_WITH_ACCOUNT {
                let user = service_account::user(name);
                anonymous.push((name, build_client(&without_credentials, &product, &user)?));
            }
            accounts = Some(ServiceAccounts::new(manager.clone(), anonymous));
        }
        let clients = move |name: &str| clients.get(name).unwrap_or(&manager).clone();
        Ok(Self {
            service_accounts: accounts,
            ..Self::with_clients(product, config, provider, Arc::new(clients), host)
        })
    }

    /// Creates a manager with the caller's clients, for example for an API server in the same
    /// process.
    pub fn with_clients(
        product: Product,
        config: Config,
        provider: Arc<dyn CloudProvider>,
        clients: ClientFactory,
        host: impl Into<String>,
    ) -> Self {
        let observability = Observability::new(&config);
        let clock = WallClock::system();
        // A second safeguard beside the write gate: the clients of shadow mode reject every write.
        let clients = if config.shadow.is_on() {
            read_only(clients)
        } else {
            clients
        };
        let Observability { registry, health, shadow_report, explanations } = observability;
        Self {
            product,
            config,
            provider,
            clients,
            host: host.into(),
            registry,
            health,
            clock,
            shadow_report,
            explanations,
            output: stdout(),
            on_api_server_reachable: Mutex::default(),
            service_accounts: None,
            migration: None,
        }
    }

    /// Replaces the wall clock, for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: WallClock) -> Self {
        self.clock = clock;
        self
    }

    /// Replaces the output of shadow mode, for tests.
    #[must_use]
    pub fn with_output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Uses the metrics, health checks and shadow report of an HTTPS server that was started before
    /// the manager was made.
    #[must_use]
    pub fn with_observability(self, observability: Observability) -> Self {
        let Observability { registry, health, shadow_report, explanations } = observability;
        Self { registry, health, shadow_report, explanations, ..self }
    }

    /// Returns the registry of the process.
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// Returns the health checks of the process, to which the manager adds its own while it runs.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Returns the explanations of objects, which are available while the controllers run.
    pub fn explanations(&self) -> Explanations {
        self.explanations.clone()
    }

    /// Sets a task to run once the API server is reachable, before leader election. If it fails,
    /// the manager ends with its error.
    #[must_use]
    pub fn on_api_server_reachable(
        mut self,
        task: impl Future<Output = Result<(), AuthError>> + Send + 'static,
    ) -> Self {
        *self.on_api_server_reachable.get_mut() = Some(task.boxed());
        self
    }

    /// Runs until `stop` is cancelled, leadership is lost, a single comparison of shadow mode is
    /// complete, or something fails.
    pub async fn run(mut self, stop: CancellationToken) -> Result<ManagerExit, ManagerError> {
        self.migration = LeaderMigration::load(&self.config, &self.product.controllers)?;
        self.log_leader_migration();
        if !self.provider.has_cluster_id() {
            if !self.config.generic.allow_untagged_cloud {
                return Err(ManagerError::NoClusterId(self.provider.name().to_owned()));
            }
            tracing::warn!(
                "cloud provider has no cluster ID; this cluster's objects cannot be distinguished from another cluster's"
            );
        }
        match stop
            .run_until_cancelled(self.wait_for_api_server(API_SERVER_WAIT))
            .await
        {
            Some(reachable) => reachable?,
            None => return Ok(self.stopped()),
        }
        if let Some(task) = self.on_api_server_reachable.get_mut().take() {
            match stop.run_until_cancelled(task).await {
                Some(result) => result?,
                None => return Ok(self.stopped()),
            }
        }
        let telemetry = Telemetry::register(&self)?;
        if self.config.shadow.is_on() {
            return Box::pin(self.run_shadow(stop, &telemetry)).await;
        }
        if self.config.leader_election.enabled {
            return Box::pin(self.elect_and_lead(&stop, &telemetry)).await;
        }
        Box::pin(self.lead(stop, WriteGates::always_open(), None, &telemetry)).await
    }

    /// Runs caches, provider and controllers until `stop` is cancelled or one of them ends.
    /// Controllers under the migration lock wait until it is held.
    async fn lead(
        &self,
        stop: CancellationToken,
        gates: WriteGates,
        migration: Option<LeaderElector>,
        metrics: &Telemetry,
    ) -> Result<ManagerExit, ManagerError> {
        let mut tasks = Tasks::new(stop.clone());
        let migrated = match stop
            .run_until_cancelled(self.start(&mut tasks, &gates, metrics))
            .await
        {
            Some(started) => started?,
            None => return Ok(ManagerExit::Stopped),
        };
        let main = async { election::task_result(tasks.run(DRAIN_LIMIT).await) };
        if let Some(elector) = migration
            && !migrated.is_empty()
        {
            let (main, migrated) =
                tokio::join!(main, election::run_migrated_controllers(elector, migrated, &stop));
            return main.and(migrated);
        }
        main.await.map(|()| ManagerExit::Stopped)
    }

    /// Starts the caches, the provider and the controllers, in this order. Returns the controllers
    /// that wait for the migration lock.
    ///
    /// The controllers are built first, because they must be registered with the caches before
    /// these are filled.
    async fn start(
        &self,
        tasks: &mut Tasks,
        gates: &WriteGates,
        metrics: &Telemetry,
    ) -> Result<Vec<NamedTask>, ManagerError> {
        let mut builder = ControllerBuilder::new(self, gates, metrics, tasks.stop(), RunMode::Lead);
        builder.add_all()?;
        let ControllerBuilder { mut controllers, caches, context, explainers, nodes, .. } = builder;
        metrics.caches_syncing();
        caches.start(tasks).await?;
        // The provider is started once, even if there are two locks.
        self.start_provider(&context, metrics).await?;
        self.explanations
            .install(&self.provider, nodes, &self.clock, explainers);
        controllers.extend(self.provider_controllers(&context, gates));
        metrics.started_leading();
        let (migrated, main) = self.stagger_starts(controllers, metrics, tasks.stop());
        for NamedTask { name, run } in main {
            tasks.spawn(name, run);
        }
        Ok(migrated)
    }

    /// Returns the provider's own controllers that are enabled.
    fn provider_controllers(
        &self,
        context: &ProviderContext,
        gates: &WriteGates,
    ) -> Vec<(ControllerLock, NamedTask)> {
        let mut controllers = Vec::new();
        for ProviderController { name, run } in self.provider.controllers() {
            if !self.is_enabled(name) {
                continue;
            }
            let lock = self.lock(name);
            let context =
                ProviderContext { write_gate: gates.for_lock(lock).clone(), ..context.clone() };
            let run = run(context);
            controllers
                .push((lock, NamedTask { name, run: async move { Ok(run.await?) }.boxed() }));
        }
        controllers
    }

    /// Delays the start of each controller by `--controller-start-interval` after the one before.
    /// Returns the tasks under the migration lock and the tasks under the main lock.
    ///
    /// A controller is shown as running in the metrics once its delay is over.
    fn stagger_starts(
        &self,
        controllers: Vec<(ControllerLock, NamedTask)>,
        metrics: &Telemetry,
        stop: &CancellationToken,
    ) -> (Vec<NamedTask>, Vec<NamedTask>) {
        let interval = self.config.generic.controller_start_interval;
        let mut delay = Duration::ZERO;
        let mut migrated = Vec::new();
        let mut main = Vec::new();
        for (lock, NamedTask { name, run }) in controllers {
            let metrics = metrics.clone();
            let stop = stop.clone();
            let wait = delay;
            // Helper tasks of controllers are not in `--controllers`, so they add no delay.
            if self.config.generic.controllers.is_enabled(name) {
                // As upstream, the delay is up to twice as long, so that the managers of many
                // clusters do not act at the same moment.
                delay += interval.mul_f64(1.0 + rand::random::<f64>());
            }
            let run = async move {
                if !wait.is_zero()
                    && stop
                        .run_until_cancelled(tokio::time::sleep(wait))
                        .await
                        .is_none()
                {
                    return Ok(());
                }
                metrics.controller_started(name);
                run.await
            };
            let tasks = if lock == ControllerLock::Migration {
                &mut migrated
            } else {
                &mut main
            };
            tasks.push(NamedTask { name, run: run.boxed() });
        }
        (migrated, main)
    }

    /// Returns true if a controller runs in this process, under any lock.
    fn is_enabled(&self, name: &str) -> bool {
        self.config.generic.controllers.is_enabled(name)
            && self.lock(name) != ControllerLock::OtherManager
    }

    /// Returns the lock that a controller needs.
    fn lock(&self, name: &str) -> ControllerLock {
        self.migration
            .as_ref()
            .map_or(ControllerLock::Main, |migration| {
                migration.lock(name, &self.product.controllers)
            })
    }

    /// Returns the fields of Nodes that the caches keep.
    fn node_fields(&self) -> NodeFields {
        let mut fields = self.provider.node_fields();
        // The keys of the additional labels to refresh come from the cloud, so all labels are
        // needed.
        fields.all_labels |= self.refreshes_labels();
        fields
    }

    fn refreshes_labels(&self) -> bool {
        self.config
            .feature_gates
            .is_enabled(ADDITIONAL_LABELS_RECONCILIATION)
    }

    fn log_leader_migration(&self) {
        let Some(migration) = &self.migration else {
            return;
        };
        for name in migration.unknown(&self.product.controllers) {
            tracing::warn!(controller = name, "leader migration names an unknown controller");
        }
        for info in self
            .product
            .controllers
            .iter()
            .filter(|c| self.config.generic.controllers.is_enabled(c.name))
        {
            match self.lock(info.name) {
                ControllerLock::Main => {}
                ControllerLock::Migration => tracing::info!(
                    controller = info.name,
                    lease = migration.leader_name,
                    "controller runs under the migration lock"
                ),
                ControllerLock::OtherManager => tracing::info!(
                    controller = info.name,
                    "controller does not run: leader migration gives it to another controller manager"
                ),
            }
        }
    }

    /// Waits until the API server answers, with any status, and for `wait` at most. There is no attempt
    /// that `wait` would cut short at once, so that the error is that of a real one. The requests that
    /// follow report statuses such as 401, 403 or 503 together with the permission that they need.
    async fn wait_for_api_server(&self, wait: Duration) -> Result<(), ManagerError> {
        let client = (self.clients)(well_known::COMPONENT_MANAGER);
        let deadline = Instant::now() + wait;
        loop {
            let limit = deadline.min(Instant::now() + API_SERVER_TIMEOUT);
            let error = match tokio::time::timeout_at(limit, ping(&client)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(elapsed) => kube::Error::Service(elapsed.into()),
            };
            if Instant::now() + API_SERVER_POLL_INTERVAL >= deadline {
                tokio::time::sleep_until(deadline).await;
                return Err(ManagerError::Unreachable {
                    host: self.host.clone(),
                    wait,
                    source: Box::new(error),
                });
            }
            tracing::warn!(
                host = self.host,
                error = chain(&error),
                "could not reach the API server, retrying"
            );
            tokio::time::sleep(API_SERVER_POLL_INTERVAL).await;
        }
    }
}

async fn ping(client: &kube::Client) -> Result<(), kube::Error> {
    let request = Request::get("/healthz")
        .body(Body::empty())
        .map_err(kube::Error::HttpError)?;
    client.send(request).await.map(drop)
}
