//! Reads and writes of Services.

use super::{ApiClient, ApiError, Patch, Patched};
use crate::{
    k8s::{ServiceFields, ServiceView},
    percent::encode,
    runtime::encoding::Decoder,
};

impl ApiClient {
    /// Patches the status of a Service. This can also change its finalizers and annotations. RBAC:
    /// `patch` on `services/status`.
    ///
    /// Requests only the metadata as the answer.
    ///
    /// # Errors
    /// [`TestFailed`](super::ApiErrorKind::TestFailed) when the Service is not in the state that
    /// the JSON Patch expects; [`NotFound`](super::ApiErrorKind::NotFound) when it does not exist.
    pub async fn patch_service_status(
        &self,
        namespace: &str,
        name: &str,
        patch: &Patch,
    ) -> Result<Patched, ApiError> {
        self.patch(format!("{}/status", service_path(namespace, name)), patch)
            .await
    }

    /// Reads the most recent state of a Service, not a cached one. RBAC: `list` on `services`.
    ///
    /// Sends a list request for this name, because the roles in which managers of Go's framework
    /// run grant `list` but not `get`. For the server it costs as much as reading one object.
    ///
    /// The answer has only the fields that the cache would keep: a Service that neither is of type
    /// LoadBalancer nor has the finalizer has the same few fields as one of a [class that is not
    /// claimed](ServiceView).
    ///
    /// # Errors
    /// [`NotFound`](super::ApiErrorKind::NotFound) when there is no such Service;
    /// [`Other`](super::ApiErrorKind::Other) when it cannot be decoded.
    pub async fn get_service(
        &self,
        namespace: &str,
        name: &str,
        fields: &ServiceFields,
    ) -> Result<ServiceView, ApiError> {
        self.get_by_list(
            services_path(namespace),
            name,
            &Decoder::new(fields.clone()),
            |found: &ServiceView| *found.name == *name,
        )
        .await
    }
}

fn services_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{}/services", encode(namespace))
}

fn service_path(namespace: &str, name: &str) -> String {
    format!("{}/{}", services_path(namespace), encode(name))
}
