//! Puts the parts together: API clients, election, caches, controllers; and takes them down in order.
//!
//! One manager runs once. Before it leads it renews nothing, watches nothing and asks the cloud nothing; a standby costs
//! one small request per retry period.

mod election;
mod health;
mod ipam;
mod named_task;
mod nodes;
mod orphans;
mod provider;
mod read_only;
mod route;
mod services;
mod shadow;
mod telemetry;
#[cfg(test)]
pub(crate) use telemetry::register_own;
mod surface;
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
pub use self::{orphans::OrphanRequest, provider::CLOUD_PROVIDER_CHECK, read_only::read_only, surface::Observability};
use crate::{
    config::{
        self, Config, Product,
        client::{ClientConfig, ClientConfigError},
        feature_gates::ADDITIONAL_LABELS_RECONCILIATION,
        leader_migration::{ControllerLock, LeaderMigration},
        yaml_file::FileError,
    },
    controllers::{node_ipam::NodeIpamError, orphans::OrphanScanError},
    error::chain,
    k8s::{NodeFields, well_known as wk},
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

/// How long a process waits for an API server that cannot be reached before it ends. Upstream waits 10 s, which a
/// rolling control plane exceeds; a supervisor restarts us anyway.
pub const API_SERVER_WAIT: Duration = Duration::from_secs(60);
/// Pause between two looks, and the time one may take.
const API_SERVER_POLL_INTERVAL: Duration = Duration::from_secs(1);
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long changes that were requested may take to be answered before they are given up: with the standby's look each
/// second, fail-over stays within 3 s. When one was given up the lease is not released.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// Client name of both node controllers, hence their ServiceAccount and user agent, as upstream.
const NODE_CLIENT: &str = "node-controller";
/// Clients with a ServiceAccount of their own under `--use-service-account-credentials`.
const ACCOUNTS: [&str; 3] = [NODE_CLIENT, route::ROUTE_CLIENT, services::SERVICE_CLIENT];

/// Makes a Kubernetes client for the part of the process with this name.
pub type ClientFactory = Arc<dyn Fn(&str) -> kube::Client + Send + Sync>;

/// Everything a manager needs.
pub struct Manager {
    product: Product,
    config: Config,
    provider: Arc<dyn CloudProvider>,
    clients: ClientFactory,
    host: String,
    registry: Registry,
    health: Health,
    clock: WallClock,
    /// What a shadow found.
    shadow_report: Arc<Mutex<ShadowReport>>,
    output: Output,
    /// Behind a lock for the sake of shared references, which nobody takes while it runs.
    on_connect: Mutex<Option<BoxFuture<'static, Result<(), AuthError>>>>,
    /// With `--use-service-account-credentials`.
    service_accounts: Option<ServiceAccounts>,
    /// Known once it runs.
    migration: Option<LeaderMigration>,
}

/// How a manager ended without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagerExit {
    /// Asked to stop; the lease, if any, was released, or is left to run out.
    Stopped,
    /// Leadership was lost; the process ends with exit code 1.
    LeadershipLost(String),
    /// What is was compared once with what would be; nothing was changed.
    Compared(Verdict),
}

/// Why a manager could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The configuration of the Kubernetes client cannot be used.
    #[error(transparent)]
    ClientConfig(#[from] ClientConfigError),
    /// The client cannot be built.
    #[error("client of the API server cannot be built")]
    Client(#[source] Box<kube::Error>),
    /// The API server did not answer.
    #[error("API server {host} could not be reached for {}s", API_SERVER_WAIT.as_secs())]
    Unreachable {
        /// Its address.
        host: String,
        /// The last failure.
        #[source]
        source: Box<kube::Error>,
    },
    /// Callers of the HTTPS server could not be recognised.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The file of leader migration cannot be used.
    #[error(transparent)]
    LeaderMigration(#[from] FileError),
    /// The election's settings contradict each other.
    #[error(transparent)]
    Election(#[from] InvalidElectionConfig),
    /// A metric is registered twice.
    #[error("metrics cannot be registered")]
    Metrics(#[from] prometheus::Error),
    /// The provider cannot tell this cluster's objects from another's.
    #[error("cloud provider {0:?} has no cluster ID; set one, or pass --allow-untagged-cloud")]
    NoClusterId(String),
    /// The node-IPAM controller cannot be made.
    #[error(transparent)]
    NodeIpam(#[from] NodeIpamError),
    /// The provider's start failed, and will not succeed by itself.
    #[error("cloud provider could not start")]
    Provider(#[source] CloudError),
    /// The nodes could not be listed.
    #[error(transparent)]
    Cache(#[from] FirstSyncTimedOut),
    /// The provider cannot list what a cluster owns.
    #[error("cloud provider {0:?} keeps no inventory of what a cluster owns, so orphans cannot be told")]
    NoInventory(String),
    /// Without a cluster ID another cluster's objects would look like orphans.
    #[error(
        "cloud provider {0:?} has no cluster ID, so orphans cannot be told from another cluster's objects; set one"
    )]
    OrphansWithoutClusterId(String),
    /// Deletion was confirmed for another cluster.
    #[error(
        "--confirm={confirmed} names another cluster: in the cloud this one is {cluster_id:?}, and nothing was deleted"
    )]
    ClusterNotConfirmed {
        /// What was confirmed.
        confirmed: String,
        /// The cluster, as the cloud has it.
        cluster_id: Box<str>,
    },
    /// The cloud and the cluster could not be compared.
    #[error("orphans could not be looked for")]
    Orphans(#[source] Box<OrphanScanError>),
    /// The time for it was over.
    #[error("orphans could not be looked for within the time given by --timeout")]
    OrphansTimedOut,
    /// A signal came before there was a result.
    #[error("stopped before orphans were looked for")]
    OrphansStopped,
    /// A task that should run as long as the process ended.
    #[error(transparent)]
    Task(#[from] TaskError),
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("provider", &self.provider.name()).finish_non_exhaustive()
    }
}

impl Manager {
    /// Makes a manager that reaches the API server as the flags say.
    ///
    /// # Errors
    /// When the kubeconfig or the pod's service account cannot be used.
    pub async fn from_config(
        product: Product,
        config: Config,
        provider: Arc<dyn CloudProvider>,
    ) -> Result<Self, ManagerError> {
        let base = config::client::load(&config.kube_client, &product, NODE_CLIENT).await?;
        let host = base.kube.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
        let build = |config: &ClientConfig, name: &str| {
            let mut config = config.clone();
            // Nothing is tried again here: attempts are counted by the queues, and retries would repeat writes unseen.
            config.kube.headers.retain(|(header, _)| header != http::header::USER_AGENT);
            if let Ok(agent) = http::HeaderValue::from_str(&config::client::user_agent(&product, name)) {
                config.kube.headers.push((http::header::USER_AGENT, agent));
            }
            config::client::connect::client(&config).map_err(|error| ManagerError::Client(Box::new(error)))
        };
        // Built once here, so that a bad certificate is an error now and not in a controller.
        let mut clients = BTreeMap::new();
        for name in ACCOUNTS.into_iter().chain(["leader-election", "events", "shared-informers"]) {
            clients.insert(name, build(&base, name)?);
        }
        let manager = build(&base, wk::COMPONENT_MANAGER)?;
        let mut accounts = None;
        // A shadow asks for no tokens either.
        if config.generic.use_service_account_credentials && !config.shadow.is_on() {
            let mut stripped = base.clone();
            stripped.kube.auth_info = AuthInfo::default();
            let anonymous = ACCOUNTS.map(|name| Ok((name, build(&stripped, &service_account::user(name))?)));
            let anonymous: Result<Vec<_>, ManagerError> = anonymous.into_iter().collect();
            accounts = Some(ServiceAccounts::new(manager.clone(), anonymous?));
        }
        let clients = move |name: &str| clients.get(name).unwrap_or(&manager).clone();
        Ok(Self {
            service_accounts: accounts,
            ..Self::with_clients(product, config, provider, Arc::new(clients), host)
        })
    }

    /// Makes a manager with clients of the caller's own, for example of an API server in the same process.
    pub fn with_clients(
        product: Product,
        config: Config,
        provider: Arc<dyn CloudProvider>,
        clients: ClientFactory,
        host: impl Into<String>,
    ) -> Self {
        let (surface, clock) = (Observability::new(&config), WallClock::system());
        // The last wall, behind the write gate: whoever holds a client of a shadow cannot write with it.
        let clients = if config.shadow.is_on() { read_only(clients) } else { clients };
        let Observability { registry, health, shadow_report } = surface;
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
            output: stdout(),
            on_connect: Mutex::default(),
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

    /// Replaces where a shadow prints, for tests.
    #[must_use]
    pub fn with_output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Has it show itself where the pages look already, because they are served before there is a manager.
    #[must_use]
    pub fn with_observability(self, surface: Observability) -> Self {
        let Observability { registry, health, shadow_report: board } = surface;
        Self { registry, health, shadow_report: board, ..self }
    }

    /// Returns the registry of the process.
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// Returns the health checks of the process, to which the manager adds its own while it runs.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Has this done when the API server was reached, before the election. If it fails the manager does not go on.
    #[must_use]
    pub fn on_api_server_reachable(
        mut self,
        prelude: impl Future<Output = Result<(), AuthError>> + Send + 'static,
    ) -> Self {
        *self.on_connect.get_mut() = Some(prelude.boxed());
        self
    }

    /// Runs until `stop` is cancelled, leadership is lost, or something fails.
    pub async fn run(mut self, stop: CancellationToken) -> Result<ManagerExit, ManagerError> {
        self.migration = LeaderMigration::load(&self.config, &self.product.controllers)?;
        self.log_leader_migration();
        if !self.provider.has_cluster_id() {
            if !self.config.generic.allow_untagged_cloud {
                return Err(ManagerError::NoClusterId(self.provider.name().to_owned()));
            }
            tracing::warn!("cloud provider has no cluster ID; its objects cannot be told from another cluster's");
        }
        match stop.run_until_cancelled(self.wait_for_api_server()).await {
            Some(reachable) => reachable?,
            None => return Ok(self.stopped()),
        }
        if let Some(prelude) = self.on_connect.get_mut().take() {
            match stop.run_until_cancelled(prelude).await {
                Some(done) => done?,
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

    /// Runs caches, controllers and the provider until `stop`, or until one of them ends. Controllers that need the
    /// migration lock wait for it.
    async fn lead(
        &self,
        stop: CancellationToken,
        gates: WriteGates,
        migration: Option<LeaderElector>,
        metrics: &Telemetry,
    ) -> Result<ManagerExit, ManagerError> {
        let mut tasks = Tasks::new(stop.clone());
        let migrated = match stop.run_until_cancelled(self.start(&mut tasks, &gates, metrics)).await {
            Some(started) => started?,
            None => return Ok(ManagerExit::Stopped),
        };
        let main = async { election::task_result(tasks.run(DRAIN_LIMIT).await) };
        match migration.filter(|_| !migrated.is_empty()) {
            Some(elector) => {
                let (main, migrated) = tokio::join!(main, election::run_migrated_controllers(elector, migrated, &stop));
                main.and(migrated)
            }
            None => main.await.map(|()| ManagerExit::Stopped),
        }
    }

    /// Starts caches, the provider and the controllers, in this order; but the controllers are attached to the caches
    /// first, so that they see every change. Returns those that wait for the migration lock.
    async fn start(
        &self,
        tasks: &mut Tasks,
        gates: &WriteGates,
        metrics: &Telemetry,
    ) -> Result<Vec<NamedTask>, ManagerError> {
        let mut wiring = ControllerBuilder::new(self, gates, metrics, tasks.stop(), RunMode::Lead);
        wiring.add_all()?;
        let ControllerBuilder { mut controllers, caches, context, .. } = wiring;
        metrics.caches_syncing();
        caches.start(tasks).await?;
        // Once, whatever locks there are.
        self.start_provider(&context, metrics).await?;
        controllers.extend(self.provider_controllers(&context, gates));
        metrics.started_leading();
        let (migrated, main) = self.stagger_starts(controllers, metrics, tasks.stop());
        for NamedTask { name, run } in main {
            tasks.spawn(name, run);
        }
        Ok(migrated)
    }

    /// The provider's own controllers that are selected.
    fn provider_controllers(&self, context: &ProviderContext, gates: &WriteGates) -> Vec<(ControllerLock, NamedTask)> {
        let task = |extra: ProviderController| {
            let lock = self.is_enabled(extra.name).then(|| self.lock(extra.name))?;
            let context = ProviderContext { write_gate: gates.for_lock(lock).clone(), ..context.clone() };
            let run = (extra.run)(context);
            Some((lock, NamedTask { name: extra.name, run: async move { Ok(run.await?) }.boxed() }))
        };
        self.provider.controllers().into_iter().filter_map(task).collect()
    }

    /// Has each controller begin after those before it, as `--controller-start-interval` says, and counted from then on.
    /// Returns those under the migration lock, then the others.
    fn stagger_starts(
        &self,
        controllers: Vec<(ControllerLock, NamedTask)>,
        metrics: &Telemetry,
        stop: &CancellationToken,
    ) -> (Vec<NamedTask>, Vec<NamedTask>) {
        let interval = self.config.generic.controller_start_interval;
        let mut delay = Duration::ZERO;
        let (mut migrated, mut main) = (Vec::new(), Vec::new());
        for (lock, NamedTask { name, run }) in controllers {
            let (metrics, stop) = (metrics.clone(), stop.clone());
            let wait = delay;
            // Helpers of controllers have no name that can be selected, and are there from the start.
            if self.config.generic.controllers.is_enabled(name) {
                // As upstream: up to twice as long, so that replicas of many clusters do not march in step.
                delay += interval.mul_f64(1.0 + rand::random::<f64>());
            }
            let run = async move {
                if !wait.is_zero() && stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                    return Ok(());
                }
                metrics.controller_started(name);
                run.await
            };
            let list = if lock == ControllerLock::Migration { &mut migrated } else { &mut main };
            list.push(NamedTask { name, run: run.boxed() });
        }
        (migrated, main)
    }

    /// Tells whether a controller runs in this process, under whatever lock.
    fn is_enabled(&self, name: &str) -> bool {
        self.config.generic.controllers.is_enabled(name) && self.lock(name) != ControllerLock::OtherManager
    }

    /// Returns the lock that a controller needs.
    fn lock(&self, name: &str) -> ControllerLock {
        self.migration
            .as_ref()
            .map_or(ControllerLock::Main, |migration| migration.lock(name, &self.product.controllers))
    }

    fn node_fields(&self) -> NodeFields {
        let mut fields = self.provider.node_fields();
        // A refresh compares labels whose keys only the cloud knows.
        fields.all_labels |= self.refreshes_labels();
        fields
    }

    fn refreshes_labels(&self) -> bool {
        self.config.feature_gates.is_enabled(ADDITIONAL_LABELS_RECONCILIATION)
    }

    fn log_leader_migration(&self) {
        let Some(migration) = &self.migration else { return };
        for name in migration.unknown(&self.product.controllers) {
            tracing::warn!(controller = name, "leader migration names a controller that is not known here");
        }
        for info in self.product.controllers.iter().filter(|c| self.config.generic.controllers.is_enabled(c.name)) {
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

    /// Waits until the API server answers at all. What it answers (401, 403, 503) is for the requests that follow to
    /// report: they know what they need.
    async fn wait_for_api_server(&self) -> Result<(), ManagerError> {
        let client = (self.clients)(wk::COMPONENT_MANAGER);
        let give_up = Instant::now() + API_SERVER_WAIT;
        loop {
            let failure = match tokio::time::timeout(API_SERVER_TIMEOUT, ping(&client)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(elapsed) => kube::Error::Service(elapsed.into()),
            };
            if Instant::now() >= give_up {
                return Err(ManagerError::Unreachable { host: self.host.clone(), source: Box::new(failure) });
            }
            tracing::warn!(host = self.host, error = chain(&failure), "API server cannot be reached, trying again");
            tokio::time::sleep(API_SERVER_POLL_INTERVAL).await;
        }
    }
}

async fn ping(client: &kube::Client) -> Result<(), kube::Error> {
    let request = Request::get("/healthz").body(Body::empty()).map_err(kube::Error::HttpError)?;
    client.send(request).await.map(drop)
}
