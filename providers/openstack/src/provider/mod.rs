//! The provider: the parts of this crate, combined for one cloud, project and region.

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
        CloudError, CloudProvider, ErrorKind, Instances, Inventory, NodeOwnership, Op,
        ProviderContext, Routes,
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

/// Name of the provider: `--cloud-provider`, and scheme of its provider IDs.
pub const NAME: &str = "openstack";

/// Why the provider cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// No token was issued.
    #[error("the cloud gives no token")]
    Token(#[source] OpenStackError),
    /// Load balancers are enabled, and a service that they need is missing.
    #[error(
        "load balancers need a service that is missing; [LoadBalancer] enabled=false does without them"
    )]
    LoadBalancers(#[source] OpenStackError),
    /// Octavia does not report its versions.
    #[error("what Octavia can do cannot be found out")]
    Octavia(#[source] CloudError),
    /// It cannot be found out what the network service supports for routes.
    #[error("routes of router {router} cannot be offered")]
    Routes {
        /// `router-id`.
        router: Box<str>,
        /// Cause.
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
    /// True when the metrics of requests are registered: `start` may be called again.
    registered: Mutex<bool>,
}

impl OpenStackProvider {
    /// Creates a provider: requests a token, and checks that the cloud has what is configured.
    /// `cluster` is the value of `--cluster-name`, which is part of every name.
    ///
    /// # Errors
    /// No token was issued, or a service that is needed is missing.
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
        let load_balancers = load_balancers(&settings, &client, cluster).await?;
        let instances = instances(&settings, &client).await;
        let routes = routes(&settings, &client).await?;
        let region = &settings.cloud.region;
        let interface = settings.cloud.interface.as_str();
        tracing::info!(%region, interface, "OpenStack");
        Ok(Self {
            client,
            settings: Arc::new(settings),
            instances,
            routes,
            load_balancers,
            registered: Mutex::new(false),
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
        let mut registered = self.registered.lock();
        if !*registered {
            self.client.register(registry).map_err(|error| {
                CloudError::invalid_input("metrics of OpenStack requests cannot be offered")
                    .with_source(error)
            })?;
            *registered = true;
        }
        Ok(())
    }
}

/// Returns why a service cannot be used; `None` if the catalog has it.
async fn missing(client: &Client, service: Service) -> Option<OpenStackError> {
    client.session().endpoint(service).await.err()
}

/// Returns the load balancers, unless they are disabled. They need Neutron and Octavia.
async fn load_balancers(
    settings: &Settings,
    client: &Client,
    cluster: Arc<str>,
) -> Result<Option<LoadBalancers>, ProviderError> {
    let Some(settings) = &settings.load_balancer else {
        return Ok(None);
    };
    for service in [Service::Network, Service::LoadBalancer] {
        if let Some(error) = missing(client, service).await {
            return Err(ProviderError::LoadBalancers(error));
        }
    }
    if settings.container_store == ContainerStore::Barbican
        && let Some(error) = missing(client, Service::KeyManager).await
    {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "certificates of listeners cannot be checked");
    }
    let load_balancers = LoadBalancers::new(client.clone(), settings.into(), cluster)
        .await
        .map_err(ProviderError::Octavia)?;
    Ok(Some(load_balancers))
}

/// Returns the instances, unless Nova or Neutron is missing.
async fn instances(settings: &Settings, client: &Client) -> Option<NovaInstances> {
    let no_compute = missing(client, Service::Compute).await;
    let no_network = missing(client, Service::Network).await;
    if let Some(error) = no_compute.or(no_network) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "nodes are not looked after");
        return None;
    }
    Some(NovaInstances::new(settings::instances(settings), ServerCache::new(client.clone())))
}

/// Returns the routes, where a router is configured and the network service supports them.
async fn routes(
    settings: &Settings,
    client: &Client,
) -> Result<Option<NeutronRoutes>, ProviderError> {
    let Some(router) = &settings.router else {
        tracing::info!("routes are not offered: the cloud config has no router-id in [Route]");
        return Ok(None);
    };
    // This happens before leadership: it only reads.
    let op = Op::new("", CancellationToken::new(), WriteGate::always_closed());
    let detected = Extensions::detect(client, &op)
        .await
        .map_err(|source| ProviderError::Routes { router: router.clone(), source })?;
    let Some(extensions) = detected else {
        tracing::warn!(
            "routes are not offered: the network service has neither extraroute nor extraroute-atomic"
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

    /// The scheme of the provider ID decides. A malformed ID of our scheme is ours, so that it is
    /// reported, and so is one without any scheme, which some tools write.
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

    /// Every label, because annotations of Services select members by label.
    fn node_fields(&self) -> NodeFields {
        NodeFields { all_labels: true, ..NodeFields::default() }
    }

    /// Registers metrics. The cloud need not answer.
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
}
