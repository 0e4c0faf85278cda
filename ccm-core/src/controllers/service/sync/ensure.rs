//! Ensures load balancers, and updates the backends of existing ones.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    super::{
        ServiceController,
        metrics::ServiceOperationKind,
        plan::{Attempt, FailedEnsures, StartEvent},
        sync_failure::{ServiceOperation, ServiceSyncError, host_names},
    },
    DeferralScope, DesiredLoadBalancer, ServiceSync, SyncResult, WAIT_FOR_CHANGE,
};
use crate::provider::{
    BackendKind, Backends, CloudError, ErrorKind, EventType, Progress, ReadMode,
};

/// After this many failures of `ensure` in a row, the backends of the existing load balancer are
/// updated separately: the cause may last for hours, and nodes come and go meanwhile.
const MAX_ENSURE_FAILURES: u32 = 3;
/// Delay before the backends of an invalid Service are updated again after the cloud answered that
/// its load balancer does not exist.
const MISSING_LOAD_BALANCER_RETRY_DELAY: Duration = Duration::from_secs(300);

impl ServiceController {
    /// Applies the desired state to the cloud.
    pub(super) async fn ensure(
        &self,
        sync: &mut ServiceSync,
        desired: &DesiredLoadBalancer,
        read_mode: ReadMode,
        start_event: StartEvent,
    ) -> Result<SyncResult, ServiceSyncError> {
        sync.operation = ServiceOperationKind::Ensure;
        // A load balancer of an earlier process must not lose nodes that the cache lacks.
        let may_exist_from_before_start = !sync.state.has_attempted
            && (desired.service.has_finalizer() || !desired.service.status.ingress.is_empty());
        if may_exist_from_before_start && !self.confirm_nodes_after_start(sync, desired).await? {
            return Ok(SyncResult::RequeueNow);
        }
        if start_event == StartEvent::Emit {
            self.emit_event(
                sync,
                EventType::Normal,
                "EnsuringLoadBalancer",
                "Ensuring load balancer",
            );
            sync.state.announced_attempt = Some(desired.attempt());
            sync.state.completion_event_due = true;
        }
        // The finalizer comes before the first cloud call, so that nothing is left behind if the
        // Service is deleted meanwhile.
        if !self.add_finalizer(sync, &desired.service).await? {
            return Ok(WAIT_FOR_CHANGE);
        }
        sync.state.may_exist_in_cloud = true;
        self.report_no_backends(sync, &desired.spec);
        let outcome = self
            .cloud
            .ensure(self.op_for_service(sync), &desired.spec, read_mode)
            .await?;
        sync.state.applied = None;
        sync.state.has_attempted = true;
        sync.state.deleted = false;
        match &outcome.result {
            Ok(_) => {
                sync.state.failed_ensures = None;
                sync.state.backends_applied_despite_failure = None;
            }
            Err(error) => self.record_failed_ensure(sync, desired, error).await,
        }
        self.apply_outcome(sync, desired, outcome, ServiceOperation::Ensure)
            .await
    }

    /// Counts a failure of `ensure`, and keeps the backends of the existing load balancer up to
    /// date if the failure is likely to last.
    async fn record_failed_ensure(
        &self,
        sync: &mut ServiceSync,
        desired: &DesiredLoadBalancer,
        error: &CloudError,
    ) {
        let digest = desired.digest;
        let count = match sync.state.failed_ensures {
            Some(earlier) if earlier.digest == digest => earlier.count.saturating_add(1),
            _ => 1,
        };
        sync.state.failed_ensures = Some(FailedEnsures { digest, count });
        // If the backends are up to date, an update with other backends is deferred for less time.
        sync.keeps_serving_old_spec =
            sync.state.backends_applied_despite_failure == Some(desired.served_backends());
        // An error for which the cloud names a retry delay does not count as a repeated failure.
        let keeps_failing = error.kind() == ErrorKind::Transient
            && error.retry_after().is_none()
            && count >= MAX_ENSURE_FAILURES
            && !sync.keeps_serving_old_spec;
        let has_address = !desired.service.status.ingress.is_empty();
        if has_address && (keeps_failing || error.kind().is_rejection()) {
            self.update_backends_of_last_spec(sync, desired).await;
        }
    }

    /// Updates the backends of the existing load balancer although the desired change is rejected,
    /// or fails repeatedly: it still serves, and its nodes come and go. The caller reports the
    /// failure of `ensure` and retries both.
    async fn update_backends_of_last_spec(
        &self,
        sync: &mut ServiceSync,
        desired: &DesiredLoadBalancer,
    ) {
        sync.keeps_serving_old_spec = true;
        let outcome = self
            .cloud
            .update_backends(self.op_for_service(sync), &desired.spec)
            .await;
        sync.state.backends_applied_despite_failure = None;
        let Ok(outcome) = outcome else {
            return;
        };
        match outcome.result {
            Ok(Progress::Done) => {
                sync.state.backends_applied_despite_failure = Some(desired.served_backends());
            }
            Ok(Progress::Pending { .. }) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(service = %sync.key, error = error.chain(), "backends not synced of a service whose load balancer cannot be changed");
            }
        }
    }

    /// Applies the desired backends.
    pub(super) async fn update_backends(
        &self,
        sync: &mut ServiceSync,
        desired: &DesiredLoadBalancer,
    ) -> Result<SyncResult, ServiceSyncError> {
        sync.operation = ServiceOperationKind::UpdateBackends;
        // If nothing was applied yet, the load balancer is that of an earlier process.
        if sync.state.applied.is_none() {
            if !self.confirm_nodes_after_start(sync, desired).await? {
                return Ok(SyncResult::RequeueNow);
            }
            // No event for backends that an earlier process may have applied already. Once the
            // Service is valid, everything is compared.
            sync.state.backends_event_at.get_or_insert(self.now());
            sync.state.has_attempted = false;
        }
        self.report_no_backends(sync, &desired.spec);
        let started = Instant::now();
        let outcome = self
            .cloud
            .update_backends(self.op_for_service(sync), &desired.spec)
            .await?;
        self.metrics
            .host_update
            .observe(started.elapsed().as_secs_f64());
        self.metrics.host_updates.inc();
        // Unless the update succeeded, it is unknown which backends were applied.
        if let Some(applied) = &mut sync.state.applied {
            applied.backend_fingerprint = None;
        }
        if let Err(error) = &outcome.result {
            if error.kind() == ErrorKind::NotFound {
                return Ok(self.load_balancer_not_found(sync));
            }
            self.metrics.host_update_errors.inc();
        }
        let hosts = backend_names(&desired.spec.backends);
        self.apply_outcome(sync, desired, outcome, ServiceOperation::Update { hosts })
            .await
    }

    /// Handles an update of backends that found no load balancer: a valid Service is ensured again
    /// as a whole.
    fn load_balancer_not_found(&self, sync: &mut ServiceSync) -> SyncResult {
        sync.state.applied = None;
        let Some(invalid_digest) = sync.state.reported_invalid_digest else {
            return SyncResult::RequeueNow;
        };
        // An invalid Service gets no new load balancer. Try again later, because a cloud may list
        // a load balancer later than it creates it. Once the Service is valid, everything is
        // compared as after a restart; this delay does not apply to that.
        sync.state.has_attempted = false;
        sync.attempt = Some(Attempt::Serve(invalid_digest));
        let now = self.now();
        let until = now + MISSING_LOAD_BALANCER_RETRY_DELAY;
        sync.defer(now, until, DeferralScope::TheseBackends);
        SyncResult::RequeueAt { until: Some(until), resets_failures: true }
    }

    /// Confirms the nodes with the API server before a load balancer from before the start is
    /// changed. Returns whether the desired backends are still those of the cache, which may have
    /// been filled meanwhile.
    async fn confirm_nodes_after_start(
        &self,
        sync: &ServiceSync,
        desired: &DesiredLoadBalancer,
    ) -> Result<bool, ServiceSyncError> {
        let Some(BackendKind::Nodes(requirements)) = &sync.state.backend_kind else {
            return Ok(true);
        };
        self.backend_nodes
            .confirm_nodes_after_start()
            .await
            .map_err(ServiceSyncError::StaleCache)?;
        let cached = self
            .backend_nodes
            .get(requirements)
            .await
            .map_err(ServiceSyncError::StaleCache)?;
        Ok(cached.fingerprint == desired.backend_fingerprint)
    }
}

/// Returns the names of the nodes or EndpointSlices.
fn backend_names(backends: &Backends) -> Vec<Arc<str>> {
    match backends {
        Backends::Nodes(nodes) => host_names(nodes),
        Backends::Endpoints(slices) => slices.iter().map(|slice| slice.name.clone()).collect(),
    }
}
