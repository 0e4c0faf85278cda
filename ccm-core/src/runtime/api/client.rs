//! The client and its options.

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

/// The default timeout of a request, counted from when it is sent.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// The options of an [`ApiClient`].
#[derive(Clone, Debug)]
pub struct ApiClientOptions {
    /// The value of `User-Agent`, for example `ccm-mock/v0.1.0 (linux/amd64)
    /// kubernetes/<commit>/node-controller`.
    pub user_agent: String,
    /// The server's host and port, for the metric label.
    pub host: String,
    /// The rate limit in requests per second, including watches (`--kube-api-qps`, default 20).
    /// Zero and negative values mean no limit.
    pub qps: f64,
    /// The number of requests that may be sent at once after an idle time (`--kube-api-burst`,
    /// default 30).
    pub burst: u32,
    /// The timeout of each request, from when it is sent to the last byte of the response. For a
    /// watch it ends at the headers of the response. Default [`DEFAULT_TIMEOUT`].
    pub timeout: Duration,
    /// The metrics of the requests.
    pub metrics: ApiMetrics,
    /// The write gate, which is checked before each write.
    pub gate: WriteGate,
    /// The count of the writes that wait for the rate limit or for the headers of a response. By
    /// default no other client shares it.
    pub writes: WritesInFlight,
    /// A token that cancels requests that wait for the rate limit. Requests in flight continue.
    pub shutdown: CancellationToken,
}

impl ApiClientOptions {
    /// Creates options with the defaults of the flags.
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

/// A client of the API server. Clones share the rate limit.
///
/// # Cancellation
/// The futures of all requests may be dropped at any time. A request that waits for the rate limit
/// then returns its token. A request in flight may still take effect, as after a lost connection.
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
    /// Creates a client with its own rate limit around the connection `client`.
    ///
    /// `client` must not limit the time for the body of a response (kube's `read_timeout`) to less
    /// than the ten minutes that a watch may take. The deadlines of this client replace that limit.
    pub fn new(client: kube::Client, options: ApiClientOptions) -> Self {
        let valid_user_agent: String = options
            .user_agent
            .chars()
            .filter(|c| c.is_ascii_graphic() || *c == ' ')
            .collect();
        let user_agent =
            HeaderValue::from_str(&valid_user_agent).unwrap_or(HeaderValue::from_static("ccm"));
        let limit = RateLimit::new(options.qps, options.burst);
        Self(Arc::new(ApiClientInner { client, user_agent, limit, options }))
    }

    /// Sends a request and reads the whole response.
    ///
    /// # Errors
    /// Returns an error of any [`ApiErrorKind`]. Every status that is not a success is an error.
    pub async fn send(&self, request: ApiRequest) -> Result<ApiResponse, ApiError> {
        let ApiClientInner { options, .. } = &*self.0;
        let info = request.request_info();
        let method = request.method.clone();
        let (encoding, response, deadline) = self.send_for_headers(request, &info).await?;
        let Ok(body) = tokio::time::timeout_at(deadline, response.into_body().collect()).await
        else {
            return Err(self.timeout_error(info));
        };
        let body = body
            .map_err(|e| ApiError::transport(info.clone(), e))?
            .to_bytes();
        options
            .metrics
            .record_response_size(method.as_str(), &options.host, body.len());
        Ok(ApiResponse { request: info, encoding, body })
    }

    /// Sends a request and returns the body of the response as soon as the headers have arrived.
    /// The timeout does not apply to the body. Use it for watches.
    pub async fn open(&self, request: ApiRequest) -> Result<(Encoding, Body), ApiError> {
        let info = request.request_info();
        let (encoding, response, _) = self.send_for_headers(request, &info).await?;
        Ok((encoding, response.into_body()))
    }

    /// Patches the object at `path`. Requests that the response contains only the metadata.
    pub(super) async fn patch(&self, path: String, patch: &Patch) -> Result<Patched, ApiError> {
        let request = ApiRequest::patch(path, patch)?.accept(ACCEPT_METADATA);
        self.send(request).await?.into_patched()
    }

    /// Waits for the rate limit, then checks the write gate. Returns the current time and, for a
    /// write, its registration as in flight. The caller must send the request at once.
    async fn wait_for_permit(
        &self,
        request: &ApiRequest,
    ) -> Result<(Instant, Option<InFlightWrite>), ApiError> {
        let ApiClientInner { limit, options, .. } = &*self.0;
        let waited = tokio::select! {
            // Biased: a request that does not have to wait is sent even during a shutdown, because
            // it may finish work in progress. The write gate closes later.
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

    /// Sends the request and waits for the headers of the response. If the status is an error, also
    /// reads the body. Returns the deadline for the body.
    async fn send_for_headers(
        &self,
        request: ApiRequest,
        info: &RequestInfo,
    ) -> Result<(Encoding, Response<Body>, Instant), ApiError> {
        let ApiClientInner { client, options, .. } = &*self.0;
        let method = request.method.clone();
        let json_patch = request.json_patch;
        let size = request.body.len();
        let http_request = self.build_http_request(&request, info)?;
        let _in_flight = (!request.is_read()).then(|| options.writes.begin());

        // Send the request, and record its result in the metrics.
        let (started, write) = self.wait_for_permit(&request).await?;
        let deadline = started + options.timeout;
        options
            .metrics
            .record_request_size(method.as_str(), &options.host, size);
        let result = tokio::time::timeout_at(deadline, client.send(http_request)).await;
        let code = match &result {
            Ok(Ok(response)) => Some(response.status().as_u16()),
            Ok(Err(_)) | Err(_) => None,
        };
        options
            .metrics
            .record_response(method.as_str(), &options.host, code, started.elapsed());
        let Ok(result) = result else {
            return Err(self.timeout_error(info.clone()));
        };
        // A lost connection also completes the write, because it ends the request at the server.
        if let Some(write) = write {
            write.complete();
        }
        let response = result.map_err(|e| ApiError::transport(info.clone(), e))?;

        let encoding = Encoding::of(response.headers().get(header::CONTENT_TYPE));
        let code = response.status();
        if code.is_success() {
            return Ok((encoding, response, deadline));
        }

        // Read the error. If its body does not arrive, the status code is enough.
        let retry_after = retry_after(response.headers().get(header::RETRY_AFTER));
        let body = tokio::time::timeout_at(deadline, response.into_body().collect()).await;
        let body = body
            .ok()
            .and_then(Result::ok)
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        let status = Status::from_body(encoding, &body);
        Err(ApiError::from_response(info.clone(), code, status, retry_after, json_patch))
    }

    fn build_http_request(
        &self,
        request: &ApiRequest,
        info: &RequestInfo,
    ) -> Result<Request<Body>, ApiError> {
        let mut builder = Request::builder()
            .method(request.method.clone())
            .uri(request.path.as_str())
            .header(header::ACCEPT, request.accept)
            .header(header::USER_AGENT, &self.0.user_agent);
        if let Some(content_type) = request.content_type {
            builder = builder.header(header::CONTENT_TYPE, content_type);
        }
        builder.body(Body::from(request.body.clone())).map_err(|e| {
            ApiError::local(ApiErrorKind::Other, info.clone(), "cannot build the request")
                .with_source(e)
        })
    }

    fn timeout_error(&self, info: RequestInfo) -> ApiError {
        let message = format!("no complete answer within {:?}", self.0.options.timeout);
        ApiError::local(ApiErrorKind::Timeout, info, message)
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
