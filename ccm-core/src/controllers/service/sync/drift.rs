//! Compares load balancers with the cloud.

use super::{
    super::{
        ServiceController,
        metrics::{ServiceOutcome, SyncKind},
        plan::{DriftCheck, StartEvent},
        sync_error::{ServiceOperation, ServiceSyncError},
    },
    DesiredLoadBalancer, ServiceSync, SyncResult,
};
use crate::provider::{ErrorKind, PlannedChange, ReadMode};

impl ServiceController {
    /// Asks the provider for the differences between the cloud and the desired state, and ensures
    /// the load balancer if there are any.
    pub(super) async fn check_drift(
        &self,
        sync: &mut ServiceSync,
        desired: &DesiredLoadBalancer,
        check: DriftCheck,
    ) -> Result<SyncResult, ServiceSyncError> {
        sync.kind = SyncKind::CheckDrift;
        if check == DriftCheck::First {
            // Do not compare again right after the API server did not confirm the cached nodes.
            self.backend_nodes
                .fail_if_recently_unconfirmed()
                .map_err(ServiceSyncError::StaleCache)?;
        }
        let changes = match self
            .cloud
            .plan(self.op_for_service(sync), &desired.spec)
            .await?
        {
            Ok(changes) => {
                sync.state.implemented_elsewhere = false;
                changes
            }
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => {
                sync.state.implemented_elsewhere = true;
                Vec::new()
            }
            // The provider does not support comparisons. `ensure` is idempotent and does as well.
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                return self
                    .ensure(sync, desired, ReadMode::Fresh, StartEvent::Skip)
                    .await;
            }
            // The cloud would reject every comparison. `ensure` at least keeps the backends up to
            // date.
            Err(error) if error.kind().is_rejection() && check == DriftCheck::First => {
                return self
                    .ensure(sync, desired, ReadMode::Fresh, StartEvent::Emit)
                    .await;
            }
            Err(error) => return Err(ServiceSyncError::cloud(ServiceOperation::Compare, error)),
        };
        if changes.is_empty() {
            self.record_no_drift(sync, desired);
            return Ok(sync.wait_for_drift_check());
        }
        // Log the differences, and let `ensure` repair them.
        let drift = check == DriftCheck::Periodic;
        for PlannedChange { object, operation, reason } in &changes {
            tracing::info!(service = %sync.key, %operation, %object, %reason, drift, "load balancer differs");
        }
        let start_event = match check {
            DriftCheck::First => StartEvent::Emit,
            DriftCheck::Periodic => {
                sync.reason = "drift";
                self.metrics.drift.inc_by(changes.len() as u64);
                StartEvent::Skip
            }
        };
        self.ensure(sync, desired, ReadMode::Fresh, start_event)
            .await
    }

    /// Records that the cloud is in the desired state without a write by this sync.
    fn record_no_drift(&self, sync: &mut ServiceSync, desired: &DesiredLoadBalancer) {
        sync.state.may_exist_in_cloud = true;
        sync.state.has_attempted = true;
        sync.state
            .desired_status
            .get_or_insert_with(|| desired.service.status.clone());
        sync.state.announced_goal = Some(desired.goal());
        self.metrics
            .count(SyncKind::CheckDrift, ServiceOutcome::Done);
        self.mark_in_sync(sync, desired);
    }
}
