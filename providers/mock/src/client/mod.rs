//! Clients for a mock cloud in another process: for the provider and for tests.

mod http;
mod remote;

use ::http::{Method, StatusCode};

pub use self::http::HttpError;
pub use remote::RemoteCloud;

use self::http::Http;
use crate::cloud::{
    Calls, FaultSpec, Instance, InstanceSpec, LoadBalancer, LoadBalancerEdit, PowerState, Route,
    RouteBody, config::HostPort,
};

/// Typed client for the admin API.
#[derive(Clone, Debug)]
pub struct AdminClient(Http);

const NO_BODY: Option<&()> = None;

impl AdminClient {
    /// Creates a client. It connects on first use.
    pub fn new(address: HostPort) -> Self {
        Self(Http::new(address))
    }

    /// Lists the instances that were put or queried.
    pub async fn instances(&self) -> Result<Vec<Instance>, HttpError> {
        self.0
            .request_json(Method::GET, "/v1/instances", NO_BODY)
            .await
    }

    /// Returns the instance of a node, or `None` if it does not exist.
    pub async fn instance(&self, node: &str) -> Result<Option<Instance>, HttpError> {
        not_found_to_none(
            self.0
                .request_json(Method::GET, &object_path("instances", node), NO_BODY)
                .await,
        )
    }

    /// Creates or replaces the instance of a node.
    pub async fn put_instance(
        &self,
        node: &str,
        spec: &InstanceSpec,
    ) -> Result<Instance, HttpError> {
        self.0
            .request_json(Method::PUT, &object_path("instances", node), Some(spec))
            .await
    }

    /// Changes only the power state of an instance. Returns `None` if the instance does not exist.
    pub async fn set_power(
        &self,
        node: &str,
        power: PowerState,
    ) -> Result<Option<Instance>, HttpError> {
        let Some(instance) = self.instance(node).await? else {
            return Ok(None);
        };
        let spec = InstanceSpec { power_state: Some(power), ..instance.into() };
        self.put_instance(node, &spec).await.map(Some)
    }

    /// Deletes the instance of a node. Returns `false` if it did not exist.
    pub async fn delete_instance(&self, node: &str) -> Result<bool, HttpError> {
        let sent = self
            .0
            .send(Method::DELETE, &object_path("instances", node), NO_BODY)
            .await;
        Ok(not_found_to_none(sent)?.is_some())
    }

    /// Lists the load balancers.
    pub async fn load_balancers(&self) -> Result<Vec<LoadBalancer>, HttpError> {
        self.0
            .request_json(Method::GET, "/v1/load-balancers", NO_BODY)
            .await
    }

    /// Returns the load balancer of this name, or `None` if it does not exist.
    pub async fn load_balancer(&self, name: &str) -> Result<Option<LoadBalancer>, HttpError> {
        not_found_to_none(
            self.0
                .request_json(Method::GET, &object_path("load-balancers", name), NO_BODY)
                .await,
        )
    }

    /// Changes a load balancer without the provider. Returns `None` if it does not exist.
    pub async fn edit_load_balancer(
        &self,
        name: &str,
        edit: &LoadBalancerEdit,
    ) -> Result<Option<LoadBalancer>, HttpError> {
        not_found_to_none(
            self.0
                .request_json(Method::PUT, &object_path("load-balancers", name), Some(edit))
                .await,
        )
    }

    /// Removes a load balancer without the provider. Returns `false` if it did not exist.
    pub async fn remove_load_balancer(&self, name: &str) -> Result<bool, HttpError> {
        let sent = self
            .0
            .send(Method::DELETE, &object_path("load-balancers", name), NO_BODY)
            .await;
        Ok(not_found_to_none(sent)?.is_some())
    }

    /// Lists the routes.
    pub async fn routes(&self) -> Result<Vec<Route>, HttpError> {
        self.0
            .request_json(Method::GET, "/v1/routes", NO_BODY)
            .await
    }

    /// Creates or replaces a route.
    pub async fn put_route(&self, name: &str, body: &RouteBody) -> Result<Route, HttpError> {
        self.0
            .request_json(Method::PUT, &object_path("routes", name), Some(body))
            .await
    }

    /// Deletes a route. Returns `false` if it did not exist.
    pub async fn delete_route(&self, name: &str) -> Result<bool, HttpError> {
        let sent = self
            .0
            .send(Method::DELETE, &object_path("routes", name), NO_BODY)
            .await;
        Ok(not_found_to_none(sent)?.is_some())
    }

    /// Returns the counts of provider calls.
    pub async fn calls(&self) -> Result<Calls, HttpError> {
        self.0.request_json(Method::GET, "/v1/calls", NO_BODY).await
    }

    /// Replaces all faults.
    pub async fn set_faults(&self, faults: &[FaultSpec]) -> Result<(), HttpError> {
        self.0
            .send(Method::PUT, "/v1/faults", Some(faults))
            .await
            .map(drop)
    }

    /// Removes all faults.
    pub async fn clear_faults(&self) -> Result<(), HttpError> {
        self.0
            .send(Method::DELETE, "/v1/faults", NO_BODY)
            .await
            .map(drop)
    }
}

/// Converts the status 404 to `None`.
fn not_found_to_none<T>(result: Result<T, HttpError>) -> Result<Option<T>, HttpError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the URL path of an object; special characters in its name are percent-encoded.
fn object_path(kind: &str, name: &str) -> String {
    use std::fmt::Write;
    let mut path = format!("/v1/{kind}/");
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                path.push(char::from(byte));
            }
            // Writing to a string cannot fail.
            _ => drop(write!(path, "%{byte:02X}")),
        }
    }
    path
}
