//! Errors of requests to AWS.

use std::{fmt, sync::Arc, time::Duration};

use ccm_core::provider::CloudError;

use super::Action;

/// A request that failed.
///
/// `Display` names the action and AWS' answer; the [`client`](crate::client) module converts it to
/// a [`CloudError`].
#[derive(Clone, Debug)]
pub struct AwsError {
    /// Action of the request; `None` for the metadata service.
    pub action: Option<Action>,
    /// Why it failed.
    pub cause: AwsErrorCause,
}

/// Why a request failed.
#[derive(Clone, Debug)]
pub enum AwsErrorCause {
    /// AWS answered with an error.
    Response {
        /// Error code, such as `InvalidInstanceID.NotFound`, as on the wire: without `Exception`
        /// where the SDK adds it.
        code: Box<str>,
        /// Human-readable message.
        message: Box<str>,
        /// HTTP status.
        status: u16,
        /// AWS' ID of the request.
        request_id: Option<Box<str>>,
    },
    /// There is no readable answer. AWS may have carried out the request.
    NoResponse(Arc<dyn std::error::Error + Send + Sync>),
    /// Not sent, because our own rate limit is exceeded. It may be sent after this time.
    RateLimited(Duration),
    /// Not sent, or not waited for, because leadership was lost or the operation was cancelled.
    NotSent(CloudError),
}

impl AwsError {
    /// Creates the error of an answer.
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

    /// Creates the error of a missing answer.
    pub fn no_response(
        action: Action,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            action: Some(action),
            cause: AwsErrorCause::NoResponse(Arc::from(source.into())),
        }
    }

    /// Returns AWS' message without the session token. AWS includes the token when a signature is
    /// wrong, because it then repeats the request as it understood it, with all headers.
    pub fn redacted_message(message: &str) -> Box<str> {
        ccm_core::redact::redact_credentials(message).into()
    }

    /// Returns the error code of the answer; empty when there is none.
    pub fn code(&self) -> &str {
        match &self.cause {
            AwsErrorCause::Response { code, .. } => code,
            _ => "",
        }
    }

    /// Returns whether AWS answered with this code.
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
