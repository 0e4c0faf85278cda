//! The error of all provider calls. Its kind determines what the framework does next.

use std::{fmt, sync::Arc, time::Duration};

use crate::write_gate::NotLeader;

/// The kind of an error of a provider call. It determines what the framework does next.
///
/// | kind | node initialisation | address update | node lifecycle | routes | load balancers |
/// |---|---|---|---|---|---|
/// | `NotFound` | retried, the node may have just been created | skipped | **nothing**: only [`InstanceStatus::NotFound`](super::InstanceStatus::NotFound) counts | delete: success | delete: success; update: repeated as `ensure` |
/// | any with `retry_after` | retried at that time | skipped | skipped | retried at that time | retried at that time |
/// | `Throttled` | slows down all calls of the capability | same | same | same | same |
/// | `InvalidInput`, `QuotaExceeded` | event, long back-off | logged | – | event | event, long back-off |
/// | `ImplementedElsewhere` | – | – | – | – | success, status untouched |
/// | `NotImplemented` | event, back-off | skipped | "not shut down" | controller skipped | error |
/// | `NotLeader`, `Canceled` | stops quietly | same | same | same | same |
/// | `Conflict`, `Denied`, `Transient` | back-off | skipped | skipped, never a deletion | back-off | back-off |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The requested object does not exist. For instances use
    /// [`InstanceStatus::NotFound`](super::InstanceStatus::NotFound) instead, and only when absence
    /// is proven.
    NotFound,
    /// The provider does not support this.
    NotImplemented,
    /// Another controller serves this object.
    ImplementedElsewhere,
    /// The cloud throttles the requests.
    Throttled,
    /// A quota of the account is used up.
    QuotaExceeded,
    /// The object was changed concurrently or is busy.
    Conflict,
    /// The request can never succeed as it is, for example because of an invalid annotation or a
    /// malformed provider ID.
    InvalidInput,
    /// The credentials are missing or wrong, or lack a permission.
    Denied,
    /// Leadership can no longer be proven; see [`Op::may_write`](super::Op::may_write).
    NotLeader,
    /// The operation was cancelled or its deadline passed.
    Canceled,
    /// Any error that may go away by itself, such as a timeout, a 5xx status or a lost connection.
    Transient,
}

impl ErrorKind {
    /// Every kind, for tables and tests.
    pub const ALL: [Self; 11] = [
        Self::NotFound,
        Self::NotImplemented,
        Self::ImplementedElsewhere,
        Self::Throttled,
        Self::QuotaExceeded,
        Self::Conflict,
        Self::InvalidInput,
        Self::Denied,
        Self::NotLeader,
        Self::Canceled,
        Self::Transient,
    ];

    /// Returns the kind in snake case, which is the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::NotImplemented => "not_implemented",
            Self::ImplementedElsewhere => "implemented_elsewhere",
            Self::Throttled => "throttled",
            Self::QuotaExceeded => "quota_exceeded",
            Self::Conflict => "conflict",
            Self::InvalidInput => "invalid_input",
            Self::Denied => "denied",
            Self::NotLeader => "not_leader",
            Self::Canceled => "canceled",
            Self::Transient => "transient",
        }
    }

    /// Returns true if the cloud rejected the request. Unlike after an outage, it will reject the
    /// request again until somebody corrects the cause.
    pub fn is_rejection(self) -> bool {
        matches!(self, Self::InvalidInput | Self::QuotaExceeded | Self::Denied | Self::Conflict)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The maximum `retry_after` of an error; see [`CloudError::with_retry_after`].
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// The error of a provider call.
///
/// `Display` prints only the message. The cause is the error's `source`, and clones share it,
/// because one failed batch answers many callers.
#[derive(Clone, Debug)]
pub struct CloudError {
    kind: ErrorKind,
    message: Box<str>,
    retry_after: Option<Duration>,
    reason: Option<&'static str>,
    request_id: Option<Arc<str>>,
    /// True if the provider did not answer but panicked.
    is_panic: bool,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl CloudError {
    /// Creates an error from its kind and a message. The message should say what was attempted on
    /// which object. It must not contain secrets.
    pub fn new(kind: ErrorKind, message: impl Into<Box<str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after: None,
            reason: None,
            request_id: None,
            is_panic: false,
            source: None,
        }
    }

    /// Creates the error of a call in which the provider panicked. It is transient, because the
    /// next call may succeed.
    pub(super) fn of_panic(panic: &str) -> Self {
        Self {
            is_panic: true,
            ..Self::transient(format!("the provider panicked: {panic}"))
        }
    }

    /// Returns true if the provider did not answer but panicked.
    pub(crate) fn is_panic(&self) -> bool {
        self.is_panic
    }

    /// Creates an error of kind [`ErrorKind::Transient`].
    pub fn transient(message: impl Into<Box<str>>) -> Self {
        Self::new(ErrorKind::Transient, message)
    }

    /// Creates an error of kind [`ErrorKind::InvalidInput`].
    pub fn invalid_input(message: impl Into<Box<str>>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// Sets the delay, counted from now, that the cloud requests before the next call. Values of
    /// more than ten minutes are reduced to ten minutes, because they are probably a mistake.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after.min(MAX_RETRY_AFTER));
        self
    }

    /// Sets the event reason, which replaces the default of the operation. It must be in PascalCase
    /// and from a small fixed set.
    #[must_use]
    pub fn with_reason(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Sets the ID that identifies the request in the cloud's own logs.
    #[must_use]
    pub fn with_request_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// Sets the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the delay that the cloud requests before the next call, counted from when the error
    /// was created.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the event reason that the provider set, if any.
    pub fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    /// Returns the ID that identifies the request in the cloud's own logs.
    pub fn request_id(&self) -> Option<&str> {
        self.request_id.as_deref()
    }

    /// Returns the message and all causes in one line, for events and logs.
    pub fn chain(&self) -> String {
        crate::error::chain(self)
    }
}

impl fmt::Display for CloudError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CloudError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_deref()
            .map(|s| s as &(dyn std::error::Error + 'static))
    }
}

impl From<NotLeader> for CloudError {
    fn from(error: NotLeader) -> Self {
        Self::new(ErrorKind::NotLeader, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_prints_each_cause_once() {
        let error = CloudError::transient("describe 2 instances")
            .with_source(std::io::Error::other("connection reset"));
        assert_eq!(error.to_string(), "describe 2 instances");
        assert_eq!(error.chain(), "describe 2 instances: connection reset");
    }

    #[test]
    fn kinds_have_distinct_labels() {
        let labels: std::collections::BTreeSet<_> =
            ErrorKind::ALL.iter().map(|k| k.as_str()).collect();
        assert_eq!(labels.len(), ErrorKind::ALL.len());
    }
}
