//! Puts the parts together: API clients, election, caches, controllers; and takes them down in order.
//!
//! One manager runs once. Before it leads it renews nothing, watches nothing and asks the cloud nothing; a standby costs
//! one small request per retry period.

mod health;
mod ipam;
mod nodes;
mod route;
mod services;
mod shadow;
mod telemetry;
#[cfg(test)]
pub(crate) use telemetry::register_own;
mod wiring;

use std::{fmt, sync::Arc, time::Duration};

use axum::Router;
use futures::{FutureExt, future::BoxFuture};
use http::Request;
use kube::client::Body;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{
    telemetry::Telemetry,
    wiring::{Wiring, Work, done},
};
use super::{
    events::{EventDriver, EventRecorder, WallClock},
    gate::WriteGate,
    health::Health,
    leader_election::{self, InvalidElection, LeaderElectionMetrics, LeaderElector, Leading, Outcome},
    reflector::FirstSyncTimedOut,
    serving::auth::AuthError,
    shadow::{self as shadow_mode, Board, Output, Verdict, read_only, stdout},
    shutdown::{self, Signal, SignalSource, TaskError, Tasks},
};
use crate::{
    config::{self, Config, Product, client::ClientConfigError, feature_gates::ADDITIONAL_LABELS_RECONCILIATION},
    controllers::node_ipam::NodeIpamError,
    error::chain,
    k8s::{NodeFields, well_known as wk},
    provider::{CloudError, CloudProvider, ProviderContext},
};

/// How long a process waits for an API server that cannot be reached before it ends. Upstream waits 10 s, which a
/// rolling control plane exceeds; a supervisor restarts us anyway.
pub const API_SERVER_PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks, and the time one may take.
const API_SERVER_PAUSE: Duration = Duration::from_secs(1);
const API_SERVER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long running operations may take to end before the lease is released: with the standby's look each second, fail-over
/// stays within 3 s.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// Client name of both node controllers, hence their ServiceAccount and user agent, as upstream.
const NODE_CLIENT: &str = "node-controller";

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
    board: Arc<Mutex<Board>>,
    output: Output,
    /// Behind a lock for the sake of shared references, which nobody takes while it runs.
    prelude: Mutex<Option<BoxFuture<'static, Result<(), AuthError>>>>,
}

/// How a manager ended without an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Asked to stop; the lease, if any, was released.
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
    #[error("API server {host} could not be reached for {}s", API_SERVER_PATIENCE.as_secs())]
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
    /// The election's settings contradict each other.
    #[error(transparent)]
    Election(#[from] InvalidElection),
    /// A metric is registered twice.
    #[error("metrics cannot be registered")]
    Metrics(#[from] prometheus::Error),
    /// The provider cannot tell this cluster's objects from another's.
    #[error("cloud provider {0:?} has no cluster ID; set one, or pass --allow-untagged-cloud")]
    NoClusterId(String),
    /// The node-IPAM controller cannot be made.
    #[error(transparent)]
    NodeIpam(#[from] NodeIpamError),
    /// The provider's start failed.
    #[error("cloud provider could not start")]
    Provider(#[source] CloudError),
    /// The nodes could not be listed.
    #[error(transparent)]
    Cache(#[from] FirstSyncTimedOut),
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
        let host = base.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
        let build = |name: &str| {
            let mut config = base.clone();
            // Attempts are counted by the queues; retries behind their back would repeat writes unseen.
            config.default_retry = false;
            config.headers.retain(|(header, _)| header != http::header::USER_AGENT);
            if let Ok(agent) = http::HeaderValue::from_str(&config::client::user_agent(&product, name)) {
                config.headers.push((http::header::USER_AGENT, agent));
            }
            kube::Client::try_from(config)
        };
        // Built once here, so that a bad certificate is an error now and not in a controller.
        let mut clients = std::collections::BTreeMap::new();
        for name in [
            NODE_CLIENT,
            route::ROUTE_CLIENT,
            services::SERVICE_CLIENT,
            "leader-election",
            "events",
            "shared-informers",
        ] {
            clients.insert(name, build(name).map_err(|e| ManagerError::Client(Box::new(e)))?);
        }
        let manager = build(wk::COMPONENT_MANAGER).map_err(|e| ManagerError::Client(Box::new(e)))?;
        let clients = move |name: &str| clients.get(name).unwrap_or(&manager).clone();
        Ok(Self::with_clients(product, config, provider, Arc::new(clients), host))
    }

    /// Makes a manager with clients of the caller's own, for example of an API server in the same process.
    pub fn with_clients(
        product: Product,
        config: Config,
        provider: Arc<dyn CloudProvider>,
        clients: ClientFactory,
        host: impl Into<String>,
    ) -> Self {
        let (registry, clock) = (Registry::new(), WallClock::system());
        // The last wall, behind the write gate: whoever holds a client of a shadow cannot write with it.
        let clients = if config.shadow.is_on() { read_only(clients) } else { clients };
        let board = Arc::new(Mutex::new(Board::new(config.shadow.settle)));
        Self {
            product,
            config,
            provider,
            clients,
            host: host.into(),
            registry,
            health: Health::default(),
            clock,
            board,
            output: stdout(),
            prelude: Mutex::default(),
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

    /// Returns the pages that are served beside the common ones: `/shadow`, in shadow mode.
    pub fn pages(&self) -> Router {
        if self.config.shadow.is_on() { shadow_mode::pages(self.board.clone()) } else { Router::new() }
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
    pub fn after_first_contact(
        mut self,
        prelude: impl Future<Output = Result<(), AuthError>> + Send + 'static,
    ) -> Self {
        *self.prelude.get_mut() = Some(prelude.boxed());
        self
    }

    /// Runs until `stop` is cancelled, leadership is lost, or something fails.
    pub async fn run(mut self, stop: CancellationToken) -> Result<Exit, ManagerError> {
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
        if let Some(prelude) = self.prelude.get_mut().take() {
            match stop.run_until_cancelled(prelude).await {
                Some(done) => done?,
                None => return Ok(self.stopped()),
            }
        }
        let telemetry = Telemetry::register(&self)?;
        if self.config.shadow.is_on() {
            return Box::pin(self.shadow(stop, &telemetry)).await;
        }
        if self.config.leader_election.enabled {
            return Box::pin(self.elect_and_lead(&stop, &telemetry)).await;
        }
        self.lead(stop, WriteGate::always_open(), &telemetry).await?;
        Ok(Exit::Stopped)
    }

    async fn elect_and_lead(&self, stop: &CancellationToken, metrics: &Telemetry) -> Result<Exit, ManagerError> {
        let (elector, events) = self.elector(metrics)?;
        let _alive = health::leader_election(&self.health, elector.health());
        let mut background = Tasks::new(CancellationToken::new());
        let stop_events = background.stop().clone();
        background.spawn("leader-election-events", done(events.run(stop_events.clone())));
        let gate = elector.gate();
        let result = match elector.acquire(stop).await {
            Some(leading) => self.lead_while_elected(leading, gate, stop, metrics).await,
            None => Ok(Exit::Stopped),
        };
        // Last, so that "stopped leading" is still written.
        stop_events.cancel();
        background.run(NoSignals, DRAIN_LIMIT).await;
        result
    }

    /// Runs the controllers as long as the lease is kept. When a task fails the lease is released as well: the process is
    /// about to end, and nobody should wait for it.
    async fn lead_while_elected(
        &self,
        leading: Leading,
        gate: WriteGate,
        stop: &CancellationToken,
        metrics: &Telemetry,
    ) -> Result<Exit, ManagerError> {
        let (work, end) = (stop.child_token(), CancellationToken::new());
        let keep = async {
            let outcome = leading.run(&end, std::future::ready(()), Duration::ZERO).await;
            // When it was lost: no controller goes on without a lease.
            work.cancel();
            outcome
        };
        let lead = async {
            // When asked to stop, the lease is kept until what was begun has ended and the last events are written.
            let result = self.lead(work.clone(), gate, metrics).await;
            end.cancel();
            result
        };
        let (outcome, result) = tokio::join!(keep, lead);
        result?;
        Ok(match outcome {
            Outcome::Lost { why } => Exit::LeadershipLost(why.to_string()),
            Outcome::Released | Outcome::NotReleased { .. } => Exit::Stopped,
        })
    }

    /// Runs caches, controllers and the provider until `stop`, or until one of them ends.
    async fn lead(&self, stop: CancellationToken, gate: WriteGate, metrics: &Telemetry) -> Result<(), ManagerError> {
        let mut tasks = Tasks::new(stop.clone());
        match stop.run_until_cancelled(self.start(&mut tasks, &gate, metrics)).await {
            Some(started) => started?,
            None => return Ok(()),
        }
        match tasks.run(NoSignals, DRAIN_LIMIT).await {
            // What hangs at the end was dropped; the process is stopping anyway.
            shutdown::Exit::Failed(TaskError::Hanging { .. })
            | shutdown::Exit::Stopped
            | shutdown::Exit::Aborted(_) => Ok(()),
            shutdown::Exit::Failed(error) => Err(error.into()),
        }
    }

    fn elector(&self, metrics: &Telemetry) -> Result<(LeaderElector, EventDriver), ManagerError> {
        let flags = &self.config.leader_election;
        let config = leader_election::LeaderElectionConfig {
            namespace: flags.resource_namespace.clone(),
            name: flags.resource_name.clone(),
            identity: leader_election::identity(&hostname()),
            lease_duration: flags.lease_duration,
            renew_deadline: flags.renew_deadline,
            retry_period: flags.retry_period,
        };
        let (events, driver) = EventRecorder::new(
            metrics.election_client(self, "events"),
            wk::COMPONENT_MANAGER,
            WriteGate::always_open(),
            metrics.events.clone(),
            self.clock.clone(),
        );
        let client = metrics.election_client(self, "leader-election");
        let metrics = LeaderElectionMetrics::register(&self.registry)?;
        Ok((LeaderElector::new(client, config, metrics, events, self.clock.clone())?, driver))
    }

    /// Starts caches, the provider and the controllers, in this order; but the controllers are attached to the caches
    /// first, so that they see every change.
    async fn start(&self, tasks: &mut Tasks, gate: &WriteGate, metrics: &Telemetry) -> Result<(), ManagerError> {
        let mut wiring = Wiring::new(self, gate, metrics, tasks.stop(), Work::Lead);
        wiring.add_all()?;
        let Wiring { controllers, caches, context, .. } = wiring;
        caches.start(tasks).await?;
        self.start_provider(tasks, context).await?;
        metrics.leads();
        for (name, controller) in controllers {
            metrics.runs(name);
            tasks.spawn(name, controller);
        }
        Ok(())
    }

    async fn start_provider(&self, tasks: &mut Tasks, context: ProviderContext) -> Result<(), ManagerError> {
        self.provider.start(context.clone()).await.map_err(ManagerError::Provider)?;
        for extra in self.provider.controllers() {
            if self.config.generic.controllers.is_enabled(extra.name) {
                let run = (extra.run)(context.clone());
                tasks.spawn(extra.name, async move { Ok(run.await?) });
            }
        }
        Ok(())
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

    /// Waits until the API server answers at all. What it answers (401, 403, 503) is for the requests that follow to
    /// report: they know what they need.
    async fn wait_for_api_server(&self) -> Result<(), ManagerError> {
        let client = (self.clients)(wk::COMPONENT_MANAGER);
        let give_up = Instant::now() + API_SERVER_PATIENCE;
        loop {
            let failure = match tokio::time::timeout(API_SERVER_TIMEOUT, look(&client)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(elapsed) => kube::Error::Service(elapsed.into()),
            };
            if Instant::now() >= give_up {
                return Err(ManagerError::Unreachable { host: self.host.clone(), source: Box::new(failure) });
            }
            tracing::warn!(host = self.host, error = chain(&failure), "API server cannot be reached, trying again");
            tokio::time::sleep(API_SERVER_PAUSE).await;
        }
    }
}

/// The manager is asked to stop by a token; signals are the process's business.
struct NoSignals;

impl SignalSource for NoSignals {
    fn next(&mut self) -> impl Future<Output = Signal> + Send {
        std::future::pending()
    }
}

async fn look(client: &kube::Client) -> Result<(), kube::Error> {
    let request = Request::get("/healthz").body(Body::empty()).map_err(kube::Error::HttpError)?;
    client.send(request).await.map(drop)
}

/// Name of this host for the lease's identity: the pod's name inside a cluster.
fn hostname() -> String {
    std::env::var("HOSTNAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}
