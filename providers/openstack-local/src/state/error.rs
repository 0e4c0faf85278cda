use std::{borrow::Cow, time::Duration};

use http::StatusCode;

/// An error of a request, before a service formats it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} {kind}: {message}")]
pub struct ApiError {
    /// Status of the answer.
    pub status: StatusCode,
    /// Code of the error where the service has one (Neutron's `type`, such as `PortNotFound`);
    /// empty otherwise.
    pub kind: Cow<'static, str>,
    /// What is wrong, as text.
    pub message: String,
    /// Value of `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// Creates an error.
    pub fn new(
        status: StatusCode,
        kind: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            status,
            kind: kind.into(),
            message: message.into(),
            retry_after: None,
        }
    }

    /// 400.
    pub fn bad_request(kind: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, kind, message)
    }

    /// 403.
    pub fn forbidden(kind: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, kind, message)
    }

    /// 404.
    pub fn not_found(kind: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, kind, message)
    }

    /// 409.
    pub fn conflict(kind: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, kind, message)
    }
}
