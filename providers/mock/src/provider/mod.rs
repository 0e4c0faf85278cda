//! The provider: what the framework asks, put to the mock cloud.

mod instances;
mod inventory;
mod load_balancers;
mod routes;

use std::sync::Arc;

use async_trait::async_trait;
use ccm_core::{
    k8s::{NodeView, well_known as wk},
    provider::{
        CloudError, CloudProvider, Instances, Inventory, LoadBalancers, NodeClaim, Op, ProviderContext, Routes,
    },
};

use crate::{
    client::RemoteCloud,
    cloud::{
        CloudApi, MockCloud, ProviderId,
        provider_id::{SCHEME, scheme_of},
    },
    config::CloudConfig,
};

/// The mock provider, with all four capabilities.
#[derive(Clone)]
pub struct MockProvider {
    api: Arc<dyn CloudApi>,
    /// The cloud, unless it is in another process.
    cloud: Option<MockCloud>,
    region: Arc<str>,
}

impl MockProvider {
    /// Makes a provider from its configuration: with a cloud of its own, or for the one at `endpoint`.
    ///
    /// # Errors
    /// An invalid instance in the configuration; with `endpoint` and without `region`, a cloud that does not answer
    /// within ten seconds.
    pub async fn new(config: &CloudConfig) -> Result<Self, CloudError> {
        let Some(endpoint) = &config.endpoint else {
            let invalid = |error| CloudError::invalid_input("cloud config").with_source(error);
            return Ok(Self::over(MockCloud::new(config).map_err(invalid)?));
        };
        for key in config.ignored_keys() {
            tracing::warn!(key, "cloud config key has no effect because endpoint is set");
        }
        let remote = RemoteCloud::new(endpoint.clone());
        let region = match &config.region {
            Some(region) => region.clone(),
            None => remote.region().await?,
        };
        Ok(Self { api: Arc::new(remote), cloud: None, region: region.into() })
    }

    /// Makes a provider for a cloud in this process.
    pub fn over(cloud: MockCloud) -> Self {
        let region = cloud.region().into();
        Self { api: Arc::new(cloud.clone()), cloud: Some(cloud), region }
    }

    /// Returns the cloud, unless it is in another process.
    pub fn cloud(&self) -> Option<&MockCloud> {
        self.cloud.as_ref()
    }

    /// Returns the region whose nodes are ours.
    pub fn region(&self) -> &str {
        &self.region
    }

    /// Fails unless the operation may start a request that changes something.
    fn check_write(op: &Op) -> Result<(), CloudError> {
        op.may_write()
    }
}

impl std::fmt::Debug for MockProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let remote = self.cloud.is_none();
        f.debug_struct("MockProvider").field("region", &self.region).field("remote", &remote).finish_non_exhaustive()
    }
}

#[async_trait]
impl CloudProvider for MockProvider {
    fn name(&self) -> &'static str {
        SCHEME
    }

    /// A provider ID decides by scheme and region; a malformed one of our scheme is ours, so that it is reported.
    /// Without one, a region label of another region makes the node foreign.
    fn claims_node(&self, node: &NodeView) -> NodeClaim {
        let ours = match node.provider_id.as_deref() {
            Some(id) if scheme_of(id) != Some(SCHEME) => false,
            Some(id) => id.parse::<ProviderId>().map_or(true, |id| id.region == *self.region),
            None => {
                let labels = [wk::LABEL_REGION, wk::LABEL_REGION_BETA];
                labels.iter().filter_map(|key| node.labels.get(key)).all(|region| region == &*self.region)
            }
        };
        if ours { NodeClaim::Ours } else { NodeClaim::Foreign }
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
}

#[cfg(test)]
mod tests;
