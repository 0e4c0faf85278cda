//! Classifies errors, and maps them to what the framework does about them.

use std::time::Duration;

use ccm_core::provider::{CloudError, ErrorKind};
use http::StatusCode;

use super::{ErrorCause, ErrorResponse, OpenStackError, Service, SessionError};

/// Retry delay when somebody has to change what the cloud rejects.
const USER_ERROR: Duration = Duration::from_secs(600);
/// Retry delay when a quota is used up.
const QUOTA: Duration = Duration::from_secs(300);
/// Retry delay when a permission is missing.
const PERMISSION: Duration = Duration::from_secs(60);

/// Event reasons in addition to the framework's.
pub mod reason {
    /// The cloud does not allow the request: credentials or policy.
    pub const PERMISSION: &str = "OpenStackPermissionDenied";
    /// A quota of the project is used up.
    pub const QUOTA: &str = "OpenStackQuotaExceeded";
    /// The cloud rejects what the object requests.
    pub const REFUSED: &str = "OpenStackRequestRefused";
    /// Our own rate limit is used up.
    pub const BUDGET: &str = "OpenStackRequestBudget";
    /// The service is not in the catalog, or not in a supported version.
    pub const SERVICE: &str = "OpenStackServiceMissing";
}

/// Class of an error, independent of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The service itself reported that the object does not exist.
    NotFound,
    /// A load balancer is not in a state in which it may be changed (Octavia, 409).
    Immutable,
    /// Another change of the object is in progress, or the object exists already.
    Conflict,
    /// The object was changed since it was read (412).
    Changed,
    /// A quota or a limit of the project is used up.
    Quota,
    /// The cloud rejects the request's content.
    Invalid,
    /// The cloud cannot do this at all, for any object (501, or an unknown path).
    Unsupported,
    /// Credentials or policy do not allow it.
    Denied,
    /// Requests are sent too fast.
    Throttled,
    /// The request was not sent, for the reason in the source.
    NotSent,
    /// Everything else, and every unreliable response.
    Transient,
}

impl OpenStackError {
    /// Returns the class of the error.
    pub fn class(&self) -> ErrorClass {
        match &self.cause {
            ErrorCause::Response(answer) => classify_response(self.call.service(), answer),
            ErrorCause::UnreliableResponse(doubt)
                if doubt.status == StatusCode::TOO_MANY_REQUESTS =>
            {
                ErrorClass::Throttled
            }
            ErrorCause::UnreliableResponse(_) | ErrorCause::NoResponse(_) => ErrorClass::Transient,
            ErrorCause::Session(error) => match &**error {
                SessionError::Denied { .. } | SessionError::Credentials(_) => ErrorClass::Denied,
                SessionError::Unavailable { .. } => ErrorClass::Transient,
                SessionError::NoEndpoint(_) | SessionError::Version(_) => ErrorClass::Unsupported,
            },
            ErrorCause::RateLimited(_) => ErrorClass::Throttled,
            ErrorCause::NotSent(_) => ErrorClass::NotSent,
            ErrorCause::Input(_) => ErrorClass::Invalid,
        }
    }

    /// Returns true if the service itself said that the object does not exist. An unreliable
    /// response does not count.
    pub fn is_not_found(&self) -> bool {
        self.class() == ErrorClass::NotFound
    }

    /// Returns true if a load balancer cannot be changed at the moment.
    pub fn is_immutable(&self) -> bool {
        self.class() == ErrorClass::Immutable
    }

    /// Returns true if the object was changed since it was read, so that nothing was done.
    pub fn is_changed(&self) -> bool {
        self.class() == ErrorClass::Changed
    }

    /// Returns true if the service, or a proxy in front of it, began with the request and did not
    /// complete the answer in time, as with a list that is too long for it.
    pub fn is_too_slow(&self) -> bool {
        match &self.cause {
            ErrorCause::NoResponse(lost) => lost.maybe_sent,
            ErrorCause::Response(answer) => answer.status == StatusCode::GATEWAY_TIMEOUT,
            ErrorCause::UnreliableResponse(answer) => answer.status == StatusCode::GATEWAY_TIMEOUT,
            _ => false,
        }
    }

    /// Returns when a request may be sent that our own rate limit delayed; `None` for every other
    /// error. The request was not sent to the cloud, so nothing has changed.
    pub fn rate_limit_delay(&self) -> Option<Duration> {
        match &self.cause {
            ErrorCause::RateLimited(after) => Some(*after),
            _ => None,
        }
    }
}

fn classify_response(service: Service, answer: &ErrorResponse) -> ErrorClass {
    match answer.status.as_u16() {
        404 if answer.is_not_found() => ErrorClass::NotFound,
        404 | 405 | 501 => ErrorClass::Unsupported,
        400 | 403 | 409 if is_quota(service, answer) => ErrorClass::Quota,
        401 | 403 => ErrorClass::Denied,
        409 if service == Service::LoadBalancer && is_immutable(&answer.message) => {
            ErrorClass::Immutable
        }
        409 => ErrorClass::Conflict,
        412 => ErrorClass::Changed,
        413 | 429 => ErrorClass::Throttled,
        400 | 406 | 422 => ErrorClass::Invalid,
        _ => ErrorClass::Transient,
    }
}

/// Neutron has an error type for each; Octavia says it only in the message, and uses 403 for policy
/// as well.
fn is_quota(service: Service, answer: &ErrorResponse) -> bool {
    match service {
        Service::LoadBalancer => answer.message.starts_with("Quota has been met"),
        Service::Network => matches!(
            &*answer.kind,
            "OverQuota"
                | "RoutesExhausted"
                | "AllowedAddressPairExhausted"
                | "ExternalIpAddressExhausted"
                | "IpAddressGenerationFailure"
        ),
        _ => false,
    }
}

/// Octavia distinguishes two kinds of 409 only by their messages: about a child of a load balancer,
/// and about the load balancer.
fn is_immutable(message: &str) -> bool {
    message.contains("is immutable and cannot be updated") || message.starts_with("Invalid state ")
}

impl From<OpenStackError> for CloudError {
    fn from(error: OpenStackError) -> Self {
        // First, map the class to a kind, a retry delay and an event reason.
        let new = |kind| Self::new(kind, error.to_string());
        let cloud = match error.class() {
            ErrorClass::NotSent => match &error.cause {
                ErrorCause::NotSent(refused) => return refused.clone(),
                _ => new(ErrorKind::Transient),
            },
            ErrorClass::NotFound => new(ErrorKind::NotFound),
            ErrorClass::Immutable | ErrorClass::Conflict | ErrorClass::Changed => {
                new(ErrorKind::Conflict)
            }
            ErrorClass::Quota => new(ErrorKind::QuotaExceeded)
                .with_retry_after(QUOTA)
                .with_reason(reason::QUOTA),
            ErrorClass::Unsupported if matches!(error.cause, ErrorCause::Session(_)) => {
                new(ErrorKind::Transient)
                    .with_retry_after(PERMISSION)
                    .with_reason(reason::SERVICE)
            }
            ErrorClass::Invalid | ErrorClass::Unsupported => new(ErrorKind::InvalidInput)
                .with_retry_after(USER_ERROR)
                .with_reason(reason::REFUSED),
            ErrorClass::Denied => new(ErrorKind::Denied)
                .with_retry_after(PERMISSION)
                .with_reason(reason::PERMISSION),
            ErrorClass::Throttled if error.rate_limit_delay().is_some() => {
                new(ErrorKind::Throttled).with_reason(reason::BUDGET)
            }
            ErrorClass::Throttled => new(ErrorKind::Throttled),
            ErrorClass::Transient => new(ErrorKind::Transient),
        };
        // Then add what the answer says: retry delay, request ID, source.
        let cloud = match error.retry_after() {
            Some(after) => cloud.with_retry_after(after),
            None => cloud,
        };
        let id = error
            .response()
            .and_then(|answer| answer.request_id.clone());
        let cloud = match id {
            Some(id) => cloud.with_request_id(&*id),
            None => cloud,
        };
        match error.cause {
            ErrorCause::NoResponse(source) => cloud.with_source(Cause(source)),
            ErrorCause::Session(source) => cloud.with_source(Cause(source)),
            _ => cloud,
        }
    }
}

/// A shared cause.
#[derive(Debug)]
struct Cause<E>(std::sync::Arc<E>);

impl<E: std::error::Error> std::fmt::Display for Cause<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Cause<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
