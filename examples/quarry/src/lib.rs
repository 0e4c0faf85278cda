//! The provider for Quarry, a fictional cloud with a REST API whose changes run on after the answer.

mod instances;
mod load_balancers;
mod routes;

use std::sync::Arc;

use ccm_core::provider::{prelude::*, simple_load_balancers, simple_routes};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

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
    network: u64,
}

/// Quarry's errors: `{"error": {"code": "not_found", "message": "there is no server 7"}}`.
const ERRORS: ErrorFormat = ErrorFormat {
    code: "/error/code",
    message: "/error/message",
    kinds: &[("not_found", ErrorKind::NotFound), ("locked", ErrorKind::Conflict)],
};

impl Quarry {
    /// Makes a provider whose requests go through `transport`.
    pub fn new(config: &Config, transport: Arc<dyn Transport>) -> Result<Self, CloudError> {
        let api = RestClient::new(&config.url, transport)?
            .with_token(&config.token)?
            .with_error_format(ERRORS)
            .with_reset_header("RateLimit-Reset");
        Ok(Self { api, network: config.network })
    }

    /// Lists the objects that match a filter: all pages, or an error.
    async fn list<T: DeserializeOwned>(
        &self,
        op: &Op,
        what: &str,
        filter: (&str, &str),
    ) -> Result<Vec<T>, CloudError> {
        let numbered = |page: u64| path(what, &[], &[filter, ("page", &page.to_string())]);
        self.api
            .list(op, &numbered(1), |page: Page<T>| {
                (page.items, page.meta.pagination.next_page.map(numbered))
            })
            .await
    }

    /// Starts an action on an object, and waits for it as long as a call may sleep.
    async fn act(
        &self,
        op: &Op,
        mutation: Mutation,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<Progress, CloudError> {
        let accepted = self
            .api
            .mutate(op, mutation, Method::POST, path, body)
            .await?;
        self.api.poll(op, accepted, Accepted::status).await
    }
}

/// `{"servers": [...], "meta": {"pagination": {"next_page": 2}}}`
#[derive(Deserialize)]
struct Page<T> {
    #[serde(alias = "servers", alias = "load_balancers")]
    items: Vec<T>,
    meta: Meta,
}

#[derive(Deserialize)]
struct Meta {
    pagination: Pagination,
}

#[derive(Deserialize)]
struct Pagination {
    next_page: Option<u64>,
}

/// `{"action": {...}}`
#[derive(Deserialize)]
struct Accepted {
    action: Action,
}

#[derive(Deserialize)]
struct Action {
    id: u64,
    status: String,
    error: Option<ActionError>,
}

#[derive(Default, Deserialize)]
struct ActionError {
    code: String,
    message: String,
}

impl Accepted {
    fn status(self) -> OperationStatus {
        let Action { id, status, error } = self.action;
        match &*status {
            "success" => OperationStatus::Done,
            "error" => {
                let ActionError { code, message } = error.unwrap_or_default();
                OperationStatus::Failed(ERRORS.of_code(&code, &message))
            }
            _ => OperationStatus::Running { path: path("v1/actions", &[&id.to_string()], &[]) },
        }
    }
}

impl CloudProvider for Quarry {
    fn name(&self) -> &str {
        NAME
    }

    fn node_ownership(&self, node: &NodeView) -> NodeOwnership {
        NodeOwnership::by_scheme(NAME, node)
    }

    fn mutation_operations(&self) -> &'static [&'static str] {
        &[
            simple_routes::CREATE,
            simple_routes::DELETE,
            simple_load_balancers::CREATE,
            simple_load_balancers::CHANGE,
            simple_load_balancers::DELETE,
        ]
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
