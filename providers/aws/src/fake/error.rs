//! Error answers of the in-memory AWS.

use std::borrow::Cow;

use crate::api::{Action, AwsError};

/// An error answer: code and message.
#[derive(Clone, Debug)]
pub(super) struct ApiRejection {
    pub(super) code: Cow<'static, str>,
    pub(super) message: String,
}

/// Result of a request.
pub(super) type ApiResult<T> = Result<T, ApiRejection>;

impl ApiRejection {
    pub(super) fn new(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into() }
    }

    pub(super) fn into_error(self, action: Action) -> AwsError {
        AwsError::response(action, status(&self.code), self.code.into_owned(), self.message)
    }
}

/// Rejects a request.
pub(super) fn refuse<T>(code: &'static str, message: impl Into<String>) -> ApiResult<T> {
    Err(ApiRejection::new(code, message))
}

/// Rejects a request of Elastic Load Balancing with invalid parameters.
pub(super) fn invalid<T>(message: impl Into<String>) -> ApiResult<T> {
    refuse("ValidationError", message)
}

/// Returns the HTTP status that AWS sends with a code.
fn status(code: &str) -> u16 {
    match code {
        "RequestLimitExceeded" | "ServiceUnavailable" | "Unavailable" => 503,
        "InternalError" | "InternalFailure" => 500,
        "UnauthorizedOperation" | "AccessDenied" | "AccessDeniedException" | "AuthFailure" => 403,
        _ => 400,
    }
}
