//! Requests to the Kubernetes API server.
//!
//! [`ApiClient`] is the one way in which the framework talks to it: rate limit, write gate, deadline, metrics and typed
//! errors are here and nowhere else. There are no hidden retries: the queue of each controller counts attempts, and a
//! second patch sent behind its back could overwrite what the first one's caller has seen since.

mod error;
mod in_flight;
mod metrics;
mod middleware;
mod nodes;
mod patch;
mod rate_limit;
mod request;
mod request_info;
mod services;
pub(crate) mod status;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use kube::client::Body;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use error::{ApiError, ApiErrorKind};
pub use in_flight::WritesInFlight;
pub use metrics::ApiMetrics;
pub use middleware::{ClientMiddleware, ShuttingDown};
pub use nodes::Subresource;
pub use patch::{Patch, PatchOp, Patched, escape_pointer};
pub use rate_limit::RateLimit;
pub use request::{ACCEPT_JSON, ACCEPT_METADATA, ACCEPT_OBJECT, ACCEPT_WATCH, ApiRequest, ApiResponse};
pub use request_info::RequestInfo;
pub use status::Cause;

use self::status::Status;
use super::encoding::Encoding;
use crate::write_gate::{InFlightWrite, WriteGate};

/// Deadline of a request unless the options say otherwise, from the moment it is sent.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// How an [`ApiClient`] behaves.
#[derive(Clone, Debug)]
pub struct ApiClientOptions {
    /// Value of `User-Agent`, for example `ccm-mock/v0.1.0 (linux/amd64) kubernetes/<commit>/node-controller`.
    pub user_agent: String,
    /// Host (with port) of the server, used as metric label.
    pub host: String,
    /// Requests per second, watches included (`--kube-api-qps`, default 20); no limit unless positive.
    pub qps: f64,
    /// Requests that may be sent at once after a pause (`--kube-api-burst`, default 30).
    pub burst: u32,
    /// Deadline of each request from when it is sent to the last byte of the answer. Of a watch: to the head of the answer.
    pub timeout: Duration,
    /// Where requests are counted.
    pub metrics: ApiMetrics,
    /// Right to change anything.
    pub gate: WriteGate,
    /// Where writes are counted that wait for the rate limit or for the head of the answer; nobody else's by default.
    pub writes: WritesInFlight,
    /// Ends requests that still wait for the rate limit. One that was sent is not interrupted by it.
    pub shutdown: CancellationToken,
}

impl ApiClientOptions {
    /// Makes options with the defaults of the flags.
    pub fn new(user_agent: impl Into<String>, host: impl Into<String>, metrics: ApiMetrics, gate: WriteGate) -> Self {
        Self {
            user_agent: user_agent.into(),
            host: host.into(),
            qps: 20.0,
            burst: 30,
            timeout: DEFAULT_TIMEOUT,
            metrics,
            gate,
            writes: WritesInFlight::default(),
            shutdown: CancellationToken::new(),
        }
    }
}

/// Sends requests to the API server. Clones share the rate limit.
///
/// # Cancellation
/// Every request may be dropped at any time. One that waits for the rate limit gives its token back; one that was sent
/// may still be carried out by the server, as with a lost connection.
#[derive(Clone)]
pub struct ApiClient(Arc<ApiClientInner>);

struct ApiClientInner {
    client: kube::Client,
    user_agent: HeaderValue,
    limit: RateLimit,
    options: ApiClientOptions,
}

impl std::fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiClient").field("user_agent", &self.0.user_agent).finish_non_exhaustive()
    }
}

impl ApiClient {
    /// Makes a client with a rate limit of its own around the connection `client`.
    ///
    /// `client` must not limit the time of an answer's body (kube's `read_timeout`) below the length of a watch, which is
    /// up to ten minutes here; the deadlines of this client make it superfluous.
    pub fn new(client: kube::Client, options: ApiClientOptions) -> Self {
        let visible: String = options.user_agent.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect();
        let user_agent = HeaderValue::from_str(&visible).unwrap_or(HeaderValue::from_static("ccm"));
        let limit = RateLimit::new(options.qps, options.burst);
        Self(Arc::new(ApiClientInner { client, user_agent, limit, options }))
    }

    /// Sends a request and reads its whole answer.
    ///
    /// # Errors
    /// Every kind of [`ApiErrorKind`]; a status of 400 and above is an error.
    pub async fn send(&self, request: ApiRequest) -> Result<ApiResponse, ApiError> {
        let ApiClientInner { options, .. } = &*self.0;
        let target = request.request_info();
        let method = request.method.clone();
        let (encoding, response, deadline) = self.send_for_headers(request, &target).await?;
        let Ok(body) = tokio::time::timeout_at(deadline, response.into_body().collect()).await else {
            return Err(self.timed_out(target));
        };
        let body = body.map_err(|e| ApiError::transport(target.clone(), e))?.to_bytes();
        options.metrics.record_response_size(method.as_str(), &options.host, body.len());
        Ok(ApiResponse { target, encoding, body })
    }

    /// Sends a request and returns the answer as soon as its head is there; the deadline ends then. For watches.
    pub async fn open(&self, request: ApiRequest) -> Result<(Encoding, Body), ApiError> {
        let target = request.request_info();
        let (encoding, response, _) = self.send_for_headers(request, &target).await?;
        Ok((encoding, response.into_body()))
    }

    /// Waits for the rate limit, then checks the write gate. The caller sends at once.
    async fn wait_for_permit(&self, request: &ApiRequest) -> Result<(Instant, Option<InFlightWrite>), ApiError> {
        let ApiClientInner { limit, options, .. } = &*self.0;
        let waited = tokio::select! {
            // In this order: what need not wait is sent, because it may end what was begun. The gate closes last.
            biased;
            waited = limit.acquire() => waited,
            () = options.shutdown.cancelled() => {
                return Err(ApiError::local(ApiErrorKind::Canceled, request.request_info(), "the client is shutting down"));
            }
        };
        options.metrics.record_rate_limit_wait(request.method.as_str(), &options.host, waited);
        let begin = || options.gate.begin_write().map_err(|e| ApiError::not_leader(request.request_info(), e));
        let writing = (!request.is_read()).then(begin).transpose()?;
        Ok((Instant::now(), writing))
    }

    /// Sends the request and waits for the head of the answer. Reads a failure to its end and makes it an error.
    async fn send_for_headers(
        &self,
        request: ApiRequest,
        target: &RequestInfo,
    ) -> Result<(Encoding, Response<Body>, Instant), ApiError> {
        let ApiClientInner { client, options, .. } = &*self.0;
        let (method, json_patch, size) = (request.method.clone(), request.json_patch, request.body.len());
        let http = self.http(&request, target)?;
        let _in_flight = (!request.is_read()).then(|| options.writes.begin());
        let (started, writing) = self.wait_for_permit(&request).await?;
        let deadline = started + options.timeout;
        options.metrics.record_request_size(method.as_str(), &options.host, size);
        let answer = tokio::time::timeout_at(deadline, client.send(http)).await;
        let code = answer.as_ref().ok().and_then(|a| a.as_ref().ok()).map(|r| r.status().as_u16());
        options.metrics.record_response(method.as_str(), &options.host, code, started.elapsed());
        let response = match answer {
            Ok(answer) => {
                // A lost connection ends the request at the server as well.
                writing.into_iter().for_each(InFlightWrite::complete);
                answer.map_err(|e| ApiError::transport(target.clone(), e))?
            }
            Err(_) => return Err(self.timed_out(target.clone())),
        };
        let encoding = Encoding::of(response.headers().get(header::CONTENT_TYPE));
        let code = response.status();
        if code.is_success() {
            return Ok((encoding, response, deadline));
        }
        let retry_after = retry_after(response.headers().get(header::RETRY_AFTER));
        // The code alone says enough if the rest does not come.
        let body = tokio::time::timeout_at(deadline, response.into_body().collect()).await;
        let body = body.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let status = Status::of_body(encoding, &body);
        Err(ApiError::from_response(target.clone(), code, status, retry_after, json_patch))
    }

    fn http(&self, request: &ApiRequest, target: &RequestInfo) -> Result<Request<Body>, ApiError> {
        let mut builder = Request::builder()
            .method(request.method.clone())
            .uri(request.path.as_str())
            .header(header::ACCEPT, request.accept)
            .header(header::USER_AGENT, &self.0.user_agent);
        if let Some(content_type) = request.content_type {
            builder = builder.header(header::CONTENT_TYPE, content_type);
        }
        builder
            .body(Body::from(request.body.clone()))
            .map_err(|e| ApiError::local(ApiErrorKind::Other, target.clone(), "cannot form the request").with_source(e))
    }

    fn timed_out(&self, target: RequestInfo) -> ApiError {
        let message = format!("no complete answer within {:?}", self.0.options.timeout);
        ApiError::local(ApiErrorKind::Timeout, target, message)
    }
}

/// Reads `Retry-After` in its form of whole seconds, which is the only one that the API server sends.
fn retry_after(value: Option<&HeaderValue>) -> Option<Duration> {
    value?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
