//! What the framework does about each error of the cloud.

use std::time::Duration;

use ccm_core::provider::{CloudError, ErrorKind};
use http::StatusCode;

use super::{Answer, Fault, OsError, Service, SessionError};

/// How long to wait for somebody to change what the cloud refuses.
const USER_ERROR: Duration = Duration::from_secs(600);
/// How long to wait for a quota.
const QUOTA: Duration = Duration::from_secs(300);
/// How long to wait for a permission.
const PERMISSION: Duration = Duration::from_secs(60);

/// Event reasons beside the framework's own.
pub mod reason {
    /// The cloud does not allow the request: credentials or policy.
    pub const PERMISSION: &str = "OpenStackPermissionDenied";
    /// A quota of the project is used up.
    pub const QUOTA: &str = "OpenStackQuotaExceeded";
    /// The cloud refuses what the object asks for.
    pub const REFUSED: &str = "OpenStackRequestRefused";
    /// Our own budget of requests is used up.
    pub const BUDGET: &str = "OpenStackRequestBudget";
    /// The service is not in the catalog, or not in a version that is spoken here.
    pub const SERVICE: &str = "OpenStackServiceMissing";
}

/// What an error means, whatever was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The object is not there: the service itself says so, about the object.
    Absent,
    /// A load balancer is not in a state in which it may be changed (Octavia, 409).
    Immutable,
    /// Something else is going on with the object, or it is there already.
    Conflict,
    /// The object was changed since it was read (412).
    Changed,
    /// A quota or a limit of the project is used up.
    Quota,
    /// The cloud refuses what was asked for.
    Invalid,
    /// The cloud cannot do what was asked for, whatever it is about (501, or no such path).
    Unsupported,
    /// Credentials or policy.
    Denied,
    /// Requests come too fast.
    Throttled,
    /// The request was not sent; the source says why.
    Unsent,
    /// Everything else, and every doubt.
    Transient,
}

impl OsError {
    /// Tells what it means.
    pub fn meaning(&self) -> Meaning {
        match &self.fault {
            Fault::Answer(answer) => of_answer(self.call.service(), answer),
            Fault::Doubt(doubt) if doubt.status == StatusCode::TOO_MANY_REQUESTS => Meaning::Throttled,
            Fault::Doubt(_) | Fault::Unanswered(_) => Meaning::Transient,
            Fault::Session(error) => match &**error {
                SessionError::Denied { .. } | SessionError::Credentials(_) => Meaning::Denied,
                SessionError::Unavailable { .. } => Meaning::Transient,
                SessionError::NoEndpoint(_) | SessionError::Version(_) => Meaning::Unsupported,
            },
            Fault::Budget(_) => Meaning::Throttled,
            Fault::Refused(_) => Meaning::Unsent,
            Fault::Input(_) => Meaning::Invalid,
        }
    }

    /// Tells whether the service itself said that the object is not there. Doubt is not.
    pub fn is_not_found(&self) -> bool {
        self.meaning() == Meaning::Absent
    }

    /// Tells whether a load balancer is not to be changed just now.
    pub fn is_immutable(&self) -> bool {
        self.meaning() == Meaning::Immutable
    }

    /// Tells whether the object was changed since it was read, so that nothing was done.
    pub fn is_changed(&self) -> bool {
        self.meaning() == Meaning::Changed
    }

    /// Returns when a request may be sent that our own budget kept back; `None` for every other error. The cloud did not see
    /// it, so that nothing is in doubt.
    pub fn turn_after(&self) -> Option<Duration> {
        match &self.fault {
            Fault::Budget(after) => Some(*after),
            _ => None,
        }
    }
}

fn of_answer(service: Service, answer: &Answer) -> Meaning {
    match answer.status.as_u16() {
        404 if answer.is_absence() => Meaning::Absent,
        404 | 405 | 501 => Meaning::Unsupported,
        400 | 403 | 409 if is_quota(service, answer) => Meaning::Quota,
        401 | 403 => Meaning::Denied,
        409 if service == Service::LoadBalancer && is_immutable(&answer.message) => Meaning::Immutable,
        409 => Meaning::Conflict,
        412 => Meaning::Changed,
        413 | 429 => Meaning::Throttled,
        400 | 406 | 422 => Meaning::Invalid,
        _ => Meaning::Transient,
    }
}

/// Neutron has a type for each; Octavia says it only in words, and 403 is policy as well.
fn is_quota(service: Service, answer: &Answer) -> bool {
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

/// Octavia tells two kinds of 409 apart by their words alone: of the object below a balancer, and of the balancer.
fn is_immutable(message: &str) -> bool {
    message.contains("is immutable and cannot be updated") || message.starts_with("Invalid state ")
}

impl From<OsError> for CloudError {
    fn from(error: OsError) -> Self {
        let new = |kind| Self::new(kind, error.to_string());
        let cloud = match error.meaning() {
            Meaning::Unsent => match &error.fault {
                Fault::Refused(refused) => return refused.clone(),
                _ => new(ErrorKind::Transient),
            },
            Meaning::Absent => new(ErrorKind::NotFound),
            Meaning::Immutable | Meaning::Conflict | Meaning::Changed => new(ErrorKind::Conflict),
            Meaning::Quota => new(ErrorKind::QuotaExceeded).with_retry_after(QUOTA).with_reason(reason::QUOTA),
            Meaning::Invalid => new(ErrorKind::InvalidInput).with_retry_after(USER_ERROR).with_reason(reason::REFUSED),
            Meaning::Unsupported if matches!(error.fault, Fault::Session(_)) => {
                new(ErrorKind::Transient).with_retry_after(PERMISSION).with_reason(reason::SERVICE)
            }
            Meaning::Unsupported => {
                new(ErrorKind::InvalidInput).with_retry_after(USER_ERROR).with_reason(reason::REFUSED)
            }
            Meaning::Denied => new(ErrorKind::Denied).with_retry_after(PERMISSION).with_reason(reason::PERMISSION),
            Meaning::Throttled if error.turn_after().is_some() => new(ErrorKind::Throttled).with_reason(reason::BUDGET),
            Meaning::Throttled => new(ErrorKind::Throttled),
            Meaning::Transient => new(ErrorKind::Transient),
        };
        let cloud = match error.retry_after() {
            Some(after) => cloud.with_retry_after(after),
            None => cloud,
        };
        let id = error.answer().and_then(|answer| answer.request_id.clone());
        let cloud = match id {
            Some(id) => cloud.with_request_id(&*id),
            None => cloud,
        };
        match error.fault {
            Fault::Unanswered(source) => cloud.with_source(Cause(source)),
            Fault::Session(source) => cloud.with_source(Cause(source)),
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
