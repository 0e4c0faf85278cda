//! Records the attempts that did not succeed, for explanations.

use std::{sync::Arc, time::Duration};

use super::{
    super::{
        ServiceController,
        backend_node_cache::StaleCacheError,
        sync_error::{ServiceOperation, ServiceSyncError},
    },
    ServiceSync,
};
use crate::explain::{AttemptRecord, Cause, api_cause, cloud_cause};

impl ServiceController {
    /// Records that the cloud is still working on the load balancer, until `until`.
    pub(super) fn record_pending(&self, sync: &mut ServiceSync, until: Duration, reason: &str) {
        let attempt = AttemptRecord {
            retry_at: Some(self.started_at + until),
            ..AttemptRecord::now(sync.kind.as_str(), Cause::LoadBalancerPending, reason)
        };
        sync.state.last_attempt = Some(Arc::new(attempt));
    }

    /// Records a failed sync. An error that says nothing about the Service is left out.
    pub(super) fn record_failed_attempt(
        &self,
        sync: &mut ServiceSync,
        error: &ServiceSyncError,
        failures: u32,
        until: Duration,
    ) {
        let Some(cause) = error.cause() else {
            return;
        };
        let retry_at = Some(self.started_at + until);
        // The cloud was not called, so what it last answered says more.
        if matches!(error, ServiceSyncError::Throttled(_))
            && let Some(last) = &sync.state.last_attempt
            && last.cause == Cause::CloudThrottled
        {
            let attempt = AttemptRecord { retry_at, ..(**last).clone() };
            sync.state.last_attempt = Some(Arc::new(attempt));
            return;
        }
        let attempt = AttemptRecord {
            request_id: error.request_id(),
            failures,
            retry_at,
            ..AttemptRecord::now(error.operation(), cause, error.explanation())
        };
        sync.state.last_attempt = Some(Arc::new(attempt));
    }
}

impl ServiceSyncError {
    /// Returns the cause that the error stands for; `None` if it says nothing about the Service.
    pub(in super::super) fn cause(&self) -> Option<Cause> {
        Some(match self {
            Self::Stopping => return None,
            Self::Api { error, .. } if error.is_conflict() => return None,
            Self::Throttled(_) => Cause::CloudThrottled,
            Self::StaleCache(StaleCacheError::MostServicesGone { .. }) => Cause::MostServicesGone,
            Self::StaleCache(_) => Cause::CacheNotConfirmed,
            Self::EndpointSlicesNotListed => Cause::EndpointSlicesNotListed,
            Self::Panicked(_) => Cause::SyncPanicked,
            Self::Cloud { error, .. } => cloud_cause(error),
            Self::Api { error, .. } => api_cause(error),
        })
    }

    fn request_id(&self) -> Option<Arc<str>> {
        match self {
            Self::Cloud { error, .. } => error.request_id().map(Arc::from),
            _ => None,
        }
    }

    /// Returns the failed operation in words.
    fn operation(&self) -> &'static str {
        let (Self::Cloud { operation, .. } | Self::Api { operation, .. }) = self else {
            return "sync";
        };
        match operation {
            ServiceOperation::AddFinalizer => "add the finalizer",
            ServiceOperation::Ensure => "ensure the load balancer",
            ServiceOperation::Update { .. } => "update the backends",
            ServiceOperation::Compare => "compare the load balancer",
            ServiceOperation::Delete { .. } => "delete the load balancer",
            ServiceOperation::Retain => "keep the load balancer",
            ServiceOperation::RemoveFinalizer => "remove the finalizer",
            ServiceOperation::Publish => "write the status",
        }
    }

    /// Returns the text of the error.
    fn explanation(&self) -> String {
        match self {
            Self::Throttled(_) => "the cloud throttles the requests of this process".to_owned(),
            _ => self.log_message().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{CloudError, ErrorKind};

    #[test]
    fn each_error_of_a_sync_has_its_cause() {
        let cloud =
            |kind| ServiceSyncError::cloud(ServiceOperation::Ensure, CloudError::new(kind, "no"));
        let gone = StaleCacheError::MostServicesGone { missing: 3, all: 4 };
        for (error, cause) in [
            (ServiceSyncError::Stopping, None),
            (cloud(ErrorKind::NotLeader), None),
            (ServiceSyncError::Throttled(Duration::ZERO), Some(Cause::CloudThrottled)),
            (ServiceSyncError::StaleCache(gone), Some(Cause::MostServicesGone)),
            (
                ServiceSyncError::StaleCache(StaleCacheError::BackendsDiffer),
                Some(Cause::CacheNotConfirmed),
            ),
            (ServiceSyncError::EndpointSlicesNotListed, Some(Cause::EndpointSlicesNotListed)),
            (ServiceSyncError::Panicked("no".to_owned()), Some(Cause::SyncPanicked)),
            (cloud(ErrorKind::QuotaExceeded), Some(Cause::QuotaExceeded)),
            (cloud(ErrorKind::Denied), Some(Cause::CloudAccessDenied)),
            (cloud(ErrorKind::Transient), Some(Cause::CloudUnavailable)),
        ] {
            assert_eq!(error.cause(), cause, "{error:?}");
            assert!(cause.is_none() || !error.explanation().is_empty(), "{error:?}");
            assert!(error.event().is_none() || cause.is_some(), "an event without a next step");
        }
    }
}
