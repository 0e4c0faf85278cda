//! Faults, which make calls of the provider fail.

use std::time::Duration;

use ccm_core::provider::{CloudError, ErrorKind};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{FieldError, Operation};

/// Delay of the error `retry_after` if `retryAfterSeconds` is not given.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum duration, one year. Much longer durations could not be added to a point in time.
const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

/// One entry of `PUT /v1/faults`, as given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultSpec {
    /// Operation that fails; `any` for all operations, `ensure_load_balancer` for creating and
    /// modifying load balancers. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// Error with which the operation fails. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<FaultError>,
    /// Delay in seconds after which the caller should retry; can be combined with any error.
    /// Default: 1 for `retry_after`, none for other errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<f64>,
    /// Number of failures, at least 1. Default: until the faults are replaced. For
    /// `describe_instances` each queried instance counts, for route changes each route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// Exact name of the object whose calls fail: the node, the Service (with or without
    /// namespace), or for routes the route or its node. Default: all objects.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// Seconds from now until the fault starts. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_seconds: Option<f64>,
    /// Duration of the fault in seconds. Default: until the faults are replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_seconds: Option<f64>,
    /// Whether the call has its effect and only its answer is lost. Default: `false`, which means
    /// that the call has no effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answer_lost: bool,
}

/// The error of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultError {
    /// The object does not exist. For `describe_instances`, this is proof that the instance does
    /// not exist.
    NotFound,
    /// The rate limit is exceeded.
    Throttled,
    /// The object is busy. The error contains the delay after which to retry.
    RetryAfter,
    /// The request is not allowed.
    PermissionDenied,
    /// The request can never succeed.
    Invalid,
    /// A transient error.
    Transient,
    /// The quota is used up.
    QuotaExceeded,
    /// The object is busy with another change.
    Conflict,
}

impl FaultError {
    /// Every error.
    pub const ALL: [Self; 8] = [
        Self::NotFound,
        Self::Throttled,
        Self::RetryAfter,
        Self::PermissionDenied,
        Self::Invalid,
        Self::Transient,
        Self::QuotaExceeded,
        Self::Conflict,
    ];

    /// Returns the kind of error that the provider gets. `retry_after` is transient, because it
    /// delays only one object, while `throttled` slows down the whole capability.
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::NotFound => ErrorKind::NotFound,
            Self::Throttled => ErrorKind::Throttled,
            Self::PermissionDenied => ErrorKind::Denied,
            Self::Invalid => ErrorKind::InvalidInput,
            Self::QuotaExceeded => ErrorKind::QuotaExceeded,
            Self::Conflict => ErrorKind::Conflict,
            Self::RetryAfter | Self::Transient => ErrorKind::Transient,
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::Throttled => "rate limit exceeded",
            Self::RetryAfter => "busy, try again later",
            Self::PermissionDenied => "permission denied",
            Self::Invalid => "invalid request",
            Self::Transient => "temporarily unavailable",
            Self::QuotaExceeded => "quota exceeded",
            Self::Conflict => "busy with another change",
        }
    }
}

/// A validated fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    operation: Operation,
    error: FaultError,
    retry_after: Option<Duration>,
    /// Number of times that the fault can still fire; `None` for no limit.
    remaining: Option<u64>,
    object: Option<String>,
    /// Time from setting the faults until this one starts.
    starts_after: Duration,
    /// Duration of the fault; `None` for no limit.
    lasts_for: Option<Duration>,
    answer_lost: bool,
}

impl Fault {
    /// Validates one entry.
    ///
    /// # Errors
    /// Returns an error if a value is missing or invalid; the error names the key.
    pub fn new(spec: FaultSpec) -> Result<Self, FieldError> {
        let operation = spec
            .operation
            .ok_or_else(|| FieldError::new("operation", "is required"))?;
        let error = spec
            .error
            .ok_or_else(|| FieldError::new("error", "is required"))?;
        if spec.times == Some(0) {
            return Err(FieldError::new("times", "must be at least 1; leave it out for always"));
        }
        if operation == Operation::Any && error == FaultError::NotFound {
            let message = "not_found would prove that no instance exists; name the operation, or use another error";
            return Err(FieldError::new("error", message));
        }
        let object = spec.object.filter(|name| !name.is_empty());
        if object.is_some() && !operation.has_named_objects() {
            return Err(FieldError::new(
                "match",
                format!("{} is not about a named object", operation.as_str()),
            ));
        }
        let retry_after = match parse_seconds("retryAfterSeconds", spec.retry_after_seconds)? {
            None if error == FaultError::RetryAfter => Some(DEFAULT_RETRY_AFTER),
            given => given,
        };
        let starts_after = parse_seconds("afterSeconds", spec.after_seconds)?.unwrap_or_default();
        let lasts_for = parse_seconds("forSeconds", spec.for_seconds)?;
        let answer_lost = spec.answer_lost;
        Ok(Self {
            operation,
            error,
            retry_after,
            remaining: spec.times,
            object,
            starts_after,
            lasts_for,
            answer_lost,
        })
    }
}

impl Fault {
    /// Returns true if the fault fires for a call about an object with these names. `age` is the
    /// time since the faults were set.
    fn matches(&self, operation: Operation, names: &[&str], age: Duration) -> bool {
        self.operation.includes(operation)
            && self.remaining != Some(0)
            && self.matches_object(names)
            && self.is_active(age)
    }

    /// Returns the operation that fails.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns what fails, and how.
    pub fn describe(&self) -> String {
        let object = match &self.object {
            Some(object) => format!(" of {object}"),
            None => String::new(),
        };
        format!("{}{object} fails: {}", self.operation.as_str(), self.error.description())
    }

    fn matches_object(&self, names: &[&str]) -> bool {
        match &self.object {
            Some(object) => names.contains(&object.as_str()),
            None => true,
        }
    }

    fn is_active(&self, age: Duration) -> bool {
        let Some(active_for) = age.checked_sub(self.starts_after) else {
            return false;
        };
        match self.lasts_for {
            Some(lasts_for) => active_for < lasts_for,
            None => true,
        }
    }
}

/// Converts seconds to a duration. Fails for negative, infinite and too large numbers.
fn parse_seconds(field: &str, seconds: Option<f64>) -> Result<Option<Duration>, FieldError> {
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if duration > MAX_DURATION => Err(FieldError::new(field, "is too long")),
        Ok(duration) => Ok(Some(duration)),
        Err(error) => Err(FieldError::new(field, error.to_string())),
    }
}

/// The current faults.
#[derive(Debug)]
pub(super) struct Faults {
    faults: Vec<Fault>,
    /// Time at which the faults were set.
    set_at: Instant,
}

impl Default for Faults {
    fn default() -> Self {
        Self { faults: Vec::new(), set_at: Instant::now() }
    }
}

/// A fault that fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FiredFault {
    pub(super) error: FaultError,
    retry_after: Option<Duration>,
    answer_lost: bool,
}

impl Faults {
    pub(super) fn replace(&mut self, faults: Vec<Fault>) {
        *self = Self { faults, set_at: Instant::now() };
    }

    /// Returns the faults that can still fire.
    pub(super) fn active(&self) -> Vec<Fault> {
        let age = self.set_at.elapsed();
        let can_fire = |fault: &&Fault| fault.remaining != Some(0) && fault.is_active(age);
        self.faults.iter().filter(can_fire).cloned().collect()
    }

    /// Fires the first fault that matches this call, and counts it. `names` are the names of the
    /// call's object.
    pub(super) fn fire(&mut self, operation: Operation, names: &[&str]) -> Option<FiredFault> {
        let age = self.set_at.elapsed();
        let fault = self
            .faults
            .iter_mut()
            .find(|fault| fault.matches(operation, names, age))?;
        if let Some(remaining) = &mut fault.remaining {
            *remaining -= 1;
        }
        Some(FiredFault {
            error: fault.error,
            retry_after: fault.retry_after,
            answer_lost: fault.answer_lost,
        })
    }
}

impl FiredFault {
    /// Returns true if the call has its effect although it fails.
    pub(super) fn is_answer_lost(self) -> bool {
        self.answer_lost
    }

    /// Converts the fault to the error of a call.
    pub(super) fn into_error(self, operation: Operation, names: &[&str]) -> CloudError {
        let mut message = operation.as_str().replace('_', " ");
        if let Some(name) = names.first() {
            message = format!("{message} {name}");
        }
        let error =
            CloudError::new(self.error.kind(), format!("{message}: {}", self.error.description()));
        match self.retry_after {
            Some(after) => error.with_retry_after(after),
            None => error,
        }
    }
}
