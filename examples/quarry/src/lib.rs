//! The provider for Quarry, a fictional cloud with a REST API whose changes run on after the answer.

mod instances;
mod load_balancers;
mod routes;

use std::sync::Arc;

use ccm_core::provider::prelude::*;
use serde::Deserialize;

/// Name of the provider: `--cloud-provider`, and scheme of its provider IDs.
pub const NAME: &str = "quarry";

/// The file of `--cloud-config`, in YAML.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Address of the API, such as `https://api.quarry.example`.
    pub url: String,
    /// Token of the project. A secret, so this type has no `Debug`.
    pub token: String,
    /// ID of the cluster's network. All its routes belong to the cluster.
    pub network: u64,
}

/// The provider.
pub struct Quarry {
    api: RestClient,
    /// Path of the cluster's network.
    network: String,
}

impl Quarry {
    /// Makes a provider whose requests go through `transport`.
    pub fn new(config: &Config, transport: Arc<dyn Transport>) -> Result<Self, CloudError> {
        let api = RestClient::new(&config.url, transport)?
            .with_token(&config.token)?
            .with_error_format(ERRORS)
            .with_reset_header("RateLimit-Reset");
        Ok(Self { api, network: format!("v1/networks/{}", config.network) })
    }
}

/// Quarry's errors: `{"error": {"code": "not_found", "message": "there is no server 7"}}`.
const ERRORS: ErrorFormat = ErrorFormat {
    code: "/error/code",
    message: "/error/message",
    kinds: &[("not_found", ErrorKind::NotFound), ("locked", ErrorKind::Conflict)],
};

/// Quarry's actions: `{"action": {"id": 7, "status": "running", "error": null}}`.
const ACTIONS: OperationFormat = OperationFormat {
    path: "v1/actions",
    id: "/action/id",
    status: "/action/status",
    done: &["success"],
    failed: &["error"],
    error: ErrorFormat {
        code: "/action/error/code",
        message: "/action/error/message",
        ..ERRORS
    },
};

/// Quarry's lists: `{"servers": [...], "meta": {"pagination": {"next_page": 2}}}`.
const PAGES: PageFormat = PageFormat { parameter: "page", next: "/meta/pagination/next_page" };

/// An object under the name of its kind: `{"server": {...}}`.
#[derive(Deserialize)]
struct Wrapped<T> {
    #[serde(alias = "server", alias = "network", alias = "load_balancer")]
    object: T,
}

impl CloudProvider for Quarry {
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
