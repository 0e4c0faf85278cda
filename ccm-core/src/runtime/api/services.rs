use super::{ApiClient, ApiError, Patch, Patched};
use crate::{
    k8s::{ServiceFields, ServiceView},
    percent::encode,
    runtime::encoding::Decoder,
};

impl ApiClient {
    /// Patches the status of a Service; its finalizers and annotations can be changed on this way too.
    /// RBAC: `patch` on `services/status`.
    ///
    /// Asks for the metadata alone as the answer.
    ///
    /// # Errors
    /// [`TestFailed`](super::ApiErrorKind::TestFailed) when the Service is not as the JSON Patch expects;
    /// [`NotFound`](super::ApiErrorKind::NotFound) when it is gone.
    pub async fn patch_service_status(&self, namespace: &str, name: &str, patch: &Patch) -> Result<Patched, ApiError> {
        self.patch(format!("{}/status", service_path(namespace, name)), patch).await
    }

    /// Reads a Service, the most recent state and not a cached one. RBAC: `list` on `services`.
    ///
    /// Asks for the list of what has this name, since the roles in which managers on Go's framework run grant `list` and
    /// no `get`; for the server that is a read of one object all the same.
    ///
    /// What the cache would not keep of it is not in the answer either: of a Service that neither is of type LoadBalancer
    /// nor has the finalizer, there is what is there of a [class that is not claimed](ServiceView).
    ///
    /// # Errors
    /// [`NotFound`](super::ApiErrorKind::NotFound) when there is no such Service; [`Other`](super::ApiErrorKind::Other)
    /// when it cannot be read.
    pub async fn get_service(
        &self,
        namespace: &str,
        name: &str,
        fields: &ServiceFields,
    ) -> Result<ServiceView, ApiError> {
        self.get_by_list(services_path(namespace), name, &Decoder::new(fields.clone()), |found: &ServiceView| {
            *found.name == *name
        })
        .await
    }
}

fn services_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{}/services", encode(namespace))
}

fn service_path(namespace: &str, name: &str) -> String {
    format!("{}/{}", services_path(namespace), encode(name))
}
