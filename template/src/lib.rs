//! The provider for Acme.

mod instances;

use std::sync::Arc;

use ccm_core::provider::prelude::*;
use serde::Deserialize;

/// Name of the provider: `--cloud-provider`, and scheme of its provider IDs.
pub const NAME: &str = "acme";

/// The file of `--cloud-config`, in YAML.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address of the API, such as `https://api.acme.example`.
    pub url: String,
    /// Token of the project. A secret, so this type has no `Debug`.
    pub token: String,
}

/// The provider.
pub struct Acme {
    #[expect(dead_code, reason = "nothing asks the cloud yet: this line goes with the first request")]
    api: RestClient,
}

impl Acme {
    /// Makes a provider whose requests go through `transport`.
    pub fn new(config: &Config, transport: Arc<dyn Transport>) -> Result<Self, CloudError> {
        let api = RestClient::new(&config.url, transport)?.with_token(&config.token)?;
        Ok(Self { api })
    }
}

/// What is not here is not offered, and its controller does not start: routes, load balancers,
/// inventory.
impl CloudProvider for Acme {
    fn name(&self) -> &str {
        NAME
    }

    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        NodeOwnership::by_scheme(NAME, node)
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }
}
