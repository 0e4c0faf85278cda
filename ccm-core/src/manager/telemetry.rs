//! The metrics of the process, and API clients whose requests are counted. The metrics are
//! registered before leader election, because a standby exposes them too.

use std::sync::Arc;

use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};
use tokio_util::sync::CancellationToken;

use super::{Manager, health::LeaderHealthChecks};
use crate::{
    config::controller_names as names,
    k8s::well_known,
    provider::call_metrics::{CloudMetrics, MutationMetrics},
    runtime::{
        api::{ApiMetrics, ClientMiddleware, RateLimit},
        cache::Cache,
        encoding::CachedObject,
        events::EventMetrics,
        reflector::CacheMetrics,
    },
    telemetry::{
        controller_metrics::ControllerMetrics,
        metrics::register,
        process::{register_build_info, register_process},
    },
    write_gate::WriteGate,
};

/// The metrics that do not belong to a single controller.
#[derive(Clone, Debug)]
pub(super) struct Telemetry {
    pub(super) api: ApiMetrics,
    pub(super) events: EventMetrics,
    pub(super) caches: CacheMetrics,
    pub(super) cloud: CloudMetrics,
    pub(super) mutations: MutationMetrics,
    pub(super) controllers: ControllerMetrics,
    checks: LeaderHealthChecks,
    running: IntGaugeVec,
    leading: IntGauge,
}

impl Telemetry {
    /// Registers all metrics.
    pub(super) fn register(manager: &Manager) -> prometheus::Result<Self> {
        let Manager { product, registry, provider, host, health, .. } = manager;
        register_build_info(registry, product.version, product.commit)?;
        register_process(registry)?;
        health.register(registry)?;
        let api = ApiMetrics::register(registry)?;
        api.init(host);
        let controllers = ControllerMetrics::register(registry)?;
        Ok(Self {
            api,
            checks: LeaderHealthChecks::new(health, controllers.progress.clone()),
            events: EventMetrics::register(registry)?,
            caches: CacheMetrics::register(registry)?,
            cloud: CloudMetrics::register(registry)?,
            mutations: MutationMetrics::register(registry, provider.mutation_operations())?,
            controllers,
            running: register_running_controllers(registry)?,
            leading: register_leading(registry)?,
        })
    }

    /// Records that the caches of the controllers are being filled.
    pub(super) fn caches_syncing(&self) {
        self.checks.set_caches_syncing(true);
    }

    /// Records that the caches of the controllers are synced.
    pub(super) fn caches_synced(&self) {
        self.checks.set_caches_syncing(false);
    }

    /// Adds the health check of a cache that only some controllers wait for.
    pub(super) fn add_cache_check<T: CachedObject>(&self, task: &'static str, cache: &Cache<T>) {
        self.checks.add_cache(task, cache);
    }

    /// Records that this process starts its controllers: as leader, or without leader election.
    pub(super) fn started_leading(&self) {
        self.leading.set(1);
    }

    /// Records that a controller was started.
    pub(super) fn controller_started(&self, controller: &'static str) {
        if let Some(label) = metric_name(controller) {
            self.running
                .with_label_values(&[label, well_known::COMPONENT_MANAGER])
                .set(1);
            self.checks.add_controller(controller);
        }
    }

    /// Wraps a plain client with its own rate limit. Upstream has one limit for the events
    /// and the writes of a controller, so that many events delay its writes.
    pub(super) fn client(
        &self,
        manager: &Manager,
        client: kube::Client,
        gate: &WriteGate,
        shutdown: &CancellationToken,
    ) -> kube::Client {
        let flags = &manager.config.kube_client;
        self.client_middleware(
            manager,
            RateLimit::new(f64::from(flags.qps), flags.burst),
            gate.clone(),
            shutdown.clone(),
        )
        .wrap(client)
    }

    /// Creates a client for leader election. It has no rate limit, because nothing may delay a
    /// renewal. Its gate is always open, because the election opens the gates of the other clients.
    pub(super) fn election_client(&self, manager: &Manager, name: &str) -> kube::Client {
        let limit = RateLimit::unlimited();
        let gate = WriteGate::always_open();
        self.client_middleware(manager, limit, gate, CancellationToken::new())
            .wrap((manager.clients)(name))
    }

    fn client_middleware(
        &self,
        manager: &Manager,
        limit: RateLimit,
        gate: WriteGate,
        shutdown: CancellationToken,
    ) -> ClientMiddleware {
        ClientMiddleware {
            limit,
            gate,
            metrics: self.api.clone(),
            host: Arc::from(&*manager.host),
            shutdown,
        }
    }
}

/// Registers the gauge that shows whether this process runs controllers.
fn register_leading(registry: &Registry) -> prometheus::Result<IntGauge> {
    let help = "Whether this process runs controllers: 1, or 0 for a standby.";
    register(registry, IntGauge::new("ccm_leading", help)?)
}

/// Registers upstream's gauge of running controllers, which is 0 for each until it runs.
fn register_running_controllers(registry: &Registry) -> prometheus::Result<IntGaugeVec> {
    let help = "Indicates where instances of a controller are currently running.";
    let gauge =
        IntGaugeVec::new(Opts::new("running_managed_controllers", help), &["name", "manager"])?;
    for controller in names::standard() {
        if let Some(label) = controller.aliases.first() {
            gauge
                .with_label_values(&[*label, well_known::COMPONENT_MANAGER])
                .set(0);
        }
    }
    register(registry, gauge)
}

/// Returns the label of a controller in upstream's gauge, which is its first alias.
fn metric_name(name: &str) -> Option<&'static str> {
    names::standard()
        .into_iter()
        .find(|c| c.name == name)
        .and_then(|c| c.aliases.first().copied())
}

/// Registers the metrics that the manager itself defines, for the metrics reference.
#[cfg(test)]
pub(crate) fn register_own(registry: &Registry) -> prometheus::Result<()> {
    register_running_controllers(registry)?;
    register_leading(registry).map(drop)
}
