//! Interface between the client and the transport of its HTTP requests.

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};

/// Sends HTTP requests: each once, without retries, and reads the whole answer.
///
/// `Https` sends over sockets; tests use the local cloud, in process and in virtual time.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends one request and reads its answer to the end. An answer with any status is `Ok`.
    ///
    /// # Errors
    /// There is no complete answer: refused, reset, timed out, cut short, or the server is not
    /// trusted.
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, TransportError>;
}

/// An error because there was no complete response.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct TransportError {
    /// Description of the error, with the host and without secrets.
    pub message: String,
    /// True when the request may have reached the service: a change may have been made.
    pub maybe_sent: bool,
    /// The error below.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}
