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

/// Typed client of the admin API.
#[derive(Clone, Debug)]
pub struct AdminClient(Http);

const NO_BODY: Option<&()> = None;

impl AdminClient {
    /// Makes a client. It connects on first use.
    pub fn new(address: HostPort) -> Self {
        Self(Http::new(address))
    }

    /// Lists the instances that were put or queried.
    pub async fn instances(&self) -> Result<Vec<Instance>, HttpError> {
        self.0.json(Method::GET, "/v1/instances", NO_BODY).await
    }

    /// Returns the instance of a node.
    pub async fn instance(&self, node: &str) -> Result<Option<Instance>, HttpError> {
        missing_is_none(
            self.0
                .json(Method::GET, &path("instances", node), NO_BODY)
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
            .json(Method::PUT, &path("instances", node), Some(spec))
            .await
    }

    /// Changes only the power state of an instance; `None` if there is no such instance.
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

    /// Deletes the instance of a node; `false` if there was none.
    pub async fn delete_instance(&self, node: &str) -> Result<bool, HttpError> {
        let sent = self
            .0
            .send(Method::DELETE, &path("instances", node), NO_BODY)
            .await;
        Ok(missing_is_none(sent)?.is_some())
    }

    /// Lists the load balancers.
    pub async fn load_balancers(&self) -> Result<Vec<LoadBalancer>, HttpError> {
        self.0
            .json(Method::GET, "/v1/load-balancers", NO_BODY)
            .await
    }

    /// Returns a load balancer by its name.
    pub async fn load_balancer(&self, name: &str) -> Result<Option<LoadBalancer>, HttpError> {
        missing_is_none(
            self.0
                .json(Method::GET, &path("load-balancers", name), NO_BODY)
                .await,
        )
    }

    /// Changes a load balancer without the provider; `None` if there is none.
    pub async fn edit_load_balancer(
        &self,
        name: &str,
        edit: &LoadBalancerEdit,
    ) -> Result<Option<LoadBalancer>, HttpError> {
        missing_is_none(
            self.0
                .json(Method::PUT, &path("load-balancers", name), Some(edit))
                .await,
        )
    }

    /// Removes a load balancer without the provider; `false` if there was none.
    pub async fn remove_load_balancer(&self, name: &str) -> Result<bool, HttpError> {
        let sent = self
            .0
            .send(Method::DELETE, &path("load-balancers", name), NO_BODY)
            .await;
        Ok(missing_is_none(sent)?.is_some())
    }

    /// Lists the routes.
    pub async fn routes(&self) -> Result<Vec<Route>, HttpError> {
        self.0.json(Method::GET, "/v1/routes", NO_BODY).await
    }

    /// Creates or replaces a route.
    pub async fn put_route(&self, name: &str, body: &RouteBody) -> Result<Route, HttpError> {
        self.0
            .json(Method::PUT, &path("routes", name), Some(body))
            .await
    }

    /// Deletes a route; `false` if there was none.
    pub async fn delete_route(&self, name: &str) -> Result<bool, HttpError> {
        let sent = self
            .0
            .send(Method::DELETE, &path("routes", name), NO_BODY)
            .await;
        Ok(missing_is_none(sent)?.is_some())
    }

    /// Returns the call counts.
    pub async fn calls(&self) -> Result<Calls, HttpError> {
        self.0.json(Method::GET, "/v1/calls", NO_BODY).await
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

fn missing_is_none<T>(result: Result<T, HttpError>) -> Result<Option<T>, HttpError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the URL path of an object; special characters in its name are percent-encoded.
fn path(kind: &str, name: &str) -> String {
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
