//! Client for JSON over HTTP.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::cloud::config::HostPort;

/// Timeout for connecting. Short, because the server is on the same machine or in the same network.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a response, which is enough for a list of 100,000 instances.
const MAX_RESPONSE_SIZE: usize = 64 << 20;

/// Client for JSON over HTTP to one address.
#[derive(Clone, Debug)]
pub(super) struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    address: HostPort,
}

/// Error of a request without a usable response.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The request could not be sent, or its response was incomplete.
    #[error("{method} {url}")]
    Send {
        /// Method.
        method: Method,
        /// URL.
        url: String,
        /// Cause.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server returned an error.
    #[error("{method} {url}: status {status}: {body}")]
    Status {
        /// Method.
        method: Method,
        /// URL.
        url: String,
        /// Status of the response.
        status: StatusCode,
        /// Body of the response.
        body: String,
    },
    /// The body of the response does not have the expected form.
    #[error("{method} {url}: unexpected response")]
    Decode {
        /// Method.
        method: Method,
        /// URL.
        url: String,
        /// Cause.
        #[source]
        cause: serde_json::Error,
    },
}

impl HttpError {
    /// Returns the status if the server returned an error.
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl Http {
    pub(super) fn new(address: HostPort) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Self { client, address }
    }

    pub(super) fn address(&self) -> &HostPort {
        &self.address
    }

    /// Sends a request and decodes the response.
    pub(super) async fn request_json<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<T, HttpError> {
        let url = format!("http://{}{path}", self.address);
        let bytes = self.send(method.clone(), path, body).await?;
        serde_json::from_slice(&bytes).map_err(|cause| HttpError::Decode { method, url, cause })
    }

    /// Sends a request and returns the body of a successful response.
    pub(super) async fn send<B: Serialize + ?Sized>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<Bytes, HttpError> {
        let url = format!("http://{}{path}", self.address);
        let (status, body) = match self.exchange(&method, &url, body).await {
            Ok(response) => response,
            Err(cause) => return Err(HttpError::Send { method, url, cause }),
        };
        if status.is_success() {
            Ok(body)
        } else {
            let body = String::from_utf8_lossy(&body).into_owned();
            Err(HttpError::Status { method, url, status, body })
        }
    }

    /// Sends a request and reads the whole response, regardless of its status.
    async fn exchange<B: Serialize + ?Sized>(
        &self,
        method: &Method,
        url: &str,
        body: Option<&B>,
    ) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
        let body = match body {
            Some(body) => serde_json::to_vec(body)?,
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method.clone())
            .uri(url)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::from(body))?;
        let response = self.client.request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_SIZE)
            .collect()
            .await?;
        Ok((status, body.to_bytes()))
    }
}
