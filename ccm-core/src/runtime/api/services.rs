use super::{ACCEPT_OBJECT, ApiClient, ApiError, ApiRequest, Patch, Patched, segment};
use crate::{
    k8s::{ServiceFields, ServiceView},
    runtime::reflector::Decoder,
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

    /// Reads a Service, the most recent state and not a cached one. RBAC: `get` on `services`.
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
        let response = self.send(ApiRequest::get(service_path(namespace, name)).accept(ACCEPT_OBJECT)).await?;
        let decoder = Decoder::new(fields.clone());
        decoder.object(response.encoding, &response.body).map_err(|e| response.undecodable(e))
    }
}

fn service_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{}/services/{}", segment(namespace), segment(name))
}
