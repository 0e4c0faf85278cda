//! Writes our own condition of a Service (`--service-conditions`).

use std::time::Duration;

use super::{
    super::{
        ServiceController,
        condition::{ConditionChange, DesiredCondition, is_too_early, says_nothing_about_cloud},
        patches,
        plan::SyncGoal,
    },
    ServiceSync, SyncResult, WAIT_FOR_CHANGE,
};
use crate::{
    error::chain,
    explain::{Cause, cloud_cause},
    k8s::ServiceView,
    provider::{CloudError, ErrorKind, Progress},
    runtime::api::{ApiError, ApiErrorKind},
};

/// The maximum delay before a condition is written again that could not be written.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// Returns true if the API server rejected what was written, so that the same write fails again.
pub(super) fn is_rejection(error: &ApiError) -> bool {
    matches!(error.kind(), ApiErrorKind::Forbidden | ApiErrorKind::Invalid(_))
}

impl ServiceController {
    /// Plans the condition that follows from the outcome of a cloud call, so that it is written
    /// together with the status. If no status is written, [`Self::publish_condition`] writes the
    /// condition.
    pub(super) fn plan_condition_of_outcome(
        &self,
        sync: &mut ServiceSync,
        service: &ServiceView,
        result: &Result<Progress, CloudError>,
    ) {
        if !self.config.conditions {
            return;
        }
        let change = match result {
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => {
                Some(ConditionChange::Remove)
            }
            _ if sync.validation_errors.is_some() => sync.invalid_condition(service),
            Ok(Progress::Done) => Some(sync.served_condition(service)),
            Ok(Progress::Pending { reason, .. }) => {
                Some(sync.condition_of(service, Cause::LoadBalancerPending, reason))
            }
            // It is not known yet whether this lasts.
            Err(error) if says_nothing_about_cloud(cloud_cause(error)) => None,
            Err(error) => Some(sync.condition_of(service, cloud_cause(error), &error.chain())),
        };
        sync.condition_change =
            change.filter(|change| change.is_due(service, sync.state.written_condition));
    }

    /// Writes the condition that the Service should have after the sync, unless it has it. An error
    /// only delays it, because the condition is a report about the sync, not a part of it.
    pub(super) async fn publish_condition(
        &self,
        sync: &mut ServiceSync,
        sync_result: SyncResult,
    ) -> SyncResult {
        if !self.config.conditions {
            return sync_result;
        }
        // Find the change, if there is one.
        let Some(service) = self.service_to_serve(sync) else {
            return sync_result;
        };
        let written = sync.state.written_condition;
        let Some(change) = sync
            .condition_after_sync(&service)
            .filter(|change| change.is_due(&service, written))
        else {
            return sync_result;
        };
        self.write_condition(sync, &service, &change, sync_result)
            .await
    }

    /// Removes our condition from a Service that never had our finalizer and no longer needs a load
    /// balancer.
    pub(super) async fn remove_condition(&self, sync: &mut ServiceSync) -> SyncResult {
        let Some(service) = sync.service.clone() else {
            return SyncResult::Forget;
        };
        let change = ConditionChange::Remove;
        if !change.is_due(&service, sync.state.written_condition) {
            return WAIT_FOR_CHANGE;
        }
        self.write_condition(sync, &service, &change, WAIT_FOR_CHANGE)
            .await
    }

    /// Writes a change of the condition. Returns `sync_result`, with an earlier time if the write
    /// failed and a retry may help.
    async fn write_condition(
        &self,
        sync: &mut ServiceSync,
        service: &ServiceView,
        change: &ConditionChange,
        sync_result: SyncResult,
    ) -> SyncResult {
        let written = sync.state.written_condition;
        let entry = change.patch(service, written, self.ctx.clock.now());
        let patch = patches::with_condition(service, None, entry);
        let result = self
            .ctx
            .api
            .patch_service_status(&service.namespace, &service.name, &patch)
            .await;
        let error = match result {
            Ok(_) => {
                sync.state.written_condition = change.written();
                sync.state.rejected_condition = None;
                return sync_result;
            }
            // The watch reports the deletion.
            Err(error) if error.is_not_found() => return sync_result,
            Err(error) => error,
        };
        // After a rejection, only the next sync tries again. It is logged once.
        let is_rejected = is_rejection(&error);
        let is_known = sync.state.rejected_condition == Some(change.written());
        if !(is_rejected && is_known) {
            tracing::warn!(service = %sync.key, error = chain(&error), "condition of service not written");
        }
        if is_rejected {
            sync.state.rejected_condition = Some(change.written());
            return sync_result;
        }
        let retry_at = self.now() + RETRY_DELAY;
        match sync_result {
            SyncResult::RequeueAt { at, resets_failures } => SyncResult::RequeueAt {
                at: Some(at.map_or(retry_at, |at| at.min(retry_at))),
                resets_failures,
            },
            SyncResult::Forget | SyncResult::RequeueNow => sync_result,
        }
    }
}

impl ServiceSync {
    /// Returns the condition that follows from the sync state; `None` if the sync says nothing
    /// about the load balancer, so that the condition stays.
    fn condition_after_sync(&self, service: &ServiceView) -> Option<ConditionChange> {
        let state = &self.state;
        if self.implemented_elsewhere || state.implemented_elsewhere {
            return Some(ConditionChange::Remove);
        }
        if self.validation_errors.is_some() {
            return self.invalid_condition(service);
        }
        if let Some(attempt) = &state.last_attempt {
            // A problem of the API server with this Service cannot be written to it.
            let is_about_api = matches!(
                attempt.cause,
                Cause::ApiForbidden | Cause::ApiRejected | Cause::ApiUnavailable
            );
            return (!is_about_api && !is_too_early(attempt, service, state.written_condition))
                .then(|| self.condition_of(service, attempt.cause, &attempt.error));
        }
        let applied = state.last_applied?;
        let is_served = self.goal == Some(SyncGoal::Serve(applied.digest))
            && self.backend_fingerprint.is_some()
            && self.backend_fingerprint == applied.backend_fingerprint;
        is_served.then(|| self.served_condition(service))
    }

    fn invalid_condition(&self, service: &ServiceView) -> Option<ConditionChange> {
        let errors = self.validation_errors.as_deref()?;
        Some(self.condition_of(service, Cause::ServiceInvalid, errors))
    }

    fn served_condition(&self, service: &ServiceView) -> ConditionChange {
        match self.backends_cause {
            Some(cause) => self.condition_of(service, cause, cause.meaning()),
            None => ConditionChange::Set(DesiredCondition::served(service)),
        }
    }

    fn condition_of(&self, service: &ServiceView, cause: Cause, text: &str) -> ConditionChange {
        let status = self.state.desired_status.as_ref();
        let has_address = !status.unwrap_or(&service.status).ingress.is_empty();
        let desired = DesiredCondition::of_cause(service, has_address, cause, text);
        ConditionChange::Set(desired)
    }
}
