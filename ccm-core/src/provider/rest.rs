//! REST client for a cloud API: JSON bodies, and errors with their kinds.
//!
//! Every provider of such a cloud needs the same parts: a header with a token, bodies to and from
//! JSON, an [`ErrorKind`] for each status, `Retry-After`, request IDs, reads that end when the
//! operation ends, and changes that check the write gate. [`RestClient`] implements them and is
//! independent of the cloud: the provider defines paths, bodies and the cloud's own error codes.
//! Requests go through a [`Transport`]: `Https` of this module (cargo feature `https`), an
//! implementation of the provider, or in tests a cloud in the same process, so that time can be
//! virtual.
//!
//! ```
//! # use ccm_core::provider::{CloudError, ErrorKind, Mutation, Op, rest::{self, RestClient}};
//! # use http::Method; use serde::{Deserialize, Serialize};
//! #[derive(Deserialize)]
//! struct Disk { id: String, size: u64 }
//! #[derive(Serialize)]
//! struct NewDisk<'a> { name: &'a str, size: u64 }
//!
//! # async fn example(cloud: &RestClient, op: &Op) -> Result<(), CloudError> {
//! let disk: Disk = cloud.get(op, &rest::path("v1/disks", &["7"], &[("fields", "id,size")])).await?;
//! let create = Mutation::new("create_disk", "disk web").with_detail("it does not exist");
//! let made: Disk = cloud.mutate(op, create, Method::POST, "v1/disks", &NewDisk { name: "web", size: 8 }).await?;
//! # Ok(()) }
//! ```
//!
//! There are no retries: the framework requeues. Redirects are not followed.
//!
//! [`ErrorFormat`] maps the error codes of a cloud to kinds of errors. For a change that the cloud
//! accepts first and completes later, [`OperationFormat`] says what its operations look like, and
//! [`RestClient::mutate_and_poll`] waits for it. [`PageFormat`] is for lists with numbered pages.

mod errors;
#[cfg(feature = "https")]
mod https;
mod long_running;
mod pages;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header, uri::InvalidUri};
use serde::{Serialize, de::DeserializeOwned};

pub use errors::{ErrorFormat, ErrorResponse};
#[cfg(feature = "https")]
pub use https::Https;
pub use long_running::{OperationFormat, OperationStatus};
pub use pages::PageFormat;

use super::{CloudError, ErrorKind, Mutation, MutationResponse, Op};
use crate::percent::encode;

/// The header in which most clouds return the request ID.
const REQUEST_ID: &str = "x-request-id";

/// Sends one request to the cloud and returns the response.
#[async_trait]
pub trait Transport: Send + Sync {
    /// Sends a request once. Must not retry and must not follow redirects. Must limit the time and
    /// the size of the response.
    ///
    /// # Errors
    /// Must return [`ErrorKind::Transient`] if there is no complete response. A response with an
    /// error status is a response, not an error.
    ///
    /// # Cancellation
    /// The future may be dropped at any await point. The request may then have taken effect.
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, CloudError>;
}

/// A client of a cloud's REST API. Its `Debug` output contains only the base URL.
pub struct RestClient {
    transport: Arc<dyn Transport>,
    base: Box<str>,
    headers: HeaderMap,
    parse_error: Box<ErrorParser>,
    reset_header: Option<&'static str>,
}

/// A function that parses an error response.
type ErrorParser = dyn Fn(&Response<Bytes>) -> Option<ErrorResponse> + Send + Sync;

impl RestClient {
    /// Creates a client of the API at `base`, such as `https://api.example.org/cloud`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::InvalidInput`] if `base` is not a URL with scheme and host, or contains
    /// a user or a query.
    pub fn new(base: &str, transport: Arc<dyn Transport>) -> Result<Self, CloudError> {
        // Check this first, so that no error message below can contain a password.
        if base.contains(['@', '?']) {
            return Err(CloudError::invalid_input(
                "URL of the API has a user, a password or a query",
            ));
        }
        let uri: Uri = base.parse().map_err(|error: InvalidUri| {
            CloudError::invalid_input(format!("URL {base:?} of the API cannot be read"))
                .with_source(error)
        })?;
        if !matches!(uri.scheme_str(), Some("http" | "https"))
            || uri.host().is_none_or(str::is_empty)
        {
            let message = format!(
                "URL {base:?} of the API does not begin with https:// or http:// and a host"
            );
            return Err(CloudError::invalid_input(message));
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        Ok(Self {
            transport,
            base: base.trim_end_matches('/').into(),
            headers,
            parse_error: Box::new(|_| None),
            reset_header: None,
        })
    }

    /// Sets a token. The client then sends `Authorization: Bearer <token>` with every request.
    ///
    /// # Errors
    /// Returns [`ErrorKind::InvalidInput`] if the token is empty or cannot be sent in a header. The
    /// message does not contain the token.
    pub fn with_token(mut self, token: &str) -> Result<Self, CloudError> {
        let mut value = match HeaderValue::from_str(&format!("Bearer {token}")) {
            Ok(value) if !token.trim().is_empty() => value,
            _ => {
                return Err(CloudError::invalid_input(
                    "token is empty or cannot be sent in a header",
                ));
            }
        };
        value.set_sensitive(true);
        self.headers.insert(header::AUTHORIZATION, value);
        Ok(self)
    }

    /// Sets the format of the cloud's error responses. By default none is parsed, and the kind of
    /// an error derives from the HTTP status alone.
    #[must_use]
    pub fn with_error_format(self, format: ErrorFormat) -> Self {
        self.with_error_parser(move |response| format.parse(response))
    }

    /// Sets the function that parses error responses, for clouds whose errors have no
    /// [`ErrorFormat`]. It gets status, headers and body of every response with an error status.
    ///
    /// The function should return `None` for a response that does not come from the cloud's API
    /// but, for instance, from a proxy. Only an error of the API itself should become
    /// [`ErrorKind::NotFound`].
    #[must_use]
    pub fn with_error_parser(
        mut self,
        parse: impl Fn(&Response<Bytes>) -> Option<ErrorResponse> + Send + Sync + 'static,
    ) -> Self {
        self.parse_error = Box::new(parse);
        self
    }

    /// Sets the header in which the cloud says when it accepts requests again, such as
    /// `RateLimit-Reset`: in seconds from now or as a Unix time in seconds.
    ///
    /// It becomes the `retry_after` of errors of kind [`ErrorKind::Throttled`] without
    /// `Retry-After`. For other errors it is ignored, because clouds send such a header with every
    /// response. In some clouds it says when the *whole* limit is available again, which may be
    /// much later than the next request is possible. Do not set it then: without it the framework
    /// backs off by itself.
    #[must_use]
    pub fn with_reset_header(mut self, name: &'static str) -> Self {
        self.reset_header = Some(name);
        self
    }

    /// Sends a `GET` request, within [`Op::run`]. `path` is relative to the base; see [`path`].
    ///
    /// # Errors
    /// Returns the errors of the cloud, and [`ErrorKind::Transient`] if the response cannot be
    /// parsed.
    pub async fn get<T: DeserializeOwned>(&self, op: &Op, path: &str) -> Result<T, CloudError> {
        let (value, _) = op.run(self.send(Method::GET, path, Bytes::new())).await?;
        Ok(value)
    }

    /// Sends a `GET` request for one object, within [`Op::run`]. Returns `None` if the cloud proves
    /// that it does not exist, which needs an [error format](Self::with_error_format).
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get), except [`ErrorKind::NotFound`].
    pub async fn get_if_exists<T: DeserializeOwned>(
        &self,
        op: &Op,
        path: &str,
    ) -> Result<Option<T>, CloudError> {
        match self.get(op, path).await {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a paged list completely. `open` splits a page into its items and the path of the next
    /// page.
    ///
    /// If the cloud numbers its pages, an object that is deleted during the listing moves another
    /// one to a page that was already read. Such a listing proves that its objects exist. It does
    /// not prove that others are absent: ask for each of these by its ID.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn list<P: DeserializeOwned, T>(
        &self,
        op: &Op,
        path: &str,
        open: impl Fn(P) -> (Vec<T>, Option<String>),
    ) -> Result<Vec<T>, CloudError> {
        let mut all = Vec::new();
        let mut next = Some(path.to_owned());
        while let Some(path) = next {
            let (more, following) = open(self.get(op, &path).await?);
            all.extend(more);
            next = following;
            if next.as_deref() == Some(&*path) {
                return Err(CloudError::transient(format!(
                    "GET {path}: the next page has the same path"
                )));
            }
        }
        Ok(all)
    }

    /// Sends a `DELETE` request without a body. Succeeds if the object does not exist.
    ///
    /// # Errors
    /// The same as those of [`mutate`](Self::mutate), except [`ErrorKind::NotFound`].
    pub async fn delete(&self, op: &Op, mutation: Mutation, path: &str) -> Result<(), CloudError> {
        // Accepts any JSON body and an empty one, because the content does not matter.
        match self
            .mutate::<Option<serde_json::Value>>(op, mutation, Method::DELETE, path, &())
            .await
        {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result.map(drop),
        }
    }

    /// Sends a request that changes the cloud, through [`Op::mutate`]. Use `()` as the body or as
    /// the response type if there is none.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get) and of [`Op::may_write`].
    pub async fn mutate<T: DeserializeOwned>(
        &self,
        op: &Op,
        mutation: Mutation,
        method: Method,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, CloudError> {
        let body = serde_json::to_vec(body).map_err(|error| {
            CloudError::invalid_input(format!("{method} {path}: body")).with_source(error)
        })?;
        // A value that serializes to `null` is sent without a body.
        let body = if body == b"null" {
            Bytes::new()
        } else {
            Bytes::from(body)
        };
        op.mutate(mutation, async {
            let (value, id) = self.send(method, path, body).await?;
            let reply = MutationResponse::new(value);
            Ok(match id {
                Some(id) => reply.with_request_id(id),
                None => reply,
            })
        })
        .await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(T, Option<String>), CloudError> {
        let what = format!("{method} {path}");
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}/{path}", self.base));
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(body);
        let mut request = request.map_err(|error| {
            CloudError::invalid_input(format!("{what}: no such path")).with_source(error)
        })?;
        request.headers_mut().extend(self.headers.clone());
        let response = self.transport.send(request).await?;
        let id = response
            .headers()
            .get(REQUEST_ID)
            .and_then(|id| id.to_str().ok())
            .map(str::to_owned);
        if !response.status().is_success() {
            let error = self.error(&what, &response);
            return Err(match id {
                Some(id) => error.with_request_id(id),
                None => error,
            });
        }
        let body = if response.body().is_empty() {
            b"null"
        } else {
            &response.body()[..]
        };
        let value = serde_json::from_slice(body).map_err(|error| {
            CloudError::transient(format!("{what}: the response has an unexpected format"))
                .with_source(error)
        })?;
        Ok((value, id))
    }

    /// Creates the error for an error response.
    fn error(&self, what: &str, response: &Response<Bytes>) -> CloudError {
        let status = response.status();
        let parsed = (self.parse_error)(response).unwrap_or_default();
        let detail = if parsed.message.is_empty() {
            String::new()
        } else {
            format!(": {}", parsed.message)
        };
        let kind = parsed
            .kind
            .unwrap_or_else(|| ErrorKind::of_status(status.as_u16()));
        let error = CloudError::new(kind, format!("{what}: {status}{detail}"));
        let reset_header = self.reset_header.filter(|_| kind == ErrorKind::Throttled);
        let retry_after = parsed
            .retry_after
            .or_else(|| errors::retry_after(response.headers(), reset_header));
        match retry_after {
            Some(after) => error.with_retry_after(after),
            None => error,
        }
    }
}

impl fmt::Debug for RestClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestClient")
            .field("base", &self.base)
            .finish_non_exhaustive()
    }
}

/// Returns a path from a prefix, segments and query parameters. All but the prefix are
/// percent-encoded, and parameters without a value are omitted.
pub fn path(prefix: &str, segments: &[&str], query: &[(&str, &str)]) -> String {
    let mut path = prefix.to_owned();
    for segment in segments {
        path.push('/');
        path.push_str(&encode(segment));
    }
    let mut between = '?';
    for (name, value) in query.iter().filter(|(_, value)| !value.is_empty()) {
        path.push(between);
        path.push_str(&encode(name));
        path.push('=');
        path.push_str(&encode(value));
        between = '&';
    }
    path
}

#[cfg(test)]
#[path = "rest_tests.rs"]
mod tests;
