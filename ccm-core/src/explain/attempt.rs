//! Records of the last attempt at an object, if it did not succeed.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Attempt, Cause, ExplainTime};
use crate::{
    error::chain,
    provider::{CloudError, ErrorKind},
    runtime::api::{ApiError, ApiErrorKind},
};

/// The last attempt at an object, which failed or is not finished.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttemptRecord {
    pub(crate) at: Instant,
    /// What was attempted, such as `initialize`.
    pub(crate) operation: &'static str,
    pub(crate) cause: Cause,
    pub(crate) error: Box<str>,
    /// The ID of the request in the cloud's own logs.
    pub(crate) request_id: Option<Arc<str>>,
    /// The number of failures in a row; 0 for an attempt that is only not finished.
    pub(crate) failures: u32,
    pub(crate) retry_at: Option<Instant>,
}

impl AttemptRecord {
    /// Creates the record of an attempt that ended now.
    pub(crate) fn now(operation: &'static str, cause: Cause, error: impl Into<Box<str>>) -> Self {
        Self {
            at: Instant::now(),
            operation,
            cause,
            error: error.into(),
            request_id: None,
            failures: 0,
            retry_at: None,
        }
    }

    /// Returns the attempt as an explanation shows it.
    pub(crate) fn explain(&self, controller: &'static str, time: ExplainTime) -> Attempt {
        Attempt {
            controller,
            operation: self.operation,
            at: time.at(self.at),
            error: self.error.to_string(),
            request_id: self.request_id.as_deref().map(str::to_owned),
            failures: self.failures,
            retry_at: self.retry_at.map(|at| time.at(at)),
        }
    }
}

/// The records of the objects whose last attempt did not succeed, by key. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttemptLog(Arc<Mutex<HashMap<Arc<str>, AttemptRecord>>>);

impl AttemptLog {
    /// Records an attempt that did not succeed.
    pub(crate) fn record(&self, key: &Arc<str>, attempt: AttemptRecord) {
        self.0.lock().insert(key.clone(), attempt);
    }

    /// Removes the record of an object after a success, or because the object no longer exists.
    pub(crate) fn clear(&self, key: &str) {
        self.0.lock().remove(key);
    }

    /// Removes the records of the objects for which `keep` returns false.
    pub(crate) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.0.lock().retain(|key, _| keep(key));
    }

    /// Returns the record of an object.
    pub(crate) fn get(&self, key: &str) -> Option<AttemptRecord> {
        self.0.lock().get(key).cloned()
    }
}

/// Returns the cause that an error of the cloud stands for.
pub(crate) fn cloud_cause(error: &CloudError) -> Cause {
    if error.is_panic() {
        return Cause::SyncPanicked;
    }
    match error.kind() {
        ErrorKind::Denied => Cause::CloudAccessDenied,
        ErrorKind::Throttled => Cause::CloudThrottled,
        ErrorKind::QuotaExceeded => Cause::QuotaExceeded,
        ErrorKind::InvalidInput => Cause::CloudRejectedInput,
        ErrorKind::Conflict => Cause::CloudConflict,
        ErrorKind::NotFound => Cause::CloudObjectNotFound,
        ErrorKind::NotImplemented => Cause::CloudNotImplemented,
        ErrorKind::ImplementedElsewhere => Cause::ImplementedElsewhere,
        ErrorKind::Transient | ErrorKind::NotLeader | ErrorKind::Canceled => {
            Cause::CloudUnavailable
        }
    }
}

/// Returns the cause that an error of the API server stands for.
pub(crate) fn api_cause(error: &ApiError) -> Cause {
    match error.kind() {
        ApiErrorKind::Forbidden | ApiErrorKind::Unauthorized => Cause::ApiForbidden,
        ApiErrorKind::Invalid(_) => Cause::ApiRejected,
        _ => Cause::ApiUnavailable,
    }
}

/// Creates the record of a failed request to the API server.
pub(crate) fn api_attempt(operation: &'static str, error: &ApiError) -> AttemptRecord {
    AttemptRecord::now(operation, api_cause(error), chain(error))
}

/// Creates the record of a failed call of the cloud.
pub(crate) fn cloud_attempt(operation: &'static str, error: &CloudError) -> AttemptRecord {
    AttemptRecord {
        request_id: error.request_id().map(Arc::from),
        ..AttemptRecord::now(operation, cloud_cause(error), error.chain())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_error_of_the_cloud_has_a_cause_of_its_own_or_is_an_outage() {
        let mut causes: Vec<_> = ErrorKind::ALL
            .iter()
            .map(|kind| cloud_cause(&CloudError::new(*kind, "no")))
            .collect();
        causes.sort();
        causes.dedup();
        // Transient, NotLeader and Canceled share one.
        assert_eq!(causes.len(), ErrorKind::ALL.len() - 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_request_id_of_the_cloud_is_kept() {
        let error = CloudError::new(ErrorKind::Denied, "no").with_request_id("r-1");
        let attempt = cloud_attempt("ensure", &error);
        assert_eq!(attempt.request_id.as_deref(), Some("r-1"));
        assert_eq!((attempt.cause, &*attempt.error), (Cause::CloudAccessDenied, "no"));
    }
}
