//! The provider for Meadow, a fictional cloud with a REST API.

mod instances;
mod load_balancers;
mod routes;

use std::sync::Arc;

use ccm_core::provider::prelude::*;
use serde::{Deserialize, de::DeserializeOwned};

/// Name of the provider: `--cloud-provider`, and scheme of its provider IDs.
pub const NAME: &str = "meadow";

/// The file of `--cloud-config`, in YAML.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address of the API, such as `https://api.meadow.example`.
    pub url: String,
    /// Token of the project. A secret, so this type has no `Debug`.
    pub token: String,
}

/// The provider.
pub struct Meadow {
    api: RestClient,
}

impl Meadow {
    /// Makes a provider whose requests go through `transport`.
    pub fn new(config: &Config, transport: Arc<dyn Transport>) -> Result<Self, CloudError> {
        let api = RestClient::new(&config.url, transport)?
            .with_token(&config.token)?
            .with_error_format(ERRORS);
        Ok(Self { api })
    }

    /// Lists the objects with these labels: all pages of `{"items": […], "next": "path"}`, or an
    /// error.
    async fn list<T: DeserializeOwned>(
        &self,
        op: &Op,
        what: &str,
        labels: &[(&str, &str)],
    ) -> Result<Vec<T>, CloudError> {
        #[derive(Deserialize)]
        struct Page<T> {
            items: Vec<T>,
            next: Option<String>,
        }
        self.api
            .list(op, &path(what, &[], labels), |page: Page<T>| (page.items, page.next))
            .await
    }
}

/// Meadow's errors: `{"code": "not_found", "message": "there is no instance ins-7"}`.
const ERRORS: ErrorFormat = ErrorFormat {
    code: "/code",
    message: "/message",
    kinds: &[("not_found", ErrorKind::NotFound), ("quota_exceeded", ErrorKind::QuotaExceeded)],
};

impl CloudProvider for Meadow {
    fn name(&self) -> &str {
        NAME
    }

    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        NodeOwnership::by_scheme(NAME, node)
    }

    fn mutation_operations(&self) -> &'static [&'static str] {
        SIMPLE_OPERATIONS
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        Some(self)
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        Some(self)
    }

    fn inventory(&self) -> Option<&dyn Inventory> {
        Some(self)
    }
}
