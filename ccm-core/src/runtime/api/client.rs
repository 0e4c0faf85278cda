//! The client: its options, and how a request is sent.

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use kube::client::Body;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    error::{ApiError, ApiErrorKind},
    in_flight::WritesInFlight,
    metrics::ApiMetrics,
    patch::{Patch, Patched},
    rate_limit::RateLimit,
    request::{ACCEPT_METADATA, ApiRequest, ApiResponse},
    request_info::RequestInfo,
    status::Status,
};
use crate::{
    runtime::encoding::Encoding,
    write_gate::{InFlightWrite, WriteGate},
};

/// Default timeout of a request, from when it is sent.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Options of an [`ApiClient`].
#[derive(Clone, Debug)]
pub struct ApiClientOptions {
    /// Value of `User-Agent`, for example `ccm-mock/v0.1.0 (linux/amd64)
    /// kubernetes/<commit>/node-controller`.
    pub user_agent: String,
    /// Host (with port) of the server, for the metric label.
    pub host: String,
    /// Requests per second, including watches (`--kube-api-qps`, default 20). No limit unless
    /// positive.
    pub qps: f64,
    /// Requests that may be sent at once after an idle time (`--kube-api-burst`, default 30).
    pub burst: u32,
    /// Timeout of each request, from when it is sent to the last byte of the answer. For a watch:
    /// to the head of the answer.
    pub timeout: Duration,
    /// Metrics of the requests.
    pub metrics: ApiMetrics,
    /// Write gate, checked before each write.
    pub gate: WriteGate,
    /// Counts the writes that wait for the rate limit or for the head of the answer. By default no
    /// other client shares it.
    pub writes: WritesInFlight,
    /// Cancels requests that wait for the rate limit. A request that was sent is not interrupted.
    pub shutdown: CancellationToken,
}

impl ApiClientOptions {
    /// Makes options with the defaults of the flags.
    pub fn new(
        user_agent: impl Into<String>,
        host: impl Into<String>,
        metrics: ApiMetrics,
        gate: WriteGate,
    ) -> Self {
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
/// Every request may be dropped at any time. A request that waits for the rate limit returns its
/// token. A request that was sent may still be carried out by the server, as after a lost
/// connection.
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
        f.debug_struct("ApiClient")
            .field("user_agent", &self.0.user_agent)
            .finish_non_exhaustive()
    }
}

impl ApiClient {
    /// Makes a client with its own rate limit around the connection `client`.
    ///
    /// `client` must not limit the time for the body of an answer (kube's `read_timeout`) to less
    /// than the duration of a watch, which is up to ten minutes here. The deadlines of this client
    /// replace that limit.
    pub fn new(client: kube::Client, options: ApiClientOptions) -> Self {
        let visible: String = options
            .user_agent
            .chars()
            .filter(|c| c.is_ascii_graphic() || *c == ' ')
            .collect();
        let user_agent = HeaderValue::from_str(&visible).unwrap_or(HeaderValue::from_static("ccm"));
        let limit = RateLimit::new(options.qps, options.burst);
        Self(Arc::new(ApiClientInner { client, user_agent, limit, options }))
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// Every [`ApiErrorKind`]. Every status that is not a success is an error.
    pub async fn send(&self, request: ApiRequest) -> Result<ApiResponse, ApiError> {
        let ApiClientInner { options, .. } = &*self.0;
        let target = request.request_info();
        let method = request.method.clone();
        let (encoding, response, deadline) = self.send_for_headers(request, &target).await?;
        let Ok(body) = tokio::time::timeout_at(deadline, response.into_body().collect()).await
        else {
            return Err(self.timed_out(target));
        };
        let body = body
            .map_err(|e| ApiError::transport(target.clone(), e))?
            .to_bytes();
        options
            .metrics
            .record_response_size(method.as_str(), &options.host, body.len());
        Ok(ApiResponse { target, encoding, body })
    }

    /// Sends a request and returns the answer as soon as its head has arrived. The deadline ends
    /// then. For watches.
    pub async fn open(&self, request: ApiRequest) -> Result<(Encoding, Body), ApiError> {
        let target = request.request_info();
        let (encoding, response, _) = self.send_for_headers(request, &target).await?;
        Ok((encoding, response.into_body()))
    }

    /// Patches the object at `path`. Requests only the metadata as the answer.
    pub(super) async fn patch(&self, path: String, patch: &Patch) -> Result<Patched, ApiError> {
        let request = ApiRequest::patch(path, patch)?.accept(ACCEPT_METADATA);
        self.send(request).await?.patched()
    }

    /// Waits for the rate limit, then checks the write gate. The caller must send the request at
    /// once.
    async fn wait_for_permit(
        &self,
        request: &ApiRequest,
    ) -> Result<(Instant, Option<InFlightWrite>), ApiError> {
        let ApiClientInner { limit, options, .. } = &*self.0;
        let waited = tokio::select! {
            // Prefer the token to the shutdown: a request that does not have to wait is sent,
            // because it may finish work that was begun. The gate closes later than `shutdown`.
            biased;
            waited = limit.acquire() => waited,
            () = options.shutdown.cancelled() => {
                return Err(ApiError::local(ApiErrorKind::Canceled, request.request_info(), "the client is shutting down"));
            }
        };
        options
            .metrics
            .record_rate_limit_wait(request.method.as_str(), &options.host, waited);
        if request.is_read() {
            return Ok((Instant::now(), None));
        }
        let write = options
            .gate
            .begin_write()
            .map_err(|e| ApiError::not_leader(request.request_info(), e))?;
        Ok((Instant::now(), Some(write)))
    }

    /// Sends the request and waits for the head of the answer. If it is an error, reads the whole
    /// answer.
    async fn send_for_headers(
        &self,
        request: ApiRequest,
        target: &RequestInfo,
    ) -> Result<(Encoding, Response<Body>, Instant), ApiError> {
        let ApiClientInner { client, options, .. } = &*self.0;
        let method = request.method.clone();
        let json_patch = request.json_patch;
        let size = request.body.len();
        let http = self.http(&request, target)?;
        let _in_flight = (!request.is_read()).then(|| options.writes.begin());
        let (started, writing) = self.wait_for_permit(&request).await?;
        let deadline = started + options.timeout;
        options
            .metrics
            .record_request_size(method.as_str(), &options.host, size);
        let answer = tokio::time::timeout_at(deadline, client.send(http)).await;
        let code = answer
            .as_ref()
            .ok()
            .and_then(|a| a.as_ref().ok())
            .map(|r| r.status().as_u16());
        options
            .metrics
            .record_response(method.as_str(), &options.host, code, started.elapsed());
        let response = match answer {
            Ok(answer) => {
                // A lost connection counts as an answer: it ends the request at the server as well.
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
        // If the body does not arrive, the status code is enough.
        let body = tokio::time::timeout_at(deadline, response.into_body().collect()).await;
        let body = body
            .ok()
            .and_then(Result::ok)
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
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
        builder.body(Body::from(request.body.clone())).map_err(|e| {
            ApiError::local(ApiErrorKind::Other, target.clone(), "cannot form the request")
                .with_source(e)
        })
    }

    fn timed_out(&self, target: RequestInfo) -> ApiError {
        let message = format!("no complete answer within {:?}", self.0.options.timeout);
        ApiError::local(ApiErrorKind::Timeout, target, message)
    }
}

/// Parses `Retry-After` in whole seconds, the only form that the API server sends.
fn retry_after(value: Option<&HeaderValue>) -> Option<Duration> {
    value?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
        .map(Duration::from_secs)
}
