//! Rate limit, write gate and metrics around a plain `kube::Client`.

use std::sync::Arc;

use http::{Method, Request, Response};
use http_body::Body as _;
use kube::client::Body;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use super::{ApiMetrics, RateLimit};
use crate::write_gate::WriteGate;

/// Rate limit, write gate and metrics around a plain [`kube::Client`].
///
/// Events, leader election and providers use such a client. Everything else uses
/// [`ApiClient`](super::ApiClient).
#[derive(Clone, Debug)]
pub struct ClientMiddleware {
    /// The rate limit of all requests, including watches.
    pub limit: RateLimit,
    /// The write gate. While it is closed, writes are rejected with a [`kube::Error::Service`] that
    /// contains a [`NotLeader`](crate::write_gate::NotLeader).
    pub gate: WriteGate,
    /// The metrics of the requests.
    pub metrics: ApiMetrics,
    /// The server's host, for the metric label.
    pub host: Arc<str>,
    /// A token that cancels requests that wait for the rate limit.
    pub shutdown: CancellationToken,
}

/// The error of a request that was not sent because the process is stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the process is stopping")]
pub struct ShuttingDown;

impl ClientMiddleware {
    /// Returns a client that sends its requests through this middleware to `client`.
    pub fn wrap(self, client: kube::Client) -> kube::Client {
        let namespace = client.default_namespace().to_owned();
        let valid_until = client.valid_until().to_owned();
        let service = tower::service_fn(move |request| {
            let middleware = self.clone();
            let client = client.clone();
            async move { middleware.send(&client, request).await }
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
            // Biased: a request that does not have to wait is sent even during a shutdown, because
            // it may finish work in progress. The write gate closes later.
            biased;
            waited = self.limit.acquire() => waited,
            () = self.shutdown.cancelled() => return Err(ShuttingDown.into()),
        };
        self.metrics
            .record_rate_limit_wait(method.as_str(), &self.host, waited);
        // Check the gate only now, because the wait may have been long.
        let write = (!matches!(method, Method::GET | Method::HEAD))
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
        if let Some(write) = write {
            write.complete();
        }
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
