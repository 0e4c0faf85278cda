//! Compares load balancers with the cloud.

use super::{
    super::{
        ServiceController,
        metrics::{ServiceOperationKind, ServiceOutcome},
        plan::{DriftCheck, StartEvent},
        sync_failure::{ServiceOperation, ServiceSyncError},
    },
    DesiredLoadBalancer, ServiceSync, SyncResult,
};
use crate::provider::{ErrorKind, ReadMode};

impl ServiceController {
    /// Asks the provider what differs. Without differences the cloud is in the desired state, and
    /// nothing is written to it.
    pub(super) async fn check_drift(
        &self,
        sync: &mut ServiceSync,
        desired: &DesiredLoadBalancer,
        check: DriftCheck,
    ) -> Result<SyncResult, ServiceSyncError> {
        sync.operation = ServiceOperationKind::CheckDrift;
        if check == DriftCheck::AfterStart {
            // Do not compare again right after the nodes could not be confirmed.
            self.backend_nodes
                .fail_if_recently_unconfirmed()
                .map_err(ServiceSyncError::StaleCache)?;
        }
        let changes = match self
            .cloud
            .plan(self.op_for_service(sync), &desired.spec)
            .await?
        {
            Ok(changes) => changes,
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => Vec::new(),
            // The provider cannot compare: ensure instead, which is idempotent.
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                return self
                    .ensure(sync, desired, ReadMode::Fresh, StartEvent::Skip)
                    .await;
            }
            // The comparison would be rejected indefinitely. `ensure` also keeps the backends up to
            // date.
            Err(error) if error.kind().is_rejection() && check == DriftCheck::AfterStart => {
                return self
                    .ensure(sync, desired, ReadMode::Fresh, StartEvent::Emit)
                    .await;
            }
            Err(error) => return Err(ServiceSyncError::cloud(ServiceOperation::Compare, error)),
        };
        if changes.is_empty() {
            return Ok(self.no_drift(sync, desired));
        }
        let drift = check == DriftCheck::Periodic;
        for change in &changes {
            let operation = &change.operation;
            let object = &change.object;
            let why = &change.reason;
            tracing::info!(service = %sync.key, %operation, %object, %why, drift, "load balancer differs");
        }
        let start_event = match check {
            DriftCheck::AfterStart => StartEvent::Emit,
            DriftCheck::Periodic => {
                sync.reason = "drift";
                self.metrics.drift.inc_by(changes.len() as u64);
                StartEvent::Skip
            }
        };
        self.ensure(sync, desired, ReadMode::Fresh, start_event)
            .await
    }

    /// Records that the cloud was found in the desired state.
    fn no_drift(&self, sync: &mut ServiceSync, desired: &DesiredLoadBalancer) -> SyncResult {
        sync.state.may_exist_in_cloud = true;
        sync.state.has_attempted = true;
        sync.state
            .desired_status
            .get_or_insert_with(|| desired.service.status.clone());
        sync.state.announced_attempt = Some(desired.attempt());
        self.metrics
            .count(ServiceOperationKind::CheckDrift, ServiceOutcome::Done);
        self.mark_in_sync(sync, desired)
    }
}
