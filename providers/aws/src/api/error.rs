//! Errors of requests to AWS.

use std::{fmt, sync::Arc, time::Duration};

use ccm_core::provider::CloudError;

use super::Action;

/// Error of a request to AWS.
///
/// `Display` shows the action and AWS' answer. The [`client`](crate::client) module converts the
/// error to a [`CloudError`].
#[derive(Clone, Debug)]
pub struct AwsError {
    /// Action of the request; `None` for the metadata service.
    pub action: Option<Action>,
    /// Cause of the failure.
    pub cause: AwsErrorCause,
}

/// Cause of the failure of a request.
#[derive(Clone, Debug)]
pub enum AwsErrorCause {
    /// AWS answered with an error.
    Response {
        /// Error code, such as `InvalidInstanceID.NotFound`, spelled as on the wire (without the
        /// suffix `Exception` that the SDK adds to some).
        code: Box<str>,
        /// Human-readable message.
        message: Box<str>,
        /// HTTP status of the answer.
        status: u16,
        /// ID that AWS assigned to the request.
        request_id: Option<Box<str>>,
    },
    /// AWS returned no readable answer. It may have carried out the request.
    NoResponse(Arc<dyn std::error::Error + Send + Sync>),
    /// The request was not sent, because our own rate limit is exceeded. It may be sent after this
    /// time.
    RateLimited(Duration),
    /// The request was not sent, or its answer was not awaited, because leadership was lost or the
    /// operation was canceled.
    NotSent(CloudError),
}

impl AwsError {
    /// Creates the error for an answer with an error code.
    pub fn response(
        action: Action,
        status: u16,
        code: impl Into<Box<str>>,
        message: impl Into<Box<str>>,
    ) -> Self {
        let cause = AwsErrorCause::Response {
            code: code.into(),
            message: message.into(),
            status,
            request_id: None,
        };
        Self { action: Some(action), cause }
    }

    /// Creates the error for a missing or unusable answer.
    pub fn no_response(
        action: Action,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            action: Some(action),
            cause: AwsErrorCause::NoResponse(Arc::from(source.into())),
        }
    }

    /// Removes the session token from AWS' message. If a signature is wrong, AWS' message contains
    /// the request with all headers, including the token.
    pub fn redacted_message(message: &str) -> Box<str> {
        ccm_core::redact::redact_credentials(message).into()
    }

    /// Returns the error code of the answer, or empty text if there was no answer.
    pub fn code(&self) -> &str {
        match &self.cause {
            AwsErrorCause::Response { code, .. } => code,
            _ => "",
        }
    }

    /// Returns true if AWS answered with this code.
    pub fn has_code(&self, code: &str) -> bool {
        self.code() == code
    }
}

impl fmt::Display for AwsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = self.action.map_or("instance metadata", Action::name);
        match &self.cause {
            AwsErrorCause::Response { code, message, .. } => {
                write!(f, "{action}: {code}: {message}")
            }
            AwsErrorCause::NoResponse(_) => write!(f, "{action}: no answer"),
            AwsErrorCause::RateLimited(after) => {
                write!(f, "{action}: request budget used up for {after:?}")
            }
            AwsErrorCause::NotSent(_) => write!(f, "{action}: not sent"),
        }
    }
}

impl std::error::Error for AwsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.cause {
            AwsErrorCause::NoResponse(source) => Some(&**source),
            AwsErrorCause::NotSent(error) => Some(error),
            AwsErrorCause::Response { .. } | AwsErrorCause::RateLimited(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_token_that_aws_repeats_is_left_out() {
        let message = "The request signature we calculated does not match the signature you provided. The Canonical String for \
                       this request should have been\n'POST\n/\n\nhost:ec2.eu-west-1.amazonaws.com\n\
                       x-amz-security-token:IQoJb3JpZ2luX2VjEXAMPLE+/=\n\nhost;x-amz-security-token\nabc'";
        let words = AwsError::redacted_message(message);
        assert!(!words.contains("IQoJ") && words.contains("host;x-amz-security-token"), "{words}");
    }
}
