//! What can go wrong with a request, with the service's own words.

use std::{fmt, sync::Arc, time::Duration};

use ccm_core::{
    provider::CloudError,
    redact::{redact, redact_credentials},
};
use http::{HeaderMap, StatusCode, header};
use serde_json::Value;

use super::{Call, TransportError};

/// Longest part of a service's message that is repeated.
const MAX_MESSAGE_LENGTH: usize = 500;
/// The words of a web server that knows no such path: nothing is said about an object.
const UNKNOWN_PATH: &str = "The resource could not be found.";

/// A request that failed. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OpenStackError {
    /// What was asked.
    pub call: Call,
    /// Method and path, without query.
    pub target: Arc<str>,
    /// What happened.
    pub cause: ErrorCause,
}

/// What happened to a request.
#[derive(Clone, Debug)]
pub enum ErrorCause {
    /// The service refused, in its own form.
    Response(Arc<ErrorResponse>),
    /// The answer is none of the service's: a proxy's page, a body that was cut, other JSON than expected. Whether the object
    /// is there or the change was made is in doubt.
    UnreliableResponse(UnreliableResponse),
    /// No complete answer came.
    NoResponse(Arc<TransportError>),
    /// There is no token, or no endpoint in the catalog.
    Session(Arc<SessionError>),
    /// Our own budget keeps it back for so long; the cloud did not see it.
    RateLimited(Duration),
    /// It was not to be sent: no right to write, or the operation was cancelled.
    NotSent(CloudError),
    /// It cannot be sent as it is.
    Input(Box<str>),
}

/// A service's refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorResponse {
    /// Status.
    pub status: StatusCode,
    /// The service's own name for it: `PortNotFound`, `itemNotFound`, `Unauthorized`; Octavia's `Client` or `Server`.
    pub kind: Box<str>,
    /// The service's words.
    pub message: Box<str>,
    /// `Retry-After`, where that is a number of seconds.
    pub retry_after: Option<Duration>,
    /// ID by which the cloud's logs know the request.
    pub request_id: Option<Box<str>>,
}

/// An answer that proves nothing.
#[derive(Clone, Debug)]
pub struct UnreliableResponse {
    /// Status.
    pub status: StatusCode,
    /// What is wrong with the answer.
    pub reason: Box<str>,
    /// `Retry-After`, where that is a number of seconds.
    pub retry_after: Option<Duration>,
}

/// Why there is no way to a service.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SessionError {
    /// Keystone refuses the credentials.
    #[error("authentication at {url}: {message}")]
    Denied {
        /// Where.
        url: Box<str>,
        /// Keystone's words.
        message: Box<str>,
    },
    /// Keystone does not answer as it should.
    #[error("authentication at {url}: {message}")]
    Unavailable {
        /// Where.
        url: Box<str>,
        /// What happened.
        message: Box<str>,
        /// How long to leave it alone.
        retry_after: Option<Duration>,
    },
    /// The catalog does not have the service where it is looked for; the message lists what it has.
    #[error("{0}")]
    NoEndpoint(Box<str>),
    /// The service does not speak a version that is spoken here.
    #[error("{0}")]
    Version(Box<str>),
    /// Credentials cannot be read.
    #[error("{0}")]
    Credentials(Box<str>),
}

impl OpenStackError {
    /// Makes an error of a request that has no address yet.
    pub(super) fn new(call: Call, cause: ErrorCause) -> Self {
        Self { call, target: call.name().into(), cause }
    }

    /// Makes an answer that proves nothing.
    pub(super) fn unreliable(call: Call, target: &Arc<str>, status: StatusCode, reason: impl Into<Box<str>>) -> Self {
        let doubt = UnreliableResponse { status, reason: reason.into(), retry_after: None };
        Self { call, target: target.clone(), cause: ErrorCause::UnreliableResponse(doubt) }
    }

    /// Reads the answer to a request that was refused, in which these secrets stood: some services repeat requests.
    pub(super) fn from_response(
        call: Call,
        target: &Arc<str>,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        secrets: &[&str],
    ) -> Self {
        let words = |text: &str| shortened(&redact_credentials(&redact(text, secrets)));
        let retry_after = retry_after(headers);
        let cause = match service_message(body) {
            Some((kind, message)) => ErrorCause::Response(Arc::new(ErrorResponse {
                status,
                // A word by which refusals are told apart, unless it is a title that repeats the request.
                kind: if is_error_code(&kind) && !secrets.contains(&&*kind) {
                    kind.into()
                } else {
                    words(&kind).into()
                },
                message: words(&message).into(),
                retry_after,
                request_id: request_id(headers),
            })),
            None => ErrorCause::UnreliableResponse(UnreliableResponse {
                status,
                reason: words(&describe_foreign(headers, body)).into(),
                retry_after,
            }),
        };
        Self { call, target: target.clone(), cause }
    }

    /// Returns the service's refusal, if it is one.
    pub fn response(&self) -> Option<&ErrorResponse> {
        match &self.cause {
            ErrorCause::Response(answer) => Some(answer),
            _ => None,
        }
    }

    /// Returns the status of the answer, whoever gave it.
    pub fn status(&self) -> Option<StatusCode> {
        match &self.cause {
            ErrorCause::Response(answer) => Some(answer.status),
            ErrorCause::UnreliableResponse(doubt) => Some(doubt.status),
            _ => None,
        }
    }

    /// Returns the service's own name for the refusal; empty for any other error.
    pub fn kind(&self) -> &str {
        self.response().map_or("", |answer| &answer.kind)
    }

    /// Returns how long the cloud wants to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.cause {
            ErrorCause::Response(answer) => answer.retry_after,
            ErrorCause::UnreliableResponse(doubt) => doubt.retry_after,
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
            ErrorCause::UnreliableResponse(doubt) => write!(f, ": {} (status {})", doubt.reason, doubt.status.as_u16()),
            ErrorCause::NoResponse(_) | ErrorCause::Session(_) | ErrorCause::NotSent(_) => Ok(()),
            ErrorCause::RateLimited(after) => {
                write!(f, ": kept back for {after:?}, since the budget of requests is used up")
            }
            ErrorCause::Input(words) => write!(f, ": {words}"),
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

/// Reads the form of any of the services: `{"NeutronError": {"type", "message"}}`, `{"itemNotFound": {"code", "message"}}`,
/// `{"error": {"title", "message"}}`, `{"faultcode", "faultstring"}`, and Barbican's `{"code", "title", "description"}`.
fn service_message(body: &[u8]) -> Option<(String, String)> {
    let Ok(Value::Object(map)) = serde_json::from_slice(body) else { return None };
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    if let Some(message) = text(map.get("faultstring")) {
        return Some((text(map.get("faultcode")).unwrap_or_default(), message));
    }
    if let (Some(title), Some(message)) = (text(map.get("title")), text(map.get("description"))) {
        return Some((title, message));
    }
    let mut entries = map.iter();
    let (Some((key, value)), None) = (entries.next(), entries.next()) else { return None };
    match (key.as_str(), value) {
        ("NeutronError", Value::Object(error)) => {
            let kind = text(error.get("type"))?;
            Some((kind, text(error.get("message")).unwrap_or_default()))
        }
        // Old releases of Neutron, and its middleware.
        ("NeutronError", Value::String(message)) => Some(("NeutronError".to_owned(), message.clone())),
        (key, Value::Object(error)) => {
            let message = text(error.get("message"))?;
            let kind = if key == "error" { text(error.get("title")).unwrap_or_default() } else { key.to_owned() };
            Some((kind, message))
        }
        _ => None,
    }
}

/// Says what an answer is that is not of the service.
fn describe_foreign(headers: &HeaderMap, body: &[u8]) -> String {
    let content = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("no type");
    format!("the answer is not the service's: {} bytes of {}", body.len(), shortened(content))
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

pub(super) fn request_id(headers: &HeaderMap) -> Option<Box<str>> {
    let id = headers.get("x-openstack-request-id").or_else(|| headers.get("x-compute-request-id"))?;
    id.to_str().ok().map(Into::into)
}

fn is_error_code(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric())
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_MESSAGE_LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl ErrorResponse {
    /// Tells whether it is about an object that is not there, and not about a path that is not.
    pub(super) fn is_not_found(&self) -> bool {
        self.status == StatusCode::NOT_FOUND
            && self.kind.as_ref() != "HTTPNotFound"
            && self.message.trim() != UNKNOWN_PATH
    }
}
