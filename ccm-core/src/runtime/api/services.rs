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
    /// The response contains only the metadata.
    ///
    /// # Errors
    /// Returns [`TestFailed`](super::ApiErrorKind::TestFailed) if the Service is not in the state
    /// that the JSON Patch expects, and [`NotFound`](super::ApiErrorKind::NotFound) if it does not
    /// exist.
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
    /// Sends a list request for this name, because the roles of managers that use Go's framework
    /// grant `list` but not `get`. It costs the server no more than reading one object.
    ///
    /// The result has only the fields that the cache would keep. A Service that neither is of type
    /// LoadBalancer nor has the finalizer has the same few fields as one of a [class that is not
    /// served](ServiceView).
    ///
    /// # Errors
    /// Returns [`NotFound`](super::ApiErrorKind::NotFound) if there is no such Service, and
    /// [`Other`](super::ApiErrorKind::Other) if it cannot be decoded.
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
