//! One sync of one Service: observe, plan, apply.

mod delete;
mod desired;
mod drift;
mod dry_run;
mod ensure;
mod events;
mod service_writes;

use std::{sync::Arc, time::Duration};

use self::desired::{DesiredLoadBalancer, InterpretedService};
use super::{
    ServiceController,
    metrics::{ServiceOperationKind, ServiceOutcome},
    plan::{
        AppliedState, Attempt, DeferredAttempt, DeferredBackends, PlanInput, ServeAction,
        ServedState, ServiceAction, ServiceSyncState, plan,
    },
    provider_calls::Throttled,
    sync_failure::{ServiceOperation, ServiceSyncError},
};
use crate::{
    config::controller_names as names,
    error::caught,
    k8s::ServiceView,
    provider::{BackendKind, ErrorKind, LbOutcome, Op, Progress},
    runtime::events::ObjectRef,
    telemetry::controller_metrics::{ReconcileOutcome as Reconciled, record_reason},
};

/// Shortest and longest delay that a provider can request. A provider that names none must not
/// cause a busy loop.
const PENDING_DELAY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(600);

/// What happens to a key after a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncResult {
    /// Drop the sync state.
    Forget,
    /// Sync again at `until`, or when something changes. `resets_failures`: earlier failures no
    /// longer count.
    RequeueAt { until: Option<Duration>, resets_failures: bool },
    /// Sync again at once.
    RequeueNow,
}

const WAIT_FOR_CHANGE: SyncResult = SyncResult::RequeueAt { until: None, resets_failures: true };

/// One sync: the Service as observed, its sync state, and what is being done.
struct ServiceSync {
    key: Arc<str>,
    service: Option<Arc<ServiceView>>,
    state: ServiceSyncState,
    /// What is attempted; the back-off applies to this.
    attempt: Option<Attempt>,
    /// Fingerprint of the backends that it is attempted with.
    fingerprint: Option<u64>,
    /// True if `ensure` failed and the existing load balancer gets the desired backends separately.
    keeps_serving_old_spec: bool,
    operation: ServiceOperationKind,
    /// Reason for the action, recorded with each change in the cloud.
    reason: &'static str,
    reconcile_outcome: Reconciled,
}

/// Which backends the reason to defer an attempt concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeferralScope {
    /// Other backends would fail just as well.
    AllBackends,
    /// Other backends may succeed.
    TheseBackends,
}

impl ServiceController {
    /// Syncs one Service. Returns its new sync state and what happens to its key.
    pub(super) async fn sync(
        &self,
        key: &Arc<str>,
        state: ServiceSyncState,
    ) -> (ServiceSyncState, SyncResult) {
        let mut sync = ServiceSync::new(key, self.services.get(key), state);
        let work = async move {
            let result = match caught(Box::pin(self.reconcile(&mut sync))).await {
                Ok(result) => result,
                Err(panic) => {
                    // It is unknown how far the sync came before it panicked.
                    sync.state.applied = None;
                    Err(ServiceSyncError::Panicked(panic))
                }
            };
            let sync_result = match result {
                Ok(sync_result) => sync_result,
                Err(error) => self.handle_error(&mut sync, &error),
            };
            (sync.reconcile_outcome, (sync.state, sync_result))
        };
        self.ctx
            .controller_metrics
            .reconcile(names::SERVICE_LB, key, work)
            .await
    }

    async fn reconcile(&self, sync: &mut ServiceSync) -> Result<SyncResult, ServiceSyncError> {
        // Drop the state of an earlier Service of this name, unless that may still have a load
        // balancer.
        if let Some(service) = &sync.service
            && sync.state.uid != service.uid
            && !sync.state.may_exist_in_cloud
        {
            sync.state =
                ServiceSyncState { uid: service.uid.clone(), ..ServiceSyncState::default() };
        }
        let mut interpreted = None;
        if let Some(service) = self.service_to_serve(sync) {
            self.report_notices(sync, &service);
            interpreted = Some(self.interpret(sync, service).await?);
        }
        let action = plan(PlanInput {
            service: sync.service.as_deref(),
            state: &sync.state,
            fields: &self.fields,
            desired: interpreted
                .as_ref()
                .map(|interpreted| &interpreted.desired_state),
            node_sync_scheduled: matches!(sync.state.backend_kind, Some(BackendKind::Nodes(_)))
                && self.node_sync_scheduled(&sync.key),
            now: self.now(),
        });
        tracing::trace!(service = %sync.key, step = ?action, "decided");
        sync.reason = action.reason(&sync.state);
        if !sync.reason.is_empty() {
            record_reason(sync.reason);
        }
        self.apply(sync, action, interpreted).await
    }

    async fn apply(
        &self,
        sync: &mut ServiceSync,
        action: ServiceAction,
        interpreted: Option<InterpretedService>,
    ) -> Result<SyncResult, ServiceSyncError> {
        match action {
            ServiceAction::Forget => Ok(SyncResult::Forget),
            ServiceAction::Ignore => {
                sync.state.other_controller = interpreted.is_none();
                Ok(WAIT_FOR_CHANGE)
            }
            ServiceAction::Wait { until } => {
                // Earlier failures count as long as the attempt that failed is deferred.
                let is_deferred = sync
                    .state
                    .deferred
                    .is_some_and(|deferred| deferred.until > self.now());
                Ok(SyncResult::RequeueAt { until, resets_failures: !is_deferred })
            }
            ServiceAction::ReportInvalid { errors } => Ok(self.report_invalid(sync, &errors)),
            ServiceAction::Delete { follow_up, start_event } => {
                self.delete_load_balancer(sync, follow_up, start_event)
                    .await
            }
            ServiceAction::Serve(action) => {
                let Some(desired) = interpreted.and_then(|interpreted| interpreted.desired) else {
                    return Ok(WAIT_FOR_CHANGE);
                };
                self.serve(sync, action, &desired).await
            }
        }
    }

    async fn serve(
        &self,
        sync: &mut ServiceSync,
        action: ServeAction,
        desired: &DesiredLoadBalancer,
    ) -> Result<SyncResult, ServiceSyncError> {
        match action {
            ServeAction::Ensure { read_mode, start_event } => {
                self.ensure(sync, desired, read_mode, start_event).await
            }
            ServeAction::UpdateBackends => self.update_backends(sync, desired).await,
            ServeAction::CheckDrift(check) => self.check_drift(sync, desired, check).await,
            ServeAction::RestoreStatus => self.restore_status(sync, desired).await,
        }
    }

    /// Publishes what a provider call returned, and handles its result.
    async fn apply_outcome(
        &self,
        sync: &mut ServiceSync,
        desired: &DesiredLoadBalancer,
        outcome: LbOutcome,
        operation: ServiceOperation,
    ) -> Result<SyncResult, ServiceSyncError> {
        let LbOutcome { status, annotations, result } = outcome;
        let is_finished = match &result {
            Ok(Progress::Done) => true,
            Ok(Progress::Pending { .. }) => false,
            Err(error) => error.kind() == ErrorKind::ImplementedElsewhere,
        };
        // The cloud is in the desired state even if the status cannot be published below.
        let mut sync_result = WAIT_FOR_CHANGE;
        if is_finished {
            sync_result = self.mark_in_sync(sync, desired);
        }
        if let Some(status) = &status {
            sync.state.desired_status = Some(status.clone());
        }
        sync.state.desired_annotations.extend(annotations.clone());
        let service = match &sync.service {
            Some(service) => service.clone(),
            None => desired.service.clone(),
        };
        let published = self
            .publish_status(sync, &service, status.as_ref(), &annotations)
            .await;
        match result {
            Ok(Progress::Done) => published?,
            Ok(Progress::Pending { after, why }) => {
                published?;
                tracing::debug!(service = %sync.key, ?after, %why, "load balancer is pending");
                return Ok(self.requeue_pending(sync, after));
            }
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => {
                return Ok(sync_result);
            }
            Err(error) => return Err(ServiceSyncError::cloud(operation, error)),
        }
        self.metrics.count(sync.operation, ServiceOutcome::Done);
        self.report_success(sync, desired, &operation);
        Ok(sync_result)
    }

    /// Records that the cloud is in the desired state, and schedules the next drift check.
    fn mark_in_sync(&self, sync: &mut ServiceSync, desired: &DesiredLoadBalancer) -> SyncResult {
        let digest = desired.digest;
        let verify_at = match sync.state.applied {
            // An update of backends is no drift check.
            Some(applied)
                if applied.digest == digest
                    && sync.operation == ServiceOperationKind::UpdateBackends =>
            {
                applied.verify_at
            }
            _ => {
                let jitter = rand::random_range(0.75..1.25);
                self.now() + self.config.verify_period.mul_f64(jitter)
            }
        };
        sync.state.applied = Some(AppliedState {
            digest,
            backend_fingerprint: Some(desired.backend_fingerprint),
            verify_at,
        });
        sync.state.served_state = sync
            .state
            .backend_kind
            .clone()
            .map(|backend_kind| ServedState {
                digest,
                service: desired.service.clone(),
                backend_kind,
            });
        sync.state.deferred = None;
        sync.state.pending_since = None;
        sync.state.last_failure_event = None;
        SyncResult::RequeueAt { until: Some(verify_at), resets_failures: true }
    }

    fn requeue_pending(&self, sync: &mut ServiceSync, after: Duration) -> SyncResult {
        let now = self.now();
        sync.state.pending_since.get_or_insert(now);
        let until = now + after.clamp(*PENDING_DELAY.start(), *PENDING_DELAY.end());
        sync.defer(now, until, DeferralScope::TheseBackends);
        self.metrics.count(sync.operation, ServiceOutcome::Pending);
        sync.reconcile_outcome = Reconciled::Pending;
        SyncResult::RequeueAt { until: Some(until), resets_failures: true }
    }

    fn op_for_service(&self, sync: &ServiceSync) -> Op {
        let mut pending_for = Duration::ZERO;
        if let Some(since) = sync.state.pending_since {
            pending_for = self.now().saturating_sub(since);
        }
        let op = self
            .op
            .clone()
            .with_pending_for(pending_for)
            .with_reason(sync.reason);
        match sync.object() {
            Some(object) => op.with_events(self.ctx.events.for_object(object)),
            None => op,
        }
    }
}

impl ServiceSync {
    fn new(key: &Arc<str>, service: Option<Arc<ServiceView>>, state: ServiceSyncState) -> Self {
        Self {
            key: key.clone(),
            service,
            state,
            attempt: None,
            fingerprint: None,
            keeps_serving_old_spec: false,
            operation: ServiceOperationKind::Ensure,
            reason: "",
            reconcile_outcome: Reconciled::Done,
        }
    }

    /// Defers this attempt until `until`. With other backends it is deferred for less time: after
    /// an update of backends whose failure concerns only these, after a drift check or a status
    /// write, and after an `ensure` if the backends are updated separately.
    fn defer(&mut self, now: Duration, until: Duration, scope: DeferralScope) {
        let other_backends_wait_less = match self.operation {
            ServiceOperationKind::UpdateBackends => scope == DeferralScope::TheseBackends,
            ServiceOperationKind::CheckDrift | ServiceOperationKind::PublishStatus => true,
            ServiceOperationKind::Ensure => self.keeps_serving_old_spec,
            ServiceOperationKind::Delete | ServiceOperationKind::Reject => false,
        };
        let mut backends = None;
        if other_backends_wait_less && let Some(fingerprint) = self.fingerprint {
            backends = Some(DeferredBackends { tried_at: now, fingerprint });
        }
        self.state.deferred =
            self.attempt
                .map(|subject| DeferredAttempt { until, subject, backends });
    }

    /// Returns a reference to the Service, which may no longer exist.
    fn object(&self) -> Option<ObjectRef> {
        let (namespace, name) = self.key.split_once('/')?;
        Some(ObjectRef::service(namespace, name, &*self.state.uid))
    }
}

fn object(service: &ServiceView) -> ObjectRef {
    ObjectRef::service(service.namespace.clone(), service.name.clone(), &*service.uid)
}

impl From<Throttled> for ServiceSyncError {
    fn from(Throttled(duration): Throttled) -> Self {
        Self::Throttled(duration)
    }
}
