//! The AWS provider, which combines all capabilities for one account, region, VPC and cluster.

mod check;

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
    time::Duration,
};

use async_trait::async_trait;
#[cfg(test)]
use ccm_core::runtime::events::WallClock;
use ccm_core::{
    k8s::{NodeFields, NodeView},
    provider::{
        CheckedCluster, CloudError, CloudProvider, Finding, Instances, Inventory, LoadBalancers,
        NodeOwnership, Op, ProviderContext, ProviderController, Routes,
    },
    write_gate::WriteGate,
};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::check::AwsFinding;
pub(crate) use self::check::{config_invalid, connection_failed, not_built};
use crate::{
    api::{Action, Metadata, RequestClass, Transport},
    client::Client,
    config::Settings,
    environment::{self, AwsEnvironment, EnvironmentError},
    instances::{Ec2Instances, InstanceCache},
    lb::NetworkLoadBalancers,
    routes::Ec2Routes,
    scope::Scope,
    tagging,
};

/// Name of the provider for `--cloud-provider`, and scheme of its provider IDs.
pub const NAME: &str = "aws";

/// Time limit for listing all instances at the start. The listing only saves requests later, so it
/// must not delay the start for long.
const PRIME_TIMEOUT: Duration = Duration::from_secs(10);

/// The AWS provider.
pub struct AwsProvider {
    scope: Scope,
    instance_cache: Arc<InstanceCache>,
    instances: Ec2Instances,
    routes: Ec2Routes,
    load_balancers: NetworkLoadBalancers,
    tagging: Option<tagging::Options>,
    /// True if the request metrics are registered. `start` may be called more than once.
    metrics_registered: Mutex<bool>,
}

impl AwsProvider {
    /// Creates a provider and discovers its environment. If the configuration is complete, no
    /// request is sent.
    ///
    /// # Errors
    /// Returns an error if the region or the VPC is neither configured nor found, or if the cluster
    /// cannot be determined.
    pub async fn connect(
        settings: Settings,
        transport: Arc<dyn Transport>,
        metadata: Arc<dyn Metadata>,
    ) -> Result<Self, EnvironmentError> {
        let client = Client::new(transport).with_limits(&settings.limits);
        // Discovery only reads, so it does not need leadership.
        let op = Op::new("", CancellationToken::new(), WriteGate::always_closed());
        let AwsEnvironment { region, vpc, subnet, cluster } =
            environment::discover(&settings, &client, &*metadata, &op).await?;
        let settings = Settings { region: Some((&*region).into()), subnet, ..settings };
        tracing::info!(%region, %vpc, cluster = cluster.id(), "discovered the AWS environment");
        if cluster.id().is_empty() {
            tracing::error!(
                "AWS cloud failed to find ClusterID: the own instance has no tag kubernetes.io/cluster/<ID>, and the \
                 cloud config sets no KubernetesClusterID"
            );
        }
        let scope = Scope { client, cluster, region, vpc, settings: Arc::new(settings) };
        Ok(Self::new(scope))
    }

    /// Creates a provider for a scope that is already discovered.
    pub fn new(scope: Scope) -> Self {
        let instance_cache = InstanceCache::new(scope.clone());
        let instances = Ec2Instances::new(scope.clone(), instance_cache.clone());
        let routes = Ec2Routes::new(scope.clone(), instance_cache.clone());
        let load_balancers = NetworkLoadBalancers::new(scope.clone(), instance_cache.clone());
        Self {
            scope,
            instance_cache,
            instances,
            routes,
            load_balancers,
            tagging: None,
            metrics_registered: Mutex::new(false),
        }
    }

    /// Sets the clock by which moves to other load balancers are drained.
    #[cfg(test)]
    pub(crate) fn with_clock(mut self, clock: WallClock) -> Self {
        self.load_balancers.clock = clock;
        self
    }

    /// Sets the options of the tagging controller. With `None`, the controller does not run.
    #[must_use]
    pub fn with_tagging(mut self, options: Option<tagging::Options>) -> Self {
        self.tagging = options;
        self
    }

    /// Returns the provider's scope.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Registers the request metrics, unless they are registered already.
    fn register_metrics(&self, registry: &Registry) -> Result<(), CloudError> {
        let mut registered = self.metrics_registered.lock();
        if *registered {
            return Ok(());
        }
        if let Err(error) = self.scope.client.register(registry) {
            let message = "cannot register the metrics of AWS requests";
            return Err(CloudError::invalid_input(message).with_source(error));
        }
        *registered = true;
        Ok(())
    }

    /// Lists all instances of the cluster into the cache, so that nodes need not be queried in
    /// small groups. This is an optimization, so an error is only logged.
    async fn prime_instance_cache(&self, op: &Op) {
        if let Err(error) = self.instance_cache.list_all(op).await {
            tracing::warn!(%error, "failed to list the cluster's instances at the start");
        }
    }
}

impl std::fmt::Debug for AwsProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Scope { region, vpc, cluster, .. } = &self.scope;
        f.debug_struct("AwsProvider")
            .field("region", region)
            .field("vpc", vpc)
            .field("cluster", &cluster.id())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl CloudProvider for AwsProvider {
    fn name(&self) -> &str {
        NAME
    }

    fn has_cluster_id(&self) -> bool {
        !self.scope.cluster.id().is_empty()
    }

    /// Returns the ownership by the scheme of the provider ID. A malformed ID with our scheme is
    /// ours, so that it gets reported. An ID without a scheme is ours, too, because it is a bare
    /// instance ID.
    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        if let Some(provider_id) = &node.provider_id
            && let Some((scheme, _)) = provider_id.split_once("://")
            && scheme != NAME
        {
            return NodeOwnership::Foreign;
        }
        NodeOwnership::Ours
    }

    fn mutation_operations(&self) -> &'static [&'static str] {
        static WRITES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
            let mut names = BTreeSet::new();
            for action in Action::ALL {
                if action.class() == RequestClass::Write {
                    names.insert(action.operation());
                }
            }
            names.into_iter().collect()
        });
        &WRITES
    }

    /// Requests all labels, because annotations of Services can select target nodes by any label.
    fn node_fields(&self) -> NodeFields {
        NodeFields { all_labels: true, ..NodeFields::default() }
    }

    /// Registers metrics and lists all instances. Succeeds even if AWS does not answer.
    async fn start(&self, ctx: ProviderContext) -> Result<(), CloudError> {
        self.register_metrics(&ctx.metrics)?;
        let op = Op::new(ctx.cluster_name, ctx.cancel, ctx.write_gate)
            .with_deadline(Instant::now() + PRIME_TIMEOUT);
        self.prime_instance_cache(&op).await;
        Ok(())
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(&self.instances)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(&self.routes)
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(&self.load_balancers)
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(&self.load_balancers)
    }

    fn controllers(&self) -> Vec<ProviderController> {
        match &self.tagging {
            Some(options) => vec![tagging::controller(options.clone(), self.scope.clone())],
            None => Vec::new(),
        }
    }

    async fn check(&self, op: &Op, cluster: CheckedCluster<'_>) -> Vec<Finding> {
        check::Checks::new(self, op, cluster).run().await
    }
}

#[cfg(test)]
mod tests;
