//! Errors of requests, with the service's own messages.

use std::{fmt, sync::Arc, time::Duration};

use ccm_core::{
    provider::CloudError,
    redact::{redact, redact_credentials},
};
use http::{HeaderMap, StatusCode, header};
use serde_json::Value;

use super::{Call, TransportError};

/// Maximum length of a service's message in an error.
const MAX_MESSAGE_LENGTH: usize = 500;
/// The message of a web server for an unknown path, which says nothing about an object.
const UNKNOWN_PATH: &str = "The resource could not be found.";

/// A request that failed. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OpenStackError {
    /// Kind of the request.
    pub call: Call,
    /// Method and path of the request, without query.
    pub target: Arc<str>,
    /// Cause of the error.
    pub cause: ErrorCause,
}

/// Cause of a failed request.
#[derive(Clone, Debug)]
pub enum ErrorCause {
    /// The service rejected the request, with an error in its own format.
    Response(Arc<ErrorResponse>),
    /// The response is not the service's own, for example a proxy's page, a truncated body or
    /// unexpected JSON. It does not prove that the object does not exist, or that the change was
    /// not made.
    UnreliableResponse(UnreliableResponse),
    /// There was no complete response.
    NoResponse(Arc<TransportError>),
    /// There is no token, or no endpoint in the catalog.
    Session(Arc<SessionError>),
    /// Our own rate limiter delays the request for this long. It was not sent.
    RateLimited(Duration),
    /// The request must not be sent, because this process is not the leader or the operation was
    /// cancelled.
    NotSent(CloudError),
    /// The request is invalid and was not sent.
    Input(Box<str>),
}

/// A service's error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorResponse {
    /// Status.
    pub status: StatusCode,
    /// The service's own code for it: `PortNotFound`, `itemNotFound`, `Unauthorized`; Octavia's
    /// `Client` or `Server`.
    pub kind: Box<str>,
    /// The service's message.
    pub message: Box<str>,
    /// `Retry-After`, where that is a number of seconds.
    pub retry_after: Option<Duration>,
    /// ID of the request in the cloud's logs.
    pub request_id: Option<Box<str>>,
}

/// A response that proves nothing about the request.
#[derive(Clone, Debug)]
pub struct UnreliableResponse {
    /// Status.
    pub status: StatusCode,
    /// Description of what is wrong with the response.
    pub reason: Box<str>,
    /// `Retry-After`, where that is a number of seconds.
    pub retry_after: Option<Duration>,
}

/// An error that makes a service unusable.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SessionError {
    /// Keystone rejects the credentials.
    #[error("authentication at {url}: {message}")]
    Denied {
        /// URL of Keystone.
        url: Box<str>,
        /// Keystone's message.
        message: Box<str>,
    },
    /// Keystone does not answer as expected.
    #[error("authentication at {url}: {message}")]
    Unavailable {
        /// URL of Keystone.
        url: Box<str>,
        /// Description of the error.
        message: Box<str>,
        /// Delay before the next request, if Keystone requests one.
        retry_after: Option<Duration>,
    },
    /// The catalog does not have the service in this region and interface; the message lists what
    /// it has.
    #[error("{0}")]
    NoEndpoint(Box<str>),
    /// The service does not support a version that this client supports.
    #[error("{0}")]
    Version(Box<str>),
    /// Credentials cannot be read.
    #[error("{0}")]
    Credentials(Box<str>),
}

impl OpenStackError {
    /// Creates an error of a request that has no URL yet.
    pub(crate) fn new(call: Call, cause: ErrorCause) -> Self {
        Self { call, target: call.name().into(), cause }
    }

    /// Creates the error for an unreliable response.
    pub(super) fn unreliable(
        call: Call,
        target: &Arc<str>,
        status: StatusCode,
        reason: impl Into<Box<str>>,
    ) -> Self {
        let response = UnreliableResponse { status, reason: reason.into(), retry_after: None };
        Self {
            call,
            target: target.clone(),
            cause: ErrorCause::UnreliableResponse(response),
        }
    }

    /// Parses the error response to a request that contained these secrets. They are redacted,
    /// because some services repeat requests.
    pub(super) fn from_response(
        call: Call,
        target: &Arc<str>,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        secrets: &[&str],
    ) -> Self {
        let retry_after = retry_after(headers);
        let cause = match service_message(body) {
            Some((kind, message)) => ErrorCause::Response(Arc::new(ErrorResponse {
                status,
                // A code that identifies the error stays as it is. A title that may repeat the
                // request is redacted.
                kind: if is_error_code(&kind) && !secrets.contains(&&*kind) {
                    kind.into()
                } else {
                    for_message(&kind, secrets).into()
                },
                message: for_message(&message, secrets).into(),
                retry_after,
                request_id: request_id(headers),
            })),
            None => ErrorCause::UnreliableResponse(UnreliableResponse {
                status,
                reason: for_message(&describe_foreign(headers, body), secrets).into(),
                retry_after,
            }),
        };
        Self { call, target: target.clone(), cause }
    }

    /// Returns the service's error response, if there is one.
    pub fn response(&self) -> Option<&ErrorResponse> {
        match &self.cause {
            ErrorCause::Response(answer) => Some(answer),
            _ => None,
        }
    }

    /// Returns the status of the answer, whoever sent it.
    pub fn status(&self) -> Option<StatusCode> {
        match &self.cause {
            ErrorCause::Response(answer) => Some(answer.status),
            ErrorCause::UnreliableResponse(response) => Some(response.status),
            _ => None,
        }
    }

    /// Returns the service's own code for the error; empty for any other error.
    pub fn kind(&self) -> &str {
        self.response().map_or("", |answer| &answer.kind)
    }

    /// Returns how long the cloud requests to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.cause {
            ErrorCause::Response(answer) => answer.retry_after,
            ErrorCause::UnreliableResponse(response) => response.retry_after,
            ErrorCause::Session(error) => match &**error {
                SessionError::Unavailable { retry_after, .. } => *retry_after,
                _ => None,
            },
            ErrorCause::RateLimited(after) => Some(*after),
            _ => None,
        }
    }
}

impl fmt::Display for OpenStackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.call.service(), self.target)?;
        match &self.cause {
            ErrorCause::Response(answer) => {
                write!(f, ": {} ({} {})", answer.message, answer.status.as_u16(), answer.kind)
            }
            ErrorCause::UnreliableResponse(response) => {
                write!(f, ": {} (status {})", response.reason, response.status.as_u16())
            }
            ErrorCause::NoResponse(_) | ErrorCause::Session(_) | ErrorCause::NotSent(_) => Ok(()),
            ErrorCause::RateLimited(after) => {
                write!(f, ": kept back for {after:?}, since the budget of requests is used up")
            }
            ErrorCause::Input(message) => write!(f, ": {message}"),
        }
    }
}

impl std::error::Error for OpenStackError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            ErrorCause::NoResponse(error) => Some(&**error),
            ErrorCause::Session(error) => Some(&**error),
            ErrorCause::NotSent(error) => Some(error),
            _ => None,
        }
    }
}

/// Parses the error format of any of the services: `{"NeutronError": {"type", "message"}}`,
/// `{"itemNotFound": {"code", "message"}}`, `{"error": {"title", "message"}}`, `{"faultcode",
/// "faultstring"}`, and Barbican's `{"code", "title", "description"}`.
fn service_message(body: &[u8]) -> Option<(String, String)> {
    let Ok(Value::Object(map)) = serde_json::from_slice(body) else {
        return None;
    };
    if let Some(message) = text_of(map.get("faultstring")) {
        return Some((text_of(map.get("faultcode")).unwrap_or_default(), message));
    }
    if let Some(title) = text_of(map.get("title"))
        && let Some(message) = text_of(map.get("description"))
    {
        return Some((title, message));
    }
    let mut entries = map.iter();
    let (Some((key, value)), None) = (entries.next(), entries.next()) else {
        return None;
    };
    match (key.as_str(), value) {
        ("NeutronError", Value::Object(error)) => {
            let kind = text_of(error.get("type"))?;
            Some((kind, text_of(error.get("message")).unwrap_or_default()))
        }
        // Old releases of Neutron, and its middleware.
        ("NeutronError", Value::String(message)) => {
            Some(("NeutronError".to_owned(), message.clone()))
        }
        (key, Value::Object(error)) => {
            let message = text_of(error.get("message"))?;
            let kind = if key == "error" {
                text_of(error.get("title")).unwrap_or_default()
            } else {
                key.to_owned()
            };
            Some((kind, message))
        }
        _ => None,
    }
}

fn text_of(value: Option<&Value>) -> Option<String> {
    value.and_then(Value::as_str).map(str::to_owned)
}

/// Describes an answer that is not the service's.
fn describe_foreign(headers: &HeaderMap, body: &[u8]) -> String {
    let content = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("no type");
    format!("the answer is not the service's: {} bytes of {}", body.len(), shortened(content))
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get(header::RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}

pub(super) fn request_id(headers: &HeaderMap) -> Option<Box<str>> {
    let id = headers
        .get("x-openstack-request-id")
        .or_else(|| headers.get("x-compute-request-id"))?;
    id.to_str().ok().map(Into::into)
}

fn is_error_code(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Prepares a text of the cloud for an error message.
fn for_message(text: &str, secrets: &[&str]) -> String {
    shortened(&redact_credentials(&redact(text, secrets)))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE_LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl ErrorResponse {
    /// Returns true if the error is about an object that does not exist, and not about an unknown
    /// path.
    pub(super) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
            && self.kind.as_ref() != "HTTPNotFound"
            && self.message.trim() != UNKNOWN_PATH
    }
}
