//! Rate limit, write gate and metrics around a plain `kube::Client`.

use std::sync::Arc;

use http::{Method, Request, Response};
use http_body::Body as _;
use kube::client::Body;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use super::{ApiMetrics, RateLimit};
use crate::write_gate::{InFlightWrite, WriteGate};

/// Rate limit, write gate and metrics around a plain [`kube::Client`], for events, leader election
/// and providers, which form their own requests. Everything else uses
/// [`ApiClient`](super::ApiClient).
#[derive(Clone, Debug)]
pub struct ClientMiddleware {
    /// Rate limit of all requests, including watches.
    pub limit: RateLimit,
    /// Write gate. A write is rejected while it is closed, with a [`kube::Error::Service`] that
    /// holds a [`NotLeader`](crate::write_gate::NotLeader).
    pub gate: WriteGate,
    /// Metrics of the requests.
    pub metrics: ApiMetrics,
    /// Host of the server, for the metric label.
    pub host: Arc<str>,
    /// Cancels requests that wait for the rate limit.
    pub shutdown: CancellationToken,
}

/// The process is stopping, so the request was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the process is stopping")]
pub struct ShuttingDown;

impl ClientMiddleware {
    /// Wraps a client.
    pub fn wrap(self, client: kube::Client) -> kube::Client {
        let namespace = client.default_namespace().to_owned();
        let valid_until = client.valid_until().to_owned();
        let service = tower::service_fn(move |request| {
            let guard = self.clone();
            let client = client.clone();
            async move { guard.send(&client, request).await }
        });
        kube::Client::new(service, namespace).with_valid_until(valid_until)
    }

    async fn send(
        &self,
        client: &kube::Client,
        request: Request<Body>,
    ) -> Result<Response<Body>, BoxError> {
        let method = request.method().clone();
        let waited = tokio::select! {
            // Prefer the token to the shutdown: a request that does not have to wait is sent,
            // because it may finish work that was begun. The gate closes later than `shutdown`.
            biased;
            waited = self.limit.acquire() => waited,
            () = self.shutdown.cancelled() => return Err(ShuttingDown.into()),
        };
        self.metrics
            .record_rate_limit_wait(method.as_str(), &self.host, waited);
        // Checked after the wait, which may be long.
        let writing = (!matches!(method, Method::GET | Method::HEAD))
            .then(|| self.gate.begin_write())
            .transpose()?;
        if let Some(bytes) = request.body().size_hint().exact() {
            self.metrics.record_request_size(
                method.as_str(),
                &self.host,
                usize::try_from(bytes).unwrap_or(usize::MAX),
            );
        }
        let started = Instant::now();
        let answer = client.send(request).await;
        writing.into_iter().for_each(InFlightWrite::complete);
        let code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
        self.metrics
            .record_response(method.as_str(), &self.host, code, started.elapsed());
        if let Some(bytes) = answer
            .as_ref()
            .ok()
            .and_then(|answer| answer.body().size_hint().exact())
        {
            self.metrics.record_response_size(
                method.as_str(),
                &self.host,
                usize::try_from(bytes).unwrap_or(usize::MAX),
            );
        }
        Ok(answer?)
    }
}
