//! Requests to the API server.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::Method;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{ApiError, ApiErrorKind, Patch, Patched, RequestInfo};
use crate::runtime::encoding::Encoding;

/// The `Accept` header for a plain JSON response.
pub const ACCEPT_JSON: &str = "application/json";
/// The `Accept` header for an object or a list that this crate decodes. It prefers protobuf.
pub const ACCEPT_OBJECT: &str = "application/vnd.kubernetes.protobuf,application/json";
/// The `Accept` header for a watch that this crate decodes. It prefers protobuf.
pub const ACCEPT_WATCH: &str = "application/vnd.kubernetes.protobuf;stream=watch,application/json;stream=watch,application/vnd.kubernetes.protobuf,application/json";
/// The `Accept` header for a response that contains only metadata. A server that does not support
/// this sends the whole object.
pub const ACCEPT_METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// One request to the API server: method, path with query, headers and body.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) accept: &'static str,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) body: Bytes,
    pub(crate) json_patch: bool,
}

impl ApiRequest {
    /// Creates a request that reads the object or list at `path`, which may have a query.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path.into())
    }

    /// Creates a request that deletes the object at `path`. [`ApiRequest::json`] sets options.
    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path.into())
    }

    /// Creates a request that creates an object in the collection at `path`.
    pub fn create<T: Serialize + ?Sized>(
        path: impl Into<String>,
        body: &T,
    ) -> Result<Self, ApiError> {
        Self::new(Method::POST, path.into()).json(body)
    }

    /// Creates a request that replaces the object at `path`.
    pub fn update<T: Serialize + ?Sized>(
        path: impl Into<String>,
        body: &T,
    ) -> Result<Self, ApiError> {
        Self::new(Method::PUT, path.into()).json(body)
    }

    /// Creates a request that patches the object at `path`.
    pub fn patch(path: impl Into<String>, patch: &Patch) -> Result<Self, ApiError> {
        let mut request = Self::new(Method::PATCH, path.into());
        let body = patch.body();
        request.body = body.map_err(|e| request.encode_error(e))?.into();
        request.content_type = Some(patch.content_type());
        request.json_patch = matches!(patch, Patch::Json(_));
        Ok(request)
    }

    /// Sets a JSON body.
    pub fn json<T: Serialize + ?Sized>(mut self, body: &T) -> Result<Self, ApiError> {
        self.body = serde_json::to_vec(body)
            .map_err(|e| self.encode_error(e))?
            .into();
        self.content_type = Some("application/json");
        Ok(self)
    }

    /// Sets the `Accept` header. The default is JSON.
    #[must_use]
    pub fn accept(mut self, accept: &'static str) -> Self {
        self.accept = accept;
        self
    }

    /// Returns true if the request only reads.
    pub fn is_read(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD)
    }

    /// Returns the verb, the resource and the object of the request.
    pub(crate) fn request_info(&self) -> RequestInfo {
        RequestInfo::from_request(&self.method, &self.path)
    }

    fn new(method: Method, path: String) -> Self {
        Self {
            method,
            path,
            accept: ACCEPT_JSON,
            content_type: None,
            body: Bytes::new(),
            json_patch: false,
        }
    }

    fn encode_error(&self, error: serde_json::Error) -> ApiError {
        ApiError::local(ApiErrorKind::Other, self.request_info(), "cannot serialize the request")
            .with_source(error)
    }
}

/// A successful response of the API server.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    pub(crate) request: RequestInfo,
    pub(crate) encoding: Encoding,
    pub(crate) body: Bytes,
}

impl ApiResponse {
    /// Returns the encoding of the body.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Returns the body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Decodes a JSON body.
    ///
    /// # Errors
    /// Returns [`ApiErrorKind::Other`] if the body cannot be decoded.
    pub fn json<R: DeserializeOwned>(&self) -> Result<R, ApiError> {
        serde_json::from_slice(&self.body).map_err(|e| self.decode_error(e))
    }

    /// Creates the error for a response that cannot be decoded.
    pub(crate) fn decode_error(
        &self,
        error: impl std::error::Error + Send + Sync + 'static,
    ) -> ApiError {
        ApiError::local(ApiErrorKind::Other, self.request.clone(), "cannot read the answer")
            .with_source(error)
    }

    /// Decodes the response to a patch.
    pub(super) fn into_patched(self) -> Result<Patched, ApiError> {
        let Object { metadata } = self.json()?;
        Ok(Patched {
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            labels: metadata.labels.unwrap_or_default(),
            finalizers: metadata.finalizers.unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
        })
    }
}

/// Any object, or its PartialObjectMetadata.
#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    uid: String,
    resource_version: String,
    labels: Option<BTreeMap<String, String>>,
    finalizers: Option<Vec<String>>,
    deletion_timestamp: Option<String>,
}
