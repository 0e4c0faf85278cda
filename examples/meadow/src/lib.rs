//! The provider for Meadow, a fictional cloud with a REST API.

mod balancers;
mod instances;
mod routes;

use std::sync::Arc;

use ccm_core::provider::{prelude::*, simple};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

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
    api: Rest,
}

impl Meadow {
    /// Makes a provider whose requests go through `transport`.
    pub fn new(config: &Config, transport: Arc<dyn Transport>) -> Result<Self, CloudError> {
        let api = Rest::new(&config.url, transport)?.with_token(&config.token)?.with_faults(fault);
        Ok(Self { api })
    }

    /// Lists what has these labels: every page of `{"items": […], "next": "path"}`, or an error.
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
        self.api.list(op, &path(what, &[], labels), |page: Page<T>| (page.items, page.next)).await
    }
}

/// Reads Meadow's own errors: `{"code": "not_found", "message": "there is no instance ins-7"}`.
fn fault(body: &[u8]) -> Option<Fault> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let kind = match body["code"].as_str()? {
        "not_found" => Some(ErrorKind::NotFound),
        "quota_exceeded" => Some(ErrorKind::QuotaExceeded),
        _ => None,
    };
    Some(Fault { kind, message: body["message"].as_str()?.to_owned() })
}

impl CloudProvider for Meadow {
    fn name(&self) -> &str {
        NAME
    }

    fn claims_node(&self, node: &NodeView) -> NodeClaim {
        NodeClaim::by_scheme(NAME, node)
    }

    fn mutations(&self) -> &'static [&'static str] {
        &[routes::CREATE, routes::DELETE, simple::CREATE, simple::CHANGE, simple::DELETE]
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
