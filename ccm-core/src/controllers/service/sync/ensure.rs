//! Ensures load balancers, and updates the backends of existing ones.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    super::{
        ServiceController,
        metrics::SyncKind,
        plan::{FailedEnsures, StartEvent, SyncGoal},
        sync_error::{ServiceOperation, ServiceSyncError, host_names},
    },
    DeferralScope, DesiredLoadBalancer, ServiceSync, SyncResult, WAIT_FOR_CHANGE,
};
use crate::provider::{
    BackendKind, Backends, CloudError, ErrorKind, EventType, Progress, ReadMode,
};

/// The number of consecutive failures of `ensure` after which the backends of the existing load
/// balancer are updated separately. The cause may last for hours, while nodes come and go.
const MAX_ENSURE_FAILURES: u32 = 3;
/// The delay before the backends of an invalid Service are updated again if its load balancer was
/// not found.
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
        sync.kind = SyncKind::Ensure;
        // A load balancer from before the start must not lose nodes that the cache lacks.
        let may_exist_from_before_start = !sync.state.has_attempted
            && (desired.service.has_finalizer() || !desired.service.status.ingress.is_empty());
        if may_exist_from_before_start {
            let backends_are_current = self.confirm_nodes_after_start(sync, desired).await?;
            if !backends_are_current {
                return Ok(SyncResult::RequeueNow);
            }
        }
        // Announce the goal, unless that was done before.
        if start_event == StartEvent::Emit {
            self.emit_event(
                sync,
                EventType::Normal,
                "EnsuringLoadBalancer",
                "Ensuring load balancer",
            );
            sync.state.announced_goal = Some(desired.goal());
            sync.state.completion_event_due = true;
        }
        // Add the finalizer before the first cloud call, so that no cloud object is left behind if
        // the Service is deleted meanwhile.
        let needs_load_balancer = self.add_finalizer(sync, &desired.service).await?;
        if !needs_load_balancer {
            return Ok(WAIT_FOR_CHANGE);
        }
        sync.state.may_exist_in_cloud = true;
        // Apply the desired state.
        self.report_no_backends(sync, &desired.spec);
        let outcome = self
            .cloud
            .ensure(self.op_for_service(sync), &desired.spec, read_mode)
            .await?;
        sync.state.last_applied = None;
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

    /// Counts a failure of `ensure`, and updates the backends of the existing load balancer if the
    /// failure is likely to last.
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
        sync.keeps_serving_old_spec =
            sync.state.backends_applied_despite_failure == Some(desired.served_backends());
        // If the cloud says when to retry, the failure is not likely to last.
        let keeps_failing = error.kind() == ErrorKind::Transient
            && error.retry_after().is_none()
            && count >= MAX_ENSURE_FAILURES
            && !sync.keeps_serving_old_spec;
        let has_address = !desired.service.status.ingress.is_empty();
        if has_address && (keeps_failing || error.kind().is_rejection()) {
            self.update_backends_of_last_spec(sync, desired).await;
        }
    }

    /// Updates the backends of a load balancer whose `ensure` is rejected or fails repeatedly. It
    /// still serves its last spec, while nodes come and go.
    ///
    /// Errors are only logged, because the caller reports the failure of `ensure`, and the next
    /// sync retries both.
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
        sync.kind = SyncKind::UpdateBackends;
        // If this process applied nothing yet, the load balancer is from before the start.
        if sync.state.last_applied.is_none() {
            let backends_are_current = self.confirm_nodes_after_start(sync, desired).await?;
            if !backends_are_current {
                return Ok(SyncResult::RequeueNow);
            }
            // An earlier process may have applied these backends, so emit no event about them.
            sync.state.backends_event_at.get_or_insert(self.now());
            // Have everything compared once the Service is valid.
            sync.state.has_attempted = false;
        }
        self.report_no_backends(sync, &desired.spec);
        // Update the backends, and measure it as upstream does.
        let started = Instant::now();
        let outcome = self
            .cloud
            .update_backends(self.op_for_service(sync), &desired.spec)
            .await?;
        self.metrics
            .host_update
            .observe(started.elapsed().as_secs_f64());
        self.metrics.host_updates.inc();
        // Until a success is recorded below, it is unknown which backends were applied.
        if let Some(applied) = &mut sync.state.last_applied {
            applied.backend_fingerprint = None;
        }
        if let Err(error) = &outcome.result {
            if error.kind() == ErrorKind::NotFound {
                return Ok(self.handle_missing_load_balancer(sync));
            }
            self.metrics.host_update_errors.inc();
        }
        let hosts = backend_names(&desired.spec.backends);
        self.apply_outcome(sync, desired, outcome, ServiceOperation::Update { hosts })
            .await
    }

    /// Handles an update of backends that found no load balancer. A valid Service gets a new one at
    /// once.
    fn handle_missing_load_balancer(&self, sync: &mut ServiceSync) -> SyncResult {
        sync.state.last_applied = None;
        let Some(invalid_digest) = sync.state.reported_invalid_digest else {
            return SyncResult::RequeueNow;
        };
        // An invalid Service gets no new load balancer, but a cloud may take a while to list one
        // that was just created, so retry later. A Service that becomes valid has another goal, for
        // which this delay does not count; it is then compared as after a restart.
        sync.state.has_attempted = false;
        sync.goal = Some(SyncGoal::Serve(invalid_digest));
        let now = self.now();
        let until = now + MISSING_LOAD_BALANCER_RETRY_DELAY;
        sync.defer(now, until, DeferralScope::TheseBackends);
        SyncResult::RequeueAt { at: Some(until), resets_failures: true }
    }

    /// Compares the cached nodes with the API server before a load balancer from before the start
    /// is changed. Returns false if the cache has changed since the desired backends were selected,
    /// so that they must be selected again.
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
