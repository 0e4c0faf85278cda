//! The mock provider, which translates the framework's requests to calls of the mock cloud.

mod findings;
mod instances;
mod inventory;
mod load_balancer;
mod routes;

use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;
use ccm_core::{
    k8s::{NodeFields, NodeView, well_known},
    provider::{
        CheckedCluster, CloudError, CloudProvider, Finding, Instances, Inventory, LoadBalancers,
        NodeOwnership, Op, ProviderContext, Routes,
    },
};

use crate::{
    client::RemoteCloud,
    cloud::{
        CloudApi, MockCloud, ProviderId,
        config::{CloudConfig, Features},
        provider_id::{SCHEME, scheme_of},
    },
};

pub use findings::MockFinding;
pub use load_balancer::annotations;

/// The mock provider, with all four capabilities.
#[derive(Clone)]
pub struct MockProvider {
    api: Arc<dyn CloudApi>,
    /// The cloud, unless it is in another process.
    cloud: Option<MockCloud>,
    region: Arc<str>,
    settings: Arc<Settings>,
}

/// Settings of the provider itself, which apply wherever the cloud runs.
#[derive(Debug, Default)]
struct Settings {
    features: Features,
    classes: Vec<Box<str>>,
    /// Labels that node selectors may use in addition to the framework's. `*` means all labels.
    selector_labels: Vec<String>,
}

impl Settings {
    fn new(config: &CloudConfig) -> Self {
        Self {
            features: config.features.clone(),
            classes: config
                .load_balancer_classes
                .iter()
                .map(|class| class.as_str().into())
                .collect(),
            selector_labels: config.node_selector_labels.clone(),
        }
    }

    /// Returns true if node selectors may use this label, which is not one of the framework's.
    fn allows_selector_label(&self, label: &str) -> bool {
        self.selector_labels
            .iter()
            .any(|selector_label| selector_label == label || selector_label == "*")
    }
}

impl MockProvider {
    /// Creates a provider from its configuration, with a cloud in this process or for the cloud at
    /// `endpoint`. With `endpoint` and without `region`, it waits until the cloud returns its
    /// region, because nodes are claimed by region.
    ///
    /// # Errors
    /// Returns an error if an instance in the configuration is invalid, or the cloud answers the
    /// query for its region with an error.
    pub async fn new(config: &CloudConfig) -> Result<Self, CloudError> {
        let Some(endpoint) = &config.endpoint else {
            let cloud = MockCloud::new(config)
                .map_err(|error| CloudError::invalid_input("cloud config").with_source(error))?;
            return Ok(Self::new_in_process(cloud).with_config(config));
        };
        for key in config.ignored_keys() {
            tracing::warn!(key, "cloud config key has no effect because endpoint is set");
        }
        let remote = RemoteCloud::new(endpoint.clone());
        let region = match &config.region {
            Some(region) => region.clone(),
            None => remote.region().await?,
        };
        let settings = Arc::new(Settings::new(config));
        Ok(Self {
            api: Arc::new(remote),
            cloud: None,
            region: region.into(),
            settings,
        })
    }

    /// Creates a provider for a cloud in this process, with the default features.
    pub fn new_in_process(cloud: MockCloud) -> Self {
        let region = cloud.region().into();
        Self {
            api: Arc::new(cloud.clone()),
            cloud: Some(cloud),
            region,
            settings: Arc::default(),
        }
    }

    /// Applies the keys of the configuration that concern the provider itself: `features`,
    /// `loadBalancerClasses` and `nodeSelectorLabels`. Other keys have no effect here.
    #[must_use]
    pub fn with_config(mut self, config: &CloudConfig) -> Self {
        self.settings = Arc::new(Settings::new(config));
        self
    }

    /// Replaces the API through which the provider calls the cloud, for tests that intercept calls.
    #[must_use]
    pub fn with_api(self, api: Arc<dyn CloudApi>) -> Self {
        Self { api, ..self }
    }

    /// Returns the cloud, or `None` if it is in another process.
    pub fn cloud(&self) -> Option<&MockCloud> {
        self.cloud.as_ref()
    }

    /// Returns the region whose nodes the provider claims.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Returns true if a provider ID belongs to this cloud, or if it has the mock's scheme and is
    /// malformed.
    fn owns_provider_id(&self, id: &str) -> bool {
        if scheme_of(id) != Some(SCHEME) {
            return false;
        }
        match id.parse::<ProviderId>() {
            Ok(id) => id.region == *self.region,
            Err(_) => true,
        }
    }
}

impl std::fmt::Debug for MockProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let remote = self.cloud.is_none();
        f.debug_struct("MockProvider")
            .field("region", &self.region)
            .field("remote", &remote)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl CloudProvider for MockProvider {
    fn name(&self) -> &'static str {
        SCHEME
    }

    /// Returns the ownership by scheme and region of the provider ID. A node with a malformed ID
    /// with the mock's scheme is claimed, so that the ID gets reported. A node without provider ID
    /// is foreign if it has a label with another region.
    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        let is_ours = match &node.provider_id {
            Some(id) => self.owns_provider_id(id),
            None => [well_known::LABEL_REGION, well_known::LABEL_REGION_BETA]
                .iter()
                .filter_map(|key| node.labels.get(key))
                .all(|region| region == &*self.region),
        };
        if is_ours {
            NodeOwnership::Ours
        } else {
            NodeOwnership::Foreign
        }
    }

    fn mutation_operations(&self) -> &'static [&'static str] {
        &[
            load_balancer::CREATE,
            load_balancer::MODIFY,
            load_balancer::UPDATE,
            load_balancer::DELETE,
            load_balancer::RETAIN,
            load_balancer::ADOPT,
            routes::CREATE,
            routes::DELETE,
        ]
    }

    /// Requests the labels that node selectors may use.
    fn node_fields(&self) -> NodeFields {
        let labels = &self.settings.selector_labels;
        NodeFields {
            all_labels: labels.iter().any(|label| label == "*"),
            labels: labels
                .iter()
                .filter(|label| *label != "*")
                .cloned()
                .map(Cow::Owned)
                .collect(),
            ..NodeFields::default()
        }
    }

    async fn start(&self, _: ProviderContext) -> Result<(), CloudError> {
        Ok(())
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }

    async fn check(&self, op: &Op, cluster: CheckedCluster<'_>) -> Vec<Finding> {
        self.find_problems(op, cluster).await
    }
}

#[cfg(test)]
mod tests;
