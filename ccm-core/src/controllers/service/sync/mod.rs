//! One sync of one Service: observe, plan, apply.

mod delete;
mod dry_run;
mod events;
mod service_writes;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    ServiceController,
    backend_nodes::endpoints_fingerprint,
    metrics::{ServiceOperationKind, ServiceOutcome},
    plan::{
        AppliedState, Attempt, DeferredAttempt, DeferredBackends, DesiredState, FailedEnsures,
        PlanInput, ServedBackends, ServedState, ServiceAction, ServiceSyncState, invalid_digest,
        is_finished, plan, served_by_this_process,
    },
    provider_calls::Throttled,
};
use crate::{
    config::controller_names as names,
    controllers::service::sync_failure::{
        ServiceOperation, ServiceSyncError, host_names as node_names,
    },
    error::caught,
    k8s::ServiceView,
    provider::{
        BackendKind, Backends, CloudError, Digest, ErrorKind, EventType, FieldError, LbOutcome,
        LbSpec, Op, Progress, ReadMode, ServiceInterpretation, SourceRanges,
    },
    runtime::events::ObjectRef,
    telemetry::controller_metrics::{ReconcileOutcome as Reconciled, record_reason},
};

/// Shortest and longest delay that a provider can request. A provider that names none must not
/// cause a busy loop.
const PENDING_DELAY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(600);
/// After this many failures of `ensure` in a row, the backends of the existing load balancer are
/// updated separately: the cause may last for hours, and nodes come and go meanwhile.
const MAX_ENSURE_FAILURES: u32 = 3;
/// Delay before the backends of an invalid Service are updated again after the cloud answered that
/// its load balancer does not exist.
const MISSING_LOAD_BALANCER_RETRY_DELAY: Duration = Duration::from_secs(300);
/// Error while the EndpointSlices that a Service uses as backends are not available.
const NO_ENDPOINTS: &str = "EndpointSlices are not listed yet, as needs the right to list and watch \
                            endpointslices.discovery.k8s.io";

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

/// The desired load balancer of a Service.
struct DesiredService {
    service: Arc<ServiceView>,
    digest: Digest,
    backend_fingerprint: u64,
    spec: LbSpec,
}

impl DesiredService {
    fn served_backends(&self) -> ServedBackends {
        ServedBackends { digest: self.digest, fingerprint: self.backend_fingerprint }
    }
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
            let next = match result {
                Ok(next) => next,
                Err(error) => self.handle_error(&mut sync, &error),
            };
            (sync.reconcile_outcome, (sync.state, next))
        };
        self.cx
            .controller_metrics
            .reconcile(names::SERVICE_LB, key, work)
            .await
    }

    async fn reconcile(&self, sync: &mut ServiceSync) -> Result<SyncResult, ServiceSyncError> {
        // First, drop the state of an earlier Service of this name, unless that may still have a
        // load balancer.
        if let Some(service) = &sync.service
            && sync.state.uid != service.uid
            && !sync.state.may_exist_in_cloud
        {
            sync.state =
                ServiceSyncState { uid: service.uid.clone(), ..ServiceSyncState::default() };
        }
        // Next, parse the spec and plan.
        let (desired_state, desired_service) = match self.service_to_sync(sync) {
            Some(service) => {
                self.report_notices(sync, &service);
                self.interpret_spec(sync, service).await?
            }
            None => (None, None),
        };
        let input = PlanInput {
            service: sync.service.as_deref(),
            state: &sync.state,
            fields: &self.fields,
            desired: desired_state.as_ref(),
            node_sync_scheduled: matches!(sync.state.backend_kind, Some(BackendKind::Nodes(_)))
                && self.node_sync_scheduled(&sync.key),
            now: self.now(),
        };
        let action = plan(input);
        tracing::trace!(service = %sync.key, step = ?action, "decided");
        sync.reason = action.reason(&sync.state);
        if !sync.reason.is_empty() {
            record_reason(sync.reason);
        }
        // Finally, apply the action.
        match (action, desired_service) {
            (ServiceAction::Forget, _) => Ok(SyncResult::Forget),
            (ServiceAction::Ignore, _) => {
                sync.state.other_controller = desired_state.is_none();
                Ok(WAIT_FOR_CHANGE)
            }
            (ServiceAction::Wait { until }, _) => {
                // Earlier failures count as long as the attempt that failed is deferred.
                let is_deferred = sync
                    .state
                    .deferred
                    .is_some_and(|deferred| deferred.until > self.now());
                Ok(SyncResult::RequeueAt { until, resets_failures: !is_deferred })
            }
            (ServiceAction::ReportInvalid { errors }, _) => Ok(self.report_invalid(sync, &errors)),
            (ServiceAction::Delete { then, announce }, _) => {
                self.delete_load_balancer(sync, then, announce).await
            }
            (ServiceAction::Ensure { read_mode, announce }, Some(desired)) => {
                self.ensure(sync, &desired, read_mode, announce).await
            }
            (ServiceAction::UpdateBackends, Some(desired)) => {
                self.update_backends(sync, &desired).await
            }
            (ServiceAction::CheckDrift { drift }, Some(desired)) => {
                self.check_drift(sync, &desired, drift).await
            }
            (ServiceAction::RestoreStatus, Some(desired)) => {
                self.restore_status(sync, &desired).await
            }
            (
                ServiceAction::Ensure { .. }
                | ServiceAction::UpdateBackends
                | ServiceAction::CheckDrift { .. }
                | ServiceAction::RestoreStatus,
                None,
            ) => Ok(WAIT_FOR_CHANGE),
        }
    }

    /// Returns the Service if it is to be served.
    fn service_to_sync(&self, sync: &ServiceSync) -> Option<Arc<ServiceView>> {
        let service = sync.service.as_ref()?;
        (self.fields.is_managed(service) && sync.state.uid == service.uid).then(|| service.clone())
    }

    /// Parses the Service and finds its backends.
    async fn interpret_spec(
        &self,
        sync: &mut ServiceSync,
        service: Arc<ServiceView>,
    ) -> Result<(Option<DesiredState>, Option<DesiredService>), ServiceSyncError> {
        sync.state.last_observed = Some(service.clone());
        let load_balancers = self
            .cloud
            .load_balancers()
            .map_err(|error| ServiceSyncError::cloud(ServiceOperation::Ensure, error))?;
        let interpretation = load_balancers.interpret(&service);
        // Whichever process served the Service wrote the finalizer before its first cloud call.
        sync.state.may_exist_in_cloud |= interpretation
            != ServiceInterpretation::ImplementedElsewhere
            && service.has_finalizer();
        let (backends, digest) = match interpretation {
            ServiceInterpretation::ImplementedElsewhere => {
                return Ok((Some(DesiredState::ImplementedElsewhere), None));
            }
            ServiceInterpretation::Invalid(errors) => {
                let backends = load_balancers.backends_of_invalid(&service);
                return self
                    .desired_state_of_invalid(sync, service, errors, backends)
                    .await;
            }
            ServiceInterpretation::Valid { backends, digest } => (backends, digest),
        };
        let errors = load_balancers.supports().validate(&service);
        if !errors.is_empty() {
            return self
                .desired_state_of_invalid(sync, service, errors, Some(backends))
                .await;
        }
        sync.state.reported_invalid_digest = None;
        let desired_service = self
            .desired_service(sync, service, backends, digest)
            .await?;
        let desired_state =
            DesiredState::Serve { digest, backends: desired_service.backend_fingerprint };
        Ok((Some(desired_state), Some(desired_service)))
    }

    /// Returns the desired state of an invalid Service: the state that its load balancer still
    /// serves, if any. `backends`: the kind of backends that the Service has as it is.
    async fn desired_state_of_invalid(
        &self,
        sync: &mut ServiceSync,
        service: Arc<ServiceView>,
        errors: Vec<FieldError>,
        backends: Option<BackendKind>,
    ) -> Result<(Option<DesiredState>, Option<DesiredService>), ServiceSyncError> {
        let state = &sync.state;
        let digest = invalid_digest(&errors);
        // Report the validation errors first, whatever happens to the backends.
        if state.reported_invalid_digest != Some(digest) {
            return Ok((Some(DesiredState::Invalid { errors, served: None }), None));
        }
        let mut served = served_by_this_process(state, &service);
        if served.is_none() && is_finished(&service, state, self.now()) {
            // An earlier process may have finished it, of which only the Service and the load
            // balancer are left.
            served = backends.map(|backend_kind| ServedState {
                digest,
                service: service.clone(),
                backend_kind,
            });
        }
        let Some(served) = served else {
            return Ok((Some(DesiredState::Invalid { errors, served: None }), None));
        };
        let desired = self
            .desired_service(sync, served.service, served.backend_kind, served.digest)
            .await?;
        let served = ServedBackends {
            digest: desired.digest,
            fingerprint: desired.backend_fingerprint,
        };
        Ok((Some(DesiredState::Invalid { errors, served: Some(served) }), Some(desired)))
    }

    /// Builds the desired load balancer of a Service.
    async fn desired_service(
        &self,
        sync: &mut ServiceSync,
        service: Arc<ServiceView>,
        backend_kind: BackendKind,
        digest: Digest,
    ) -> Result<DesiredService, ServiceSyncError> {
        sync.attempt = Some(Attempt::Serve(digest));
        // A Service with invalid source ranges is rejected: only its backends are updated, and no
        // source is allowed.
        let sources = SourceRanges::of(&service).unwrap_or(SourceRanges::Only(Vec::new()));
        let (backends, fingerprint) = match &backend_kind {
            BackendKind::Nodes(requirements) => {
                let set = self
                    .backend_nodes
                    .get(requirements)
                    .await
                    .map_err(ServiceSyncError::StaleCache)?;
                (Backends::Nodes(set.nodes.clone()), set.fingerprint)
            }
            BackendKind::Endpoints => {
                let unknown = || {
                    ServiceSyncError::cloud(
                        ServiceOperation::Ensure,
                        CloudError::transient(NO_ENDPOINTS),
                    )
                };
                let slices = match &self.slices {
                    Some(slices) => slices.for_service(&sync.key).ok_or_else(unknown)?,
                    None => Vec::new(),
                };
                let fingerprint = endpoints_fingerprint(&slices);
                (Backends::Endpoints(slices), fingerprint)
            }
        };
        sync.state.backend_kind = Some(backend_kind);
        sync.fingerprint = Some(fingerprint);
        let cluster = Arc::from(self.op.cluster_name());
        let spec = LbSpec { cluster, service: service.clone(), sources, backends };
        Ok(DesiredService { service, digest, backend_fingerprint: fingerprint, spec })
    }

    async fn ensure(
        &self,
        sync: &mut ServiceSync,
        desired_service: &DesiredService,
        read_mode: ReadMode,
        announce: bool,
    ) -> Result<SyncResult, ServiceSyncError> {
        sync.operation = ServiceOperationKind::Ensure;
        // Before a load balancer of an earlier process is changed, confirm the nodes.
        let from_before = desired_service.service.has_finalizer()
            || !desired_service.service.status.ingress.is_empty();
        if from_before
            && !sync.state.has_attempted
            && !self
                .confirm_nodes_after_start(sync, desired_service)
                .await?
        {
            return Ok(SyncResult::RequeueNow);
        }
        // Then announce the attempt, and write the finalizer before the first cloud call.
        if announce {
            self.emit_event(
                sync,
                EventType::Normal,
                "EnsuringLoadBalancer",
                "Ensuring load balancer",
            );
            sync.state.announced_attempt = Some(Attempt::Serve(desired_service.digest));
            sync.state.completion_event_due = true;
        }
        if !self.add_finalizer(sync, &desired_service.service).await? {
            return Ok(WAIT_FOR_CHANGE);
        }
        sync.state.may_exist_in_cloud = true;
        self.report_no_backends(sync, &desired_service.spec);
        // Then ensure the load balancer, and record whether that failed.
        let outcome = self
            .cloud
            .ensure(self.op_for_service(sync), &desired_service.spec, read_mode)
            .await?;
        sync.state.applied = None;
        sync.state.has_attempted = true;
        sync.state.deleted = false;
        match &outcome.result {
            Ok(_) => {
                sync.state.failed_ensures = None;
                sync.state.backends_applied_despite_failure = None;
            }
            Err(error) => {
                let digest = desired_service.digest;
                let before = sync
                    .state
                    .failed_ensures
                    .filter(|failed| failed.digest == digest);
                let count = before.map_or(1, |failed| failed.count.saturating_add(1));
                sync.state.failed_ensures = Some(FailedEnsures { digest, count });
                // If the backends are up to date, an update with other backends is deferred for
                // less time.
                sync.keeps_serving_old_spec = sync.state.backends_applied_despite_failure
                    == Some(desired_service.served_backends());
                // Repeated transient failures; an error for which the cloud names a retry delay
                // does not count.
                let keeps_failing = error.kind() == ErrorKind::Transient
                    && error.retry_after().is_none()
                    && count >= MAX_ENSURE_FAILURES
                    && !sync.keeps_serving_old_spec;
                if (keeps_failing || error.kind().is_rejection())
                    && !desired_service.service.status.ingress.is_empty()
                {
                    self.update_backends_of_last_spec(sync, desired_service)
                        .await;
                }
            }
        }
        self.apply_outcome(sync, desired_service, outcome, ServiceOperation::Ensure)
            .await
    }

    /// Updates the backends of the existing load balancer although the desired change is rejected,
    /// or fails repeatedly: it still serves, and its nodes come and go. The caller reports the
    /// failure of `ensure` and retries both.
    async fn update_backends_of_last_spec(
        &self,
        sync: &mut ServiceSync,
        desired_service: &DesiredService,
    ) {
        sync.keeps_serving_old_spec = true;
        let outcome = self
            .cloud
            .update_backends(self.op_for_service(sync), &desired_service.spec)
            .await;
        let done = matches!(outcome, Ok(LbOutcome { result: Ok(Progress::Done), .. }));
        sync.state.backends_applied_despite_failure =
            done.then(|| desired_service.served_backends());
        if let Ok(LbOutcome { result: Err(error), .. }) = outcome
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(service = %sync.key, error = error.chain(), "backends not synced of a service whose load balancer cannot be changed");
        }
    }

    async fn update_backends(
        &self,
        sync: &mut ServiceSync,
        desired_service: &DesiredService,
    ) -> Result<SyncResult, ServiceSyncError> {
        sync.operation = ServiceOperationKind::UpdateBackends;
        let hosts = match &desired_service.spec.backends {
            Backends::Nodes(nodes) => node_names(nodes),
            Backends::Endpoints(slices) => slices.iter().map(|slice| slice.name.clone()).collect(),
        };
        // If nothing was applied yet, the load balancer is that of an earlier process: confirm the
        // nodes first.
        if sync.state.applied.is_none() {
            if !self
                .confirm_nodes_after_start(sync, desired_service)
                .await?
            {
                return Ok(SyncResult::RequeueNow);
            }
            // No event for backends that an earlier process may have applied already. Once the
            // Service is valid, everything is compared.
            sync.state.backends_event_at.get_or_insert(self.now());
            sync.state.has_attempted = false;
        }
        self.report_no_backends(sync, &desired_service.spec);
        // Then update the backends. Until that succeeds, it is unknown which ones were applied.
        let started = Instant::now();
        let outcome = self
            .cloud
            .update_backends(self.op_for_service(sync), &desired_service.spec)
            .await?;
        self.metrics
            .host_update
            .observe(started.elapsed().as_secs_f64());
        self.metrics.host_updates.inc();
        if let Some(applied) = &mut sync.state.applied {
            applied.backend_fingerprint = None;
        }
        match &outcome.result {
            // An invalid Service gets no new load balancer. Try again later: a cloud may deny a
            // load balancer that it lists later.
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    && sync.state.reported_invalid_digest.is_some() =>
            {
                // Continue as after a restart. Once the Service is valid, everything is compared;
                // this delay does not apply to that.
                sync.state.applied = None;
                sync.state.has_attempted = false;
                sync.attempt = sync.state.reported_invalid_digest.map(Attempt::Serve);
                let now = self.now();
                let until = self.now() + MISSING_LOAD_BALANCER_RETRY_DELAY;
                sync.defer(now, until, false);
                return Ok(SyncResult::RequeueAt { until: Some(until), resets_failures: true });
            }
            // Ensure the whole load balancer again.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                sync.state.applied = None;
                return Ok(SyncResult::RequeueNow);
            }
            Err(_) => self.metrics.host_update_errors.inc(),
            Ok(_) => {}
        }
        self.apply_outcome(sync, desired_service, outcome, ServiceOperation::Update { hosts })
            .await
    }

    /// Confirms the nodes with the API server before a load balancer from before the start is
    /// changed. Returns whether the backends from `desired_service` are still those of the cache,
    /// which may have been filled meanwhile.
    async fn confirm_nodes_after_start(
        &self,
        sync: &ServiceSync,
        desired_service: &DesiredService,
    ) -> Result<bool, ServiceSyncError> {
        let Some(BackendKind::Nodes(requirements)) = &sync.state.backend_kind else {
            return Ok(true);
        };
        self.backend_nodes
            .confirm_nodes_after_start()
            .await
            .map_err(ServiceSyncError::StaleCache)?;
        Ok(self
            .backend_nodes
            .get(requirements)
            .await
            .map_err(ServiceSyncError::StaleCache)?
            .fingerprint
            == desired_service.backend_fingerprint)
    }

    /// Asks the provider what differs. Without differences the cloud is in the desired state, and
    /// nothing is written to it.
    async fn check_drift(
        &self,
        sync: &mut ServiceSync,
        desired_service: &DesiredService,
        drift: bool,
    ) -> Result<SyncResult, ServiceSyncError> {
        sync.operation = ServiceOperationKind::CheckDrift;
        if !drift {
            // Do not compare again right after the nodes could not be confirmed.
            self.backend_nodes
                .check_doubt()
                .map_err(ServiceSyncError::StaleCache)?;
        }
        let changes = match self
            .cloud
            .plan(self.op_for_service(sync), &desired_service.spec)
            .await?
        {
            Ok(changes) => changes,
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => Vec::new(),
            // The provider cannot compare: ensure instead, which is idempotent.
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                return self
                    .ensure(sync, desired_service, ReadMode::Fresh, false)
                    .await;
            }
            // The comparison would be rejected indefinitely. `ensure` also keeps the backends up to
            // date.
            Err(error) if error.kind().is_rejection() && !drift => {
                return self
                    .ensure(sync, desired_service, ReadMode::Fresh, true)
                    .await;
            }
            Err(error) => return Err(ServiceSyncError::cloud(ServiceOperation::Compare, error)),
        };
        // Log the differences and repair them. They count as drift if everything was in sync
        // before.
        for change in &changes {
            let operation = &change.operation;
            let object = &change.object;
            let why = &change.reason;
            tracing::info!(service = %sync.key, %operation, %object, %why, drift, "load balancer differs");
        }
        if !changes.is_empty() {
            if drift {
                sync.reason = "drift";
                self.metrics.drift.inc_by(changes.len() as u64);
            }
            return self
                .ensure(sync, desired_service, ReadMode::Fresh, !drift)
                .await;
        }
        // Without differences, record that the cloud is in the desired state.
        sync.state.may_exist_in_cloud = true;
        sync.state.has_attempted = true;
        sync.state
            .desired_status
            .get_or_insert_with(|| desired_service.service.status.clone());
        sync.state.announced_attempt = Some(Attempt::Serve(desired_service.digest));
        self.metrics
            .count(ServiceOperationKind::CheckDrift, ServiceOutcome::Done);
        Ok(self.mark_in_sync(sync, desired_service))
    }

    /// Publishes what a provider call returned, and handles its result.
    async fn apply_outcome(
        &self,
        sync: &mut ServiceSync,
        desired_service: &DesiredService,
        outcome: LbOutcome,
        doing: ServiceOperation,
    ) -> Result<SyncResult, ServiceSyncError> {
        let LbOutcome { status, annotations, result } = outcome;
        let finished = match &result {
            Ok(Progress::Done) => true,
            Err(error) => error.kind() == ErrorKind::ImplementedElsewhere,
            Ok(Progress::Pending { .. }) => false,
        };
        let next = finished.then(|| self.mark_in_sync(sync, desired_service));
        if let Some(status) = &status {
            sync.state.desired_status = Some(status.clone());
        }
        sync.state.desired_annotations.extend(annotations.clone());
        let service = sync
            .service
            .clone()
            .unwrap_or_else(|| desired_service.service.clone());
        let published = self
            .publish_status(sync, &service, status.as_ref(), &annotations)
            .await;
        match result {
            Ok(Progress::Done) => published?,
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => {
                return Ok(next.unwrap_or(WAIT_FOR_CHANGE));
            }
            Err(error) => return Err(ServiceSyncError::cloud(doing, error)),
            Ok(Progress::Pending { after, why }) => {
                published?;
                tracing::debug!(service = %sync.key, ?after, %why, "load balancer is on its way");
                return Ok(self.requeue_pending(sync, after));
            }
        }
        self.metrics.count(sync.operation, ServiceOutcome::Done);
        self.report_success(sync, desired_service, &doing);
        Ok(next.unwrap_or(WAIT_FOR_CHANGE))
    }

    /// Records that the cloud is in the desired state, and schedules the next drift check.
    fn mark_in_sync(&self, sync: &mut ServiceSync, desired_service: &DesiredService) -> SyncResult {
        let now = self.now();
        let verify_at = match sync.state.applied {
            // An update of backends is no drift check.
            Some(applied)
                if applied.digest == desired_service.digest
                    && sync.operation == ServiceOperationKind::UpdateBackends =>
            {
                applied.verify_at
            }
            _ => {
                now + self
                    .config
                    .verify_period
                    .mul_f64(rand::random_range(0.75..1.25))
            }
        };
        sync.state.applied = Some(AppliedState {
            digest: desired_service.digest,
            backend_fingerprint: Some(desired_service.backend_fingerprint),
            verify_at,
        });
        sync.state.served_state = sync.state.backend_kind.clone().map(|backend_kind| {
            let digest = desired_service.digest;
            let service = desired_service.service.clone();
            ServedState { digest, service, backend_kind }
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
        sync.defer(now, until, false);
        self.metrics.count(sync.operation, ServiceOutcome::Pending);
        sync.reconcile_outcome = Reconciled::Pending;
        SyncResult::RequeueAt { until: Some(until), resets_failures: true }
    }

    fn op_for_service(&self, sync: &ServiceSync) -> Op {
        let pending = sync
            .state
            .pending_since
            .map_or(Duration::ZERO, |since| self.now().saturating_sub(since));
        let op = self
            .op
            .clone()
            .with_pending_for(pending)
            .with_reason(sync.reason);
        match sync.object() {
            Some(object) => op.with_events(self.cx.events.for_object(object)),
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
    /// an update of backends unless `all_backends`, after a drift check or a status write, and
    /// after an `ensure` if the backends are updated separately.
    fn defer(&mut self, now: Duration, until: Duration, all_backends: bool) {
        let others_wait_less = match self.operation {
            ServiceOperationKind::UpdateBackends => !all_backends,
            ServiceOperationKind::CheckDrift | ServiceOperationKind::PublishStatus => true,
            ServiceOperationKind::Ensure => self.keeps_serving_old_spec,
            ServiceOperationKind::Delete | ServiceOperationKind::Reject => false,
        };
        let mut backends = None;
        if others_wait_less && let Some(fingerprint) = self.fingerprint {
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
    fn from(Throttled(pause): Throttled) -> Self {
        Self::Throttled(pause)
    }
}
