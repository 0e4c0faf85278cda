use std::time::Duration;

use ccm_core::provider::{CloudError, ErrorKind};
use serde::{Deserialize, Serialize};

use super::{FieldError, Operation};

/// Pause that `retry_after` asks for when `retryAfterSeconds` is left out.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// One entry of `PUT /v1/faults`, as written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultSpec {
    /// Operation that fails. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// How it fails. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<FaultError>,
    /// When the cloud wants to be asked again; goes with any error. Default 1 for `retry_after`, none for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<f64>,
    /// How often it fails, at least 1. Default: until the faults are replaced. For `describe_instances` entries are
    /// counted, for routes single routes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// Exact name, without namespace, of the object whose calls fail: node, Service; for routes the route or its node.
    /// Default: all.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

/// How a fault fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultError {
    /// Not found. For `describe_instances`: proved absent.
    NotFound,
    /// Called too often.
    Throttled,
    /// Busy, and says when to come again.
    RetryAfter,
    /// Not allowed.
    PermissionDenied,
    /// The request can never succeed.
    Invalid,
    /// May go away by itself.
    Transient,
}

impl FaultError {
    /// Every error.
    pub const ALL: [Self; 6] =
        [Self::NotFound, Self::Throttled, Self::RetryAfter, Self::PermissionDenied, Self::Invalid, Self::Transient];

    /// Returns the kind that a provider answers. `retry_after` is transient: it delays the one object, where
    /// `throttled` slows the whole capability down.
    pub fn kind(self) -> ErrorKind {
        match self {
            Self::NotFound => ErrorKind::NotFound,
            Self::Throttled => ErrorKind::Throttled,
            Self::PermissionDenied => ErrorKind::Denied,
            Self::Invalid => ErrorKind::InvalidInput,
            Self::RetryAfter | Self::Transient => ErrorKind::Transient,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::NotFound => "not found",
            Self::Throttled => "rate limit exceeded",
            Self::RetryAfter => "busy, try again later",
            Self::PermissionDenied => "permission denied",
            Self::Invalid => "invalid request",
            Self::Transient => "temporarily unavailable",
        }
    }
}

/// A checked fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    operation: Operation,
    error: FaultError,
    retry_after: Option<Duration>,
    /// How often it still fires; `None` for ever.
    left: Option<u64>,
    object: Option<String>,
}

impl Fault {
    /// Checks one entry.
    ///
    /// # Errors
    /// Names the key that is missing or wrong.
    pub fn new(spec: FaultSpec) -> Result<Self, FieldError> {
        let operation = spec.operation.ok_or_else(|| FieldError::new("operation", "is required"))?;
        let error = spec.error.ok_or_else(|| FieldError::new("error", "is required"))?;
        if spec.times == Some(0) {
            return Err(FieldError::new("times", "must be at least 1; leave it out for always"));
        }
        let object = spec.object.filter(|name| !name.is_empty());
        if object.is_some() && !operation.names_objects() {
            return Err(FieldError::new("match", format!("{} is not about a named object", operation.as_str())));
        }
        let retry_after = match spec.retry_after_seconds {
            // A negative, infinite or absurd number is refused by the conversion.
            Some(seconds) => Some(
                Duration::try_from_secs_f64(seconds)
                    .map_err(|error| FieldError::new("retryAfterSeconds", error.to_string()))?,
            ),
            None if error == FaultError::RetryAfter => Some(DEFAULT_RETRY_AFTER),
            None => None,
        };
        Ok(Self { operation, error, retry_after, left: spec.times, object })
    }
}

/// The faults in force.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

/// A fault that fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fired {
    pub(super) error: FaultError,
    retry_after: Option<Duration>,
}

impl Faults {
    pub(super) fn replace(&mut self, faults: Vec<Fault>) {
        self.0 = faults;
    }

    /// Uses up one firing of the first fault that concerns this call; `names` are what the object is called.
    pub(super) fn fire(&mut self, operation: Operation, names: &[&str]) -> Option<Fired> {
        let concerns = |fault: &&mut Fault| {
            fault.operation == operation
                && fault.left != Some(0)
                && fault.object.as_deref().is_none_or(|object| names.contains(&object))
        };
        let fault = self.0.iter_mut().find(concerns)?;
        if let Some(left) = &mut fault.left {
            *left -= 1;
        }
        Some(Fired { error: fault.error, retry_after: fault.retry_after })
    }

    /// Fails if a fault concerns this call.
    pub(super) fn check(&mut self, operation: Operation, names: &[&str]) -> Result<(), CloudError> {
        match self.fire(operation, names) {
            Some(fired) => Err(fired.into_error(operation, names)),
            None => Ok(()),
        }
    }
}

impl Fired {
    pub(super) fn into_error(self, operation: Operation, names: &[&str]) -> CloudError {
        let mut message = operation.as_str().replace('_', " ");
        if let Some(name) = names.first() {
            message = format!("{message} {name}");
        }
        let error = CloudError::new(self.error.kind(), format!("{message}: {}", self.error.words()));
        match self.retry_after {
            Some(after) => error.with_retry_after(after),
            None => error,
        }
    }
}
