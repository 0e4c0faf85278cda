//! The OpenStack provider, which combines instances, routes and load balancers for one cloud,
//! project and region.

mod check;
mod settings;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

use async_trait::async_trait;
use ccm_core::{
    k8s::{NodeFields, NodeView},
    provider::{
        CheckedCluster, CloudError, CloudProvider, ErrorKind, Finding, Instances, Inventory,
        NodeOwnership, Op, ProviderContext, Routes,
    },
    write_gate::WriteGate,
};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio_util::sync::CancellationToken;

use crate::{
    client::{Call, Class, Client, ErrorClass, OpenStackError, Service},
    config::{ContainerStore, Settings},
    instances::{NovaInstances, ServerCache},
    lb::LoadBalancers,
    provider_id,
    routes::{Extensions, NeutronRoutes},
};

pub use self::check::OpenStackFinding;
pub(crate) use self::check::{connection_invalid, not_built};

/// Name of the provider: `--cloud-provider`, and scheme of its provider IDs.
pub const NAME: &str = "openstack";

/// An error that prevents the provider from being created.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// Keystone issued no token.
    #[error("the cloud returned no token")]
    Token(#[source] OpenStackError),
    /// The catalog lacks a service that load balancers need.
    #[error(
        "load balancers need a service that is missing; set [LoadBalancer] enabled=false to run without load balancers"
    )]
    LoadBalancers(#[source] OpenStackError),
    /// Octavia did not report its versions.
    #[error("could not detect Octavia's capabilities")]
    Octavia(#[source] CloudError),
    /// The network service did not report its extensions, of which routes need one.
    #[error("could not detect the network service's support for routes of router {router}")]
    Routes {
        /// The value of `router-id`.
        router: Box<str>,
        /// The error of the request.
        source: OpenStackError,
    },
}

impl ProviderError {
    /// Returns true if the cloud is only temporarily unavailable, so that a retry makes sense.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Token(error)
            | Self::LoadBalancers(error)
            | Self::Routes { source: error, .. } => {
                matches!(error.class(), ErrorClass::Transient | ErrorClass::Throttled)
            }
            Self::Octavia(error) => {
                matches!(error.kind(), ErrorKind::Transient | ErrorKind::Throttled)
            }
        }
    }
}

/// The OpenStack provider.
pub struct OpenStackProvider {
    client: Client,
    settings: Arc<Settings>,
    instances: Option<NovaInstances>,
    routes: Option<NeutronRoutes>,
    load_balancers: Option<LoadBalancers>,
    /// True after the metrics of requests were registered, because `start` may be called again.
    metrics_registered: Mutex<bool>,
}

impl OpenStackProvider {
    /// Connects to the cloud: requests a token, and checks that the cloud has the services that the
    /// settings need. `cluster` is the value of `--cluster-name`, which is part of the name of every
    /// object.
    ///
    /// # Errors
    /// Returns an error if no token was issued, or if a needed service is missing.
    pub async fn connect(
        settings: Settings,
        client: Client,
        cluster: Arc<str>,
    ) -> Result<Self, ProviderError> {
        client
            .session()
            .authenticate()
            .await
            .map_err(ProviderError::Token)?;
        let load_balancers = create_load_balancers(&settings, &client, cluster).await?;
        let instances = create_instances(&settings, &client).await;
        let routes = create_routes(&settings, &client).await?;
        let region = &settings.cloud.region;
        let interface = settings.cloud.interface.as_str();
        tracing::info!(%region, interface, "connected to OpenStack");
        Ok(Self {
            client,
            settings: Arc::new(settings),
            instances,
            routes,
            load_balancers,
            metrics_registered: Mutex::new(false),
        })
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the configuration.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// Registers the metrics of requests, once.
    fn register_metrics(&self, registry: &Registry) -> Result<(), CloudError> {
        let mut registered = self.metrics_registered.lock();
        if !*registered {
            self.client.register(registry).map_err(|error| {
                CloudError::invalid_input("failed to register metrics of OpenStack requests")
                    .with_source(error)
            })?;
            *registered = true;
        }
        Ok(())
    }
}

/// Checks that the catalog has a service.
async fn check_service(client: &Client, service: Service) -> Result<(), OpenStackError> {
    client.session().endpoint(service).await.map(drop)
}

/// Creates the load balancers, which need Neutron and Octavia. Returns `None` if they are disabled.
async fn create_load_balancers(
    settings: &Settings,
    client: &Client,
    cluster: Arc<str>,
) -> Result<Option<LoadBalancers>, ProviderError> {
    let Some(settings) = &settings.load_balancer else {
        return Ok(None);
    };
    for service in [Service::Network, Service::LoadBalancer] {
        check_service(client, service)
            .await
            .map_err(ProviderError::LoadBalancers)?;
    }
    if settings.container_store == ContainerStore::Barbican
        && let Err(error) = check_service(client, Service::KeyManager).await
    {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(
            error,
            "Barbican is missing, certificates of TLS listeners cannot be checked"
        );
    }
    let load_balancers = LoadBalancers::new(client.clone(), settings.into(), cluster)
        .await
        .map_err(ProviderError::Octavia)?;
    Ok(Some(load_balancers))
}

/// Creates the instances. Returns `None` if Nova or Neutron is missing.
async fn create_instances(settings: &Settings, client: &Client) -> Option<NovaInstances> {
    let compute = check_service(client, Service::Compute).await;
    let network = check_service(client, Service::Network).await;
    if let Err(error) = compute.and(network) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "a service is missing, node controllers are not running");
        return None;
    }
    let instance_settings = settings::instance_settings(settings);
    Some(NovaInstances::new(instance_settings, ServerCache::new(client.clone())))
}

/// Creates the routes. Returns `None` if no router is configured, or if the network service does
/// not support routes.
async fn create_routes(
    settings: &Settings,
    client: &Client,
) -> Result<Option<NeutronRoutes>, ProviderError> {
    let Some(router) = &settings.router else {
        tracing::info!("the cloud config has no router-id in [Route], routes are not managed");
        return Ok(None);
    };
    // This process does not lead yet, and detection only reads, so the write gate stays closed.
    let op = Op::new("", CancellationToken::new(), WriteGate::always_closed());
    let detected = Extensions::detect(client, &op)
        .await
        .map_err(|source| ProviderError::Routes { router: router.clone(), source })?;
    let Some(extensions) = detected else {
        tracing::warn!(
            "the network service has neither extraroute nor extraroute-atomic, routes are not managed"
        );
        return Ok(None);
    };
    Ok(Some(NeutronRoutes::new(client.clone(), router.clone(), extensions)))
}

impl std::fmt::Debug for OpenStackProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenStackProvider")
            .field("region", &self.settings.cloud.region)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl CloudProvider for OpenStackProvider {
    fn name(&self) -> &str {
        NAME
    }

    /// Returns [`NodeOwnership::Foreign`] if the provider ID has the scheme of another provider. A
    /// malformed ID with our scheme counts as ours, so that it is reported. So does an ID without
    /// scheme, which some tools write.
    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        match node.provider_id.as_deref() {
            Some(id) if provider_id::is_foreign(id) => NodeOwnership::Foreign,
            _ => NodeOwnership::Ours,
        }
    }

    fn mutation_operations(&self) -> &'static [&'static str] {
        static WRITES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
            let writes = Call::ALL.iter().filter(|call| call.class() == Class::Write);
            let names: BTreeSet<_> = writes.map(|call| call.name()).collect();
            names.into_iter().collect()
        });
        &WRITES
    }

    /// Requests every label, because annotations of Services select members by label, and the system
    /// UUID, by which the server of a Node with another name is found.
    fn node_fields(&self) -> NodeFields {
        NodeFields { all_labels: true, system_uuid: true, ..NodeFields::default() }
    }

    /// Registers metrics. Sends no request to the cloud.
    async fn start(&self, ctx: ProviderContext) -> Result<(), CloudError> {
        self.register_metrics(&ctx.metrics)
    }

    fn instances(&self) -> Option<&dyn Instances> {
        self.instances
            .as_ref()
            .map(|instances| instances as &dyn Instances)
    }

    fn load_balancers(&self) -> Option<&dyn ccm_core::provider::LoadBalancers> {
        self.load_balancers
            .as_ref()
            .map(|load_balancers| load_balancers as &dyn ccm_core::provider::LoadBalancers)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        self.routes.as_ref().map(|routes| routes as &dyn Routes)
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        self.load_balancers
            .as_ref()
            .map(|load_balancers| load_balancers as &dyn Inventory)
    }

    async fn check(&self, op: &Op, cluster: CheckedCluster<'_>) -> Vec<Finding> {
        check::Checks::new(&self.client, &self.settings, op, cluster)
            .run()
            .await
    }
}
