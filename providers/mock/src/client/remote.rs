//! Client for the API of a mock cloud in another process.

use std::time::Duration;

use async_trait::async_trait;
use ccm_core::provider::CloudError;
use http::Method;
use serde::{Serialize, de::DeserializeOwned};

use super::http::Http;
use crate::{
    admin::rpc::{AdoptLoadBalancer, Info, ModifyLoadBalancer, UpdateLoadBalancer, Wire},
    cloud::{
        CloudApi, CloudInstanceQuery, DeleteResult, Instance, LoadBalancer, LoadBalancerKey,
        LoadBalancerSettings, LoadBalancerSpec, Members, OwnedRoute, RouteBatch, config::HostPort,
    },
};

/// First delay between attempts of a provider that waits for its cloud, which may be starting or
/// down. The delay doubles with each attempt.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Maximum delay between these attempts.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// A mock cloud in another process. A failed connection is [`ErrorKind::Transient`], never proof of
/// absence.
///
/// [`ErrorKind::Transient`]: ccm_core::provider::ErrorKind::Transient
#[derive(Clone, Debug)]
pub struct RemoteCloud(Http);

impl RemoteCloud {
    /// Creates a client. It connects on first use.
    pub fn new(address: HostPort) -> Self {
        Self(Http::new(address))
    }

    /// Returns the region of the cloud. Waits while the cloud does not answer.
    ///
    /// # Errors
    /// Returns an error if the cloud answers with an error.
    ///
    /// # Cancellation
    /// Safe: the call changes nothing.
    pub async fn region(&self) -> Result<String, CloudError> {
        let endpoint = self.0.address();
        let mut retry_delay = FIRST_RETRY_DELAY;
        let mut last_error = String::new();
        loop {
            let info: Result<Wire<Info>, _> = self
                .0
                .request_json(Method::GET, "/v1/rpc/info", None::<&()>)
                .await;
            let error = match info {
                Ok(info) => return Ok(info?.region),
                Err(error) => error.to_string(),
            };
            // Log a warning only if the error has changed.
            if error == last_error {
                tracing::debug!(%endpoint, %error, "mock cloud does not answer yet");
            } else {
                tracing::warn!(%endpoint, %error, "mock cloud does not answer yet; waiting for it");
                last_error = error;
            }
            tokio::time::sleep(retry_delay).await;
            retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    async fn call<B: Serialize + ?Sized + Sync, T: DeserializeOwned>(
        &self,
        operation: &str,
        body: &B,
    ) -> Result<T, CloudError> {
        let path = format!("/v1/rpc/{operation}");
        let answer: Wire<T> = self
            .0
            .request_json(Method::POST, &path, Some(body))
            .await
            .map_err(|error| {
                CloudError::transient(format!("{operation} at the mock cloud")).with_source(error)
            })?;
        Ok(answer?)
    }
}

/// Converts the results of a batch.
fn from_wire_each<T>(answers: Vec<Wire<T>>) -> Vec<Result<T, CloudError>> {
    answers
        .into_iter()
        .map(|answer| answer.map_err(CloudError::from))
        .collect()
}

#[async_trait]
impl CloudApi for RemoteCloud {
    async fn describe_instances(
        &self,
        queries: &[CloudInstanceQuery],
    ) -> Result<Vec<Result<Option<Instance>, CloudError>>, CloudError> {
        Ok(from_wire_each(self.call("describe_instances", queries).await?))
    }

    async fn list_routes(&self, cluster: &str) -> Result<Vec<OwnedRoute>, CloudError> {
        self.call("list_routes", cluster).await
    }

    async fn apply_routes(
        &self,
        batch: &RouteBatch,
    ) -> Result<Vec<Result<(), CloudError>>, CloudError> {
        Ok(from_wire_each(self.call("apply_routes", batch).await?))
    }

    async fn get_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<Option<LoadBalancer>, CloudError> {
        self.call("get_load_balancer", key).await
    }

    async fn create_load_balancer(
        &self,
        spec: &LoadBalancerSpec,
    ) -> Result<LoadBalancer, CloudError> {
        self.call("create_load_balancer", spec).await
    }

    async fn modify_load_balancer(
        &self,
        key: &LoadBalancerKey,
        settings: &LoadBalancerSettings,
    ) -> Result<LoadBalancer, CloudError> {
        let modify = ModifyLoadBalancer { key: key.clone(), settings: settings.clone() };
        self.call("modify_load_balancer", &modify).await
    }

    async fn update_load_balancer(
        &self,
        key: &LoadBalancerKey,
        members: &Members,
    ) -> Result<LoadBalancer, CloudError> {
        let update = UpdateLoadBalancer { key: key.clone(), members: members.clone() };
        self.call("update_load_balancer", &update).await
    }

    async fn delete_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<DeleteResult, CloudError> {
        self.call("delete_load_balancer", key).await
    }

    async fn retain_load_balancer(
        &self,
        key: &LoadBalancerKey,
    ) -> Result<Option<LoadBalancer>, CloudError> {
        self.call("retain_load_balancer", key).await
    }

    async fn adopt_load_balancer(
        &self,
        id: &str,
        key: &LoadBalancerKey,
    ) -> Result<LoadBalancer, CloudError> {
        let adopt = AdoptLoadBalancer { id: id.to_owned(), key: key.clone() };
        self.call("adopt_load_balancer", &adopt).await
    }

    async fn list_load_balancers(&self, cluster: &str) -> Result<Vec<LoadBalancer>, CloudError> {
        self.call("list_load_balancers", cluster).await
    }
}
