//! One sync of one Service: observe, plan, apply.

mod condition;
mod delete;
mod desired;
mod drift;
mod dry_run;
mod ensure;
mod events;
mod explain;
mod retain;
mod service_writes;

use std::{sync::Arc, time::Duration};

use self::desired::{DesiredLoadBalancer, InterpretedService};
use super::{
    ServiceController,
    condition::ConditionChange,
    metrics::{ServiceOutcome, SyncKind},
    plan::{
        DeferredBackends, DeferredGoal, LastApplied, PlanInput, ServeAction, ServedSpec,
        ServiceAction, ServiceSyncState, SyncGoal, plan,
    },
    provider_calls::Throttled,
    sync_error::{ServiceOperation, ServiceSyncError},
};
use crate::{
    config::controller_names as names,
    error::caught,
    explain::Cause,
    k8s::ServiceView,
    provider::{BackendKind, ErrorKind, LbOutcome, Op, Progress},
    runtime::events::ObjectRef,
    telemetry::controller_metrics::{ReconcileOutcome as Reconciled, record_reason},
};

/// The shortest and the longest delay that a provider can request. The lower bound keeps a provider
/// that requests no delay from causing a busy loop.
const PENDING_DELAY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(600);

/// The result of a sync, which decides what the work queue does with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncResult {
    /// Drop the sync state and the key.
    Forget,
    /// Sync again at this time since the start of the controller, or as soon as something changes.
    RequeueAt {
        /// `None` to wait for a change.
        at: Option<Duration>,
        /// True if the next failure counts as the first one.
        resets_failures: bool,
    },
    /// Sync again at once.
    RequeueNow,
}

const WAIT_FOR_CHANGE: SyncResult = SyncResult::RequeueAt { at: None, resets_failures: true };

/// The working data of one sync.
struct ServiceSync {
    key: Arc<str>,
    /// The Service in the cache; `None` if it no longer exists.
    service: Option<Arc<ServiceView>>,
    state: ServiceSyncState,
    /// The goal that a failure defers; `None` until the plan needs one.
    goal: Option<SyncGoal>,
    /// The fingerprint of the backends that belong to the goal.
    backend_fingerprint: Option<u64>,
    /// True if `ensure` failed and the existing load balancer gets the desired backends separately.
    keeps_serving_old_spec: bool,
    /// True if the provider gives the Service to another controller by its annotations.
    implemented_elsewhere: bool,
    /// What is wrong with the Service, if it is invalid.
    validation_errors: Option<String>,
    /// The cause for which no backend serves, if there is none.
    backends_cause: Option<Cause>,
    /// The change of our condition that is written together with the status.
    condition_change: Option<ConditionChange>,
    kind: SyncKind,
    /// The reason for the action, recorded with each change in the cloud.
    reason: &'static str,
    reconcile_outcome: Reconciled,
}

/// The backends that are affected by the reason for a deferral.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeferralScope {
    /// All of them, because the sync would also fail with other backends.
    AllBackends,
    /// Only those of this sync, because it may succeed with other backends.
    TheseBackends,
    /// Only those of this sync, also if it is an `ensure`: the cloud is working on it, perhaps for
    /// hours, and the load balancer may serve meanwhile.
    Pending,
}

impl ServiceController {
    /// Syncs one Service and returns its new sync state.
    pub(super) async fn sync(
        &self,
        key: &Arc<str>,
        state: ServiceSyncState,
    ) -> (ServiceSyncState, SyncResult) {
        let mut sync = ServiceSync::new(key, self.services.get(key), state);
        let measured_sync = async move {
            let sync_result = self.reconcile_or_handle_error(&mut sync).await;
            let sync_result = self.publish_condition(&mut sync, sync_result).await;
            (sync.reconcile_outcome, (sync.state, sync_result))
        };
        self.ctx
            .controller_metrics
            .reconcile(names::SERVICE_LB, key, measured_sync)
            .await
    }

    /// Reconciles the Service, and reports and defers it if that fails. A panic, in the provider's
    /// code or ours, is an error of this Service alone.
    async fn reconcile_or_handle_error(&self, sync: &mut ServiceSync) -> SyncResult {
        let error = match caught(Box::pin(self.reconcile(sync))).await {
            Ok(Ok(sync_result)) => return sync_result,
            Ok(Err(error)) => error,
            Err(panic) => {
                // The sync may have changed the cloud before it panicked.
                sync.state.last_applied = None;
                ServiceSyncError::Panicked(panic)
            }
        };
        self.handle_error(sync, &error)
    }

    /// Finds the desired state of the Service, plans one action and applies it.
    async fn reconcile(&self, sync: &mut ServiceSync) -> Result<SyncResult, ServiceSyncError> {
        // Drop the sync state of an earlier Service of this name, unless that Service may still
        // have a load balancer.
        if let Some(service) = &sync.service
            && sync.state.uid != service.uid
            && !sync.state.may_exist_in_cloud
        {
            sync.state =
                ServiceSyncState { uid: service.uid.clone(), ..ServiceSyncState::default() };
        }
        // Remember whether the load balancer is to be kept, also for when the Service is gone.
        sync.state.observe_retention(sync.service.as_deref());
        // Find the desired state, if the Service should have a load balancer of ours.
        let mut interpreted = None;
        if let Some(service) = self.service_to_serve(sync) {
            self.report_notices(sync, &service);
            interpreted = Some(self.interpret(sync, service).await?);
        }
        // Plan an action.
        let node_sync_scheduled = matches!(sync.state.backend_kind, Some(BackendKind::Nodes(_)))
            && self.is_node_sync_scheduled(&sync.key);
        let action = self.plan_action(sync, interpreted.as_ref(), node_sync_scheduled);
        tracing::trace!(service = %sync.key, ?action, "service planned");
        // Apply it. Its reason is recorded with each change in the cloud.
        sync.reason = action.reason(&sync.state);
        if !sync.reason.is_empty() {
            record_reason(sync.reason);
        }
        self.apply(sync, action, interpreted).await
    }

    fn plan_action(
        &self,
        sync: &ServiceSync,
        interpreted: Option<&InterpretedService>,
        node_sync_scheduled: bool,
    ) -> ServiceAction {
        plan(PlanInput {
            service: sync.service.as_deref(),
            state: &sync.state,
            fields: &self.fields,
            desired: interpreted.map(|interpreted| &interpreted.desired_state),
            node_sync_scheduled,
            now: self.now(),
        })
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
                // Earlier failures count as long as the goal that failed is deferred.
                let is_deferred = sync
                    .state
                    .deferred
                    .is_some_and(|deferred| deferred.until > self.now());
                Ok(SyncResult::RequeueAt { at: until, resets_failures: !is_deferred })
            }
            ServiceAction::ReportInvalid { errors } => Ok(self.report_invalid(sync, &errors)),
            ServiceAction::RemoveCondition => Ok(self.remove_condition(sync).await),
            ServiceAction::Delete { follow_up, start_event } => {
                self.delete_load_balancer(sync, follow_up, start_event)
                    .await
            }
            ServiceAction::Serve(action) => {
                match interpreted.and_then(|interpreted| interpreted.load_balancer) {
                    Some(desired) => self.serve(sync, action, &desired).await,
                    None => Ok(WAIT_FOR_CHANGE),
                }
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

    /// Records the outcome of an `ensure` or an update of backends, and publishes the status and
    /// the annotations that it contains.
    ///
    /// They are published even if the call failed, because a load balancer may have an address
    /// before it is finished.
    async fn apply_outcome(
        &self,
        sync: &mut ServiceSync,
        desired: &DesiredLoadBalancer,
        outcome: LbOutcome,
        operation: ServiceOperation,
    ) -> Result<SyncResult, ServiceSyncError> {
        let LbOutcome { status, annotations, result } = outcome;
        // Record a success before publishing, because the cloud is in the desired state even if the
        // status cannot be written.
        let is_in_sync = match &result {
            Ok(progress) => matches!(progress, Progress::Done),
            Err(error) => error.kind() == ErrorKind::ImplementedElsewhere,
        };
        if is_in_sync {
            self.mark_in_sync(sync, desired);
        }
        sync.state.implemented_elsewhere = result
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::ImplementedElsewhere);
        // Publish the status, the annotations, and our condition with them.
        if let Some(status) = &status {
            sync.state.desired_status = Some(status.clone());
        }
        sync.state.desired_annotations.extend(annotations.clone());
        let service = match &sync.service {
            Some(service) => service.clone(),
            None => desired.service.clone(),
        };
        self.plan_condition_of_outcome(sync, &service, &result);
        let published = self
            .publish_status(sync, &service, status.as_ref(), &annotations)
            .await;
        // Decide when to sync again. An error of the cloud matters more than one of the status.
        let progress = match result {
            Ok(progress) => progress,
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => {
                return Ok(sync.wait_for_drift_check());
            }
            Err(error) => return Err(ServiceSyncError::cloud(operation, error)),
        };
        published?;
        if let Progress::Pending { after, reason } = progress {
            tracing::debug!(service = %sync.key, ?after, %reason, "load balancer is pending");
            return Ok(self.requeue_pending(sync, after, &reason));
        }
        self.metrics.count(sync.kind, ServiceOutcome::Done);
        self.report_success(sync, desired, &operation);
        Ok(sync.wait_for_drift_check())
    }

    /// Records that the cloud is in the desired state, and schedules the next drift check.
    fn mark_in_sync(&self, sync: &mut ServiceSync, desired: &DesiredLoadBalancer) {
        let digest = desired.digest;
        let verify_at = match sync.state.last_applied {
            // An update of backends compares nothing else, so it does not delay the drift check.
            Some(applied) if applied.digest == digest && sync.kind == SyncKind::UpdateBackends => {
                applied.verify_at
            }
            _ => {
                let jitter = rand::random_range(0.75..1.25);
                self.now() + self.config.verify_period.mul_f64(jitter)
            }
        };
        sync.state.last_applied = Some(LastApplied {
            digest,
            backend_fingerprint: Some(desired.backend_fingerprint),
            verify_at,
        });
        sync.state.served_spec = sync
            .state
            .backend_kind
            .clone()
            .map(|backend_kind| ServedSpec {
                digest,
                service: desired.service.clone(),
                backend_kind,
            });
        sync.state.deferred = None;
        sync.state.pending_since = None;
        sync.state.last_attempt = None;
        sync.state.last_failure_event = None;
    }

    /// Defers the goal until the cloud has had time to go on.
    fn requeue_pending(&self, sync: &mut ServiceSync, after: Duration, reason: &str) -> SyncResult {
        let now = self.now();
        sync.state.pending_since.get_or_insert(now);
        let until = now + after.clamp(*PENDING_DELAY.start(), *PENDING_DELAY.end());
        self.record_pending(sync, until, reason);
        sync.defer(now, until, DeferralScope::Pending);
        self.metrics.count(sync.kind, ServiceOutcome::Pending);
        sync.reconcile_outcome = Reconciled::Pending;
        SyncResult::RequeueAt { at: Some(until), resets_failures: true }
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
        match sync.object_ref() {
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
            goal: None,
            backend_fingerprint: None,
            keeps_serving_old_spec: false,
            implemented_elsewhere: false,
            validation_errors: None,
            backends_cause: None,
            condition_change: None,
            kind: SyncKind::Ensure,
            reason: "",
            reconcile_outcome: Reconciled::Done,
        }
    }

    /// Defers the goal of this sync until `until`.
    ///
    /// If the load balancer still works, nodes that come and go should not wait that long. So the
    /// backends of this sync are recorded, and the plan defers other backends only for a short
    /// time.
    fn defer(&mut self, now: Duration, until: Duration, scope: DeferralScope) {
        let may_retry_other_backends = match self.kind {
            SyncKind::UpdateBackends => scope != DeferralScope::AllBackends,
            SyncKind::CheckDrift | SyncKind::PublishStatus => true,
            // While `ensure` fails, the backends are updated separately.
            SyncKind::Ensure => self.keeps_serving_old_spec || scope == DeferralScope::Pending,
            SyncKind::Delete | SyncKind::Reject => false,
        };
        let mut backends = None;
        if may_retry_other_backends && let Some(fingerprint) = self.backend_fingerprint {
            backends = Some(DeferredBackends { tried_at: now, fingerprint });
        }
        self.state.deferred = self.goal.map(|goal| DeferredGoal { until, goal, backends });
    }

    /// Returns the result of a sync after which nothing is to be done until the next drift check.
    fn wait_for_drift_check(&self) -> SyncResult {
        SyncResult::RequeueAt {
            at: self.state.last_applied.map(|applied| applied.verify_at),
            resets_failures: true,
        }
    }

    /// Returns a reference for events about the Service, which may no longer exist.
    fn object_ref(&self) -> Option<ObjectRef> {
        let (namespace, name) = self.key.split_once('/')?;
        Some(ObjectRef::service(namespace, name, &*self.state.uid))
    }
}

fn service_ref(service: &ServiceView) -> ObjectRef {
    ObjectRef::service(service.namespace.clone(), service.name.clone(), &*service.uid)
}

impl From<Throttled> for ServiceSyncError {
    fn from(Throttled(duration): Throttled) -> Self {
        Self::Throttled(duration)
    }
}
