//! One sync of one Service: observe, plan, apply.

mod delete;
mod dry_run;
mod events;
mod status;

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    ServiceController,
    backend_nodes::endpoints_fingerprint,
    error::{ServiceOperation, ServiceSyncError, host_names as node_names},
    metrics::{ServiceOperationKind, ServiceOutcome},
    plan::{
        AppliedState, Attempt, DeferredAttempt, DesiredState, PlanInput, Served, ServedAs, ServiceAction,
        ServiceSyncState, invalid_digest, is_finished, plan,
    },
    provider_calls::Throttled,
};
use crate::{
    config::controllers as names,
    error::caught,
    k8s::ServiceView,
    provider::{
        BackendKind, Backends, CloudError, Digest, ErrorKind, EventType, FieldError, LbOutcome, LbSpec, Op, Progress,
        ReadMode, ServiceInterpretation, SourceRanges,
    },
    runtime::events::ObjectRef,
    telemetry::controllers::{ReconcileOutcome as Reconciled, record_reason},
};

/// Shortest and longest delay that a provider can request. A provider that names none must not cause a busy loop.
const PENDING_DELAY: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(600);
/// After this many failures of `ensure` in a row, the backends of the existing load balancer are updated separately:
/// the cause may last for hours, and nodes come and go meanwhile.
const MAX_ENSURE_FAILURES: u32 = 3;
/// Delay before the backends of an invalid Service are updated again after the cloud answered that its load balancer
/// does not exist.
const GONE: Duration = Duration::from_secs(300);
/// Error while the EndpointSlices that a Service uses as backends are not available.
const NO_ENDPOINTS: &str = "EndpointSlices are not listed yet, as needs the right to list and watch \
                            endpointslices.discovery.k8s.io";

/// What happens to a key after a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncResult {
    /// Drop the sync state.
    Forget,
    /// Sync again at `until`, or when something changes. `resets_failures`: earlier failures no longer count.
    RequeueAt { until: Option<Duration>, resets_failures: bool },
    /// Sync again at once.
    RequeueNow,
}

const IDLE: SyncResult = SyncResult::RequeueAt { until: None, resets_failures: true };

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

impl ServiceController {
    /// Syncs one Service. Returns its new sync state and what happens to its key.
    pub(super) async fn sync(&self, key: &Arc<str>, known: ServiceSyncState) -> (ServiceSyncState, SyncResult) {
        let mut look = ServiceSync::new(key, self.services.get(key), known);
        let work = async move {
            let looked = caught(Box::pin(self.reconcile(&mut look))).await;
            if looked.is_err() {
                // It is unknown how far the sync came before it panicked.
                look.state.applied = None;
            }
            let next = match looked.unwrap_or_else(|panic| Err(ServiceSyncError::Panicked(panic))) {
                Ok(next) => next,
                Err(trouble) => self.handle_error(&mut look, &trouble),
            };
            (look.reconcile_outcome, (look.state, next))
        };
        self.cx.controller_metrics.reconcile(names::SERVICE_LB, key, work).await
    }

    async fn reconcile(&self, look: &mut ServiceSync) -> Result<SyncResult, ServiceSyncError> {
        // First, drop the state of an earlier Service of this name, unless that may still have a load balancer.
        if let Some(service) = &look.service
            && look.state.uid != service.uid
            && !look.state.may_exist_in_cloud
        {
            look.state = ServiceSyncState { uid: service.uid.clone(), ..ServiceSyncState::default() };
        }
        // Next, parse the spec and plan.
        let (wish, wanted) = match self.service_to_sync(look) {
            Some(service) => {
                self.report_notices(look, &service);
                self.interpret_spec(look, service).await?
            }
            None => (None, None),
        };
        let facts = PlanInput {
            service: look.service.as_deref(),
            state: &look.state,
            fields: &self.fields,
            desired: wish.as_ref(),
            node_sync_scheduled: matches!(look.state.backend_kind, Some(BackendKind::Nodes(_)))
                && self.node_sync_scheduled(&look.key),
            now: self.now(),
        };
        let step = plan(facts);
        tracing::trace!(service = %look.key, ?step, "decided");
        look.reason = step.reason(&look.state);
        if !look.reason.is_empty() {
            record_reason(look.reason);
        }
        // Finally, apply the action.
        match (step, wanted) {
            (ServiceAction::Forget, _) => Ok(SyncResult::Forget),
            (ServiceAction::Ignore, _) => {
                look.state.other_controller = wish.is_none();
                Ok(IDLE)
            }
            (ServiceAction::Wait { until }, _) => {
                // Earlier failures count as long as the attempt that failed is deferred.
                let held = look.state.deferred.is_some_and(|hold| hold.until > self.now());
                Ok(SyncResult::RequeueAt { until, resets_failures: !held })
            }
            (ServiceAction::ReportInvalid { mistakes }, _) => Ok(self.report_invalid(look, &mistakes)),
            (ServiceAction::Delete { then, announce }, _) => self.delete_load_balancer(look, then, announce).await,
            (ServiceAction::Ensure { depth, announce }, Some(wanted)) => {
                self.ensure(look, &wanted, depth, announce).await
            }
            (ServiceAction::UpdateBackends, Some(wanted)) => self.update_backends(look, &wanted).await,
            (ServiceAction::CheckDrift { drift }, Some(wanted)) => self.check_drift(look, &wanted, drift).await,
            (ServiceAction::RestoreStatus, Some(wanted)) => self.restore_status(look, &wanted).await,
            (
                ServiceAction::Ensure { .. }
                | ServiceAction::UpdateBackends
                | ServiceAction::CheckDrift { .. }
                | ServiceAction::RestoreStatus,
                None,
            ) => Ok(IDLE),
        }
    }

    /// Returns the Service if it is to be served.
    fn service_to_sync(&self, look: &ServiceSync) -> Option<Arc<ServiceView>> {
        let service = look.service.as_ref()?;
        (self.fields.is_managed(service) && look.state.uid == service.uid).then(|| service.clone())
    }

    /// Parses the Service and finds its backends.
    async fn interpret_spec(
        &self,
        look: &mut ServiceSync,
        service: Arc<ServiceView>,
    ) -> Result<(Option<DesiredState>, Option<DesiredService>), ServiceSyncError> {
        look.state.last_observed = Some(service.clone());
        let balancers =
            self.cloud.load_balancers().map_err(|error| ServiceSyncError::cloud(ServiceOperation::Ensure, error))?;
        let claim = balancers.interpret(&service);
        // Whichever process served the Service wrote the finalizer before its first cloud call.
        look.state.may_exist_in_cloud |=
            claim != ServiceInterpretation::ImplementedElsewhere && service.has_finalizer();
        let (backends, digest) = match claim {
            ServiceInterpretation::ImplementedElsewhere => return Ok((Some(DesiredState::ImplementedElsewhere), None)),
            ServiceInterpretation::Invalid(mistakes) => {
                let backends = balancers.backends_of_invalid(&service);
                return self.last_valid_service(look, service, mistakes, backends).await;
            }
            ServiceInterpretation::Valid { backends, digest } => (backends, digest),
        };
        let mistakes = balancers.supports().validate(&service);
        if !mistakes.is_empty() {
            return self.last_valid_service(look, service, mistakes, Some(backends)).await;
        }
        look.state.reported_invalid_digest = None;
        let wanted = self.desired_service(look, service, backends, digest).await?;
        let wish = DesiredState::Serve { digest, backends: wanted.backend_fingerprint };
        Ok((Some(wish), Some(wanted)))
    }

    /// Returns the desired state of an invalid Service: the state that its load balancer still serves, if any.
    /// `backends`: the kind of backends that the Service has as it is.
    async fn last_valid_service(
        &self,
        look: &mut ServiceSync,
        service: Arc<ServiceView>,
        mistakes: Vec<FieldError>,
        backends: Option<BackendKind>,
    ) -> Result<(Option<DesiredState>, Option<DesiredService>), ServiceSyncError> {
        let known = &look.state;
        let digest = invalid_digest(&mistakes);
        // Report the validation errors first, whatever happens to the backends.
        if known.reported_invalid_digest != Some(digest) {
            return Ok((Some(DesiredState::Invalid { errors: mistakes, served: None }), None));
        }
        // If this process served it, use that state, but with the current status, which decides whether the Service is
        // served.
        let is_applied = |served: &ServedAs| known.applied.is_some_and(|applied| applied.digest == served.digest);
        let served = known.served_as.clone().filter(|served| known.has_attempted && is_applied(served)).map(|served| {
            let service = ServiceView { status: service.status.clone(), ..(*served.service).clone() };
            ServedAs { service: Arc::new(service), ..served }
        });
        // Otherwise an earlier process may have finished it, of which only the Service and the load balancer are left.
        let found = || {
            let takes = backends.filter(|_| is_finished(&service, known, self.now()))?;
            Some(ServedAs { digest, service: service.clone(), takes })
        };
        let wanted = match served.or_else(found) {
            Some(served) => Some(self.desired_service(look, served.service, served.takes, served.digest).await?),
            None => None,
        };
        let served =
            wanted.as_ref().map(|wanted| Served { digest: wanted.digest, backends: wanted.backend_fingerprint });
        Ok((Some(DesiredState::Invalid { errors: mistakes, served }), wanted))
    }

    /// Builds the desired load balancer of a Service.
    async fn desired_service(
        &self,
        look: &mut ServiceSync,
        service: Arc<ServiceView>,
        takes: BackendKind,
        digest: Digest,
    ) -> Result<DesiredService, ServiceSyncError> {
        look.attempt = Some(Attempt::Serve(digest));
        // A Service with invalid source ranges is rejected: only its backends are updated, and no source is allowed.
        let sources = SourceRanges::of(&service).unwrap_or(SourceRanges::Only(Vec::new()));
        let (backends, fingerprint) = match &takes {
            BackendKind::Nodes(requirements) => {
                let set = self.backend_nodes.get(requirements).await.map_err(ServiceSyncError::StaleCache)?;
                (Backends::Nodes(set.nodes.clone()), set.fingerprint)
            }
            BackendKind::Endpoints => {
                let unknown = || ServiceSyncError::cloud(ServiceOperation::Ensure, CloudError::transient(NO_ENDPOINTS));
                let slices = match &self.slices {
                    Some(slices) => slices.for_service(&look.key).ok_or_else(unknown)?,
                    None => Vec::new(),
                };
                let fingerprint = endpoints_fingerprint(&slices);
                (Backends::Endpoints(slices), fingerprint)
            }
        };
        look.state.backend_kind = Some(takes);
        look.fingerprint = Some(fingerprint);
        let cluster = Arc::from(self.op.cluster_name());
        let spec = LbSpec { cluster, service: service.clone(), sources, backends };
        Ok(DesiredService { service, digest, backend_fingerprint: fingerprint, spec })
    }

    async fn ensure(
        &self,
        look: &mut ServiceSync,
        wanted: &DesiredService,
        depth: ReadMode,
        announce: bool,
    ) -> Result<SyncResult, ServiceSyncError> {
        look.operation = ServiceOperationKind::Ensure;
        // Before a load balancer of an earlier process is changed, confirm the nodes.
        let from_before = wanted.service.has_finalizer() || !wanted.service.status.ingress.is_empty();
        if from_before && !look.state.has_attempted && !self.confirm_start(look, wanted).await? {
            return Ok(SyncResult::RequeueNow);
        }
        // Then announce the attempt, and write the finalizer before the first cloud call.
        if announce {
            self.emit_event(look, EventType::Normal, "EnsuringLoadBalancer", "Ensuring load balancer");
            look.state.announced_attempt = Some(Attempt::Serve(wanted.digest));
            look.state.completion_event_due = true;
        }
        if !self.add_finalizer(look, &wanted.service).await? {
            return Ok(IDLE);
        }
        look.state.may_exist_in_cloud = true;
        self.report_no_backends(look, &wanted.spec);
        // Then ensure the load balancer, and record whether that failed.
        let outcome = self.cloud.ensure(self.op_for_service(look), &wanted.spec, depth).await?;
        look.state.applied = None;
        look.state.has_attempted = true;
        look.state.deleted = false;
        match &outcome.result {
            Ok(_) => (look.state.failed_ensures, look.state.followed) = (None, None),
            Err(error) => {
                let before = look.state.failed_ensures.filter(|(digest, _)| *digest == wanted.digest);
                let failures = before.map_or(1, |(_, failures)| failures.saturating_add(1));
                look.state.failed_ensures = Some((wanted.digest, failures));
                // If the backends are up to date, an update with other backends is deferred for less time.
                look.keeps_serving_old_spec = look.state.followed == Some((wanted.digest, wanted.backend_fingerprint));
                // Repeated transient failures; an error for which the cloud names a retry delay does not count.
                let fails_on = error.kind() == ErrorKind::Transient
                    && error.retry_after().is_none()
                    && failures >= MAX_ENSURE_FAILURES
                    && !look.keeps_serving_old_spec;
                if (fails_on || error.kind().is_rejection()) && !wanted.service.status.ingress.is_empty() {
                    self.update_backends_of_last_spec(look, wanted).await;
                }
            }
        }
        self.apply_outcome(look, wanted, outcome, ServiceOperation::Ensure).await
    }

    /// Updates the backends of the existing load balancer although the desired change is rejected, or fails repeatedly:
    /// it still serves, and its nodes come and go. The caller reports the failure of `ensure` and retries both.
    async fn update_backends_of_last_spec(&self, look: &mut ServiceSync, wanted: &DesiredService) {
        look.keeps_serving_old_spec = true;
        let outcome = self.cloud.update_backends(self.op_for_service(look), &wanted.spec).await;
        let done = matches!(outcome, Ok(LbOutcome { result: Ok(Progress::Done), .. }));
        look.state.followed = done.then_some((wanted.digest, wanted.backend_fingerprint));
        if let Ok(LbOutcome { result: Err(error), .. }) = outcome
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(service = %look.key, error = error.chain(), "backends not synced of a service whose load balancer cannot be changed");
        }
    }

    async fn update_backends(
        &self,
        look: &mut ServiceSync,
        wanted: &DesiredService,
    ) -> Result<SyncResult, ServiceSyncError> {
        look.operation = ServiceOperationKind::UpdateBackends;
        let hosts = match &wanted.spec.backends {
            Backends::Nodes(nodes) => node_names(nodes),
            Backends::Endpoints(slices) => slices.iter().map(|slice| slice.name.clone()).collect(),
        };
        // If nothing was applied yet, the load balancer is that of an earlier process: confirm the nodes first.
        if look.state.applied.is_none() {
            if !self.confirm_start(look, wanted).await? {
                return Ok(SyncResult::RequeueNow);
            }
            // No event for backends that an earlier process may have applied already. Once the Service is valid,
            // everything is compared.
            look.state.backends_event_at.get_or_insert(self.now());
            look.state.has_attempted = false;
        }
        self.report_no_backends(look, &wanted.spec);
        // Then update the backends. Until that succeeds, it is unknown which ones were applied.
        let started = Instant::now();
        let outcome = self.cloud.update_backends(self.op_for_service(look), &wanted.spec).await?;
        self.metrics.host_update.observe(started.elapsed().as_secs_f64());
        self.metrics.host_updates.inc();
        if let Some(applied) = &mut look.state.applied {
            applied.backend_fingerprint = None;
        }
        match &outcome.result {
            // An invalid Service gets no new load balancer. Try again later: a cloud may deny a load balancer that it
            // lists later.
            Err(error) if error.kind() == ErrorKind::NotFound && look.state.reported_invalid_digest.is_some() => {
                // Continue as after a restart. Once the Service is valid, everything is compared; this delay does not
                // apply to that.
                look.state.applied = None;
                look.state.has_attempted = false;
                look.attempt = look.state.reported_invalid_digest.map(Attempt::Serve);
                let now = self.now();
                let until = self.now() + GONE;
                look.defer(now, until, false);
                return Ok(SyncResult::RequeueAt { until: Some(until), resets_failures: true });
            }
            // Ensure the whole load balancer again.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                look.state.applied = None;
                return Ok(SyncResult::RequeueNow);
            }
            Err(_) => self.metrics.host_update_errors.inc(),
            Ok(_) => {}
        }
        self.apply_outcome(look, wanted, outcome, ServiceOperation::Update { hosts }).await
    }

    /// Confirms the nodes with the API server before a load balancer from before the start is changed. Returns whether
    /// the backends from `desired_service` are still those of the cache, which may have been filled meanwhile.
    async fn confirm_start(&self, look: &ServiceSync, wanted: &DesiredService) -> Result<bool, ServiceSyncError> {
        let Some(BackendKind::Nodes(requirements)) = &look.state.backend_kind else { return Ok(true) };
        self.backend_nodes.confirm_start().await.map_err(ServiceSyncError::StaleCache)?;
        Ok(self.backend_nodes.get(requirements).await.map_err(ServiceSyncError::StaleCache)?.fingerprint
            == wanted.backend_fingerprint)
    }

    /// Asks the provider what differs. Without differences the cloud is in the desired state, and nothing is written to
    /// it.
    async fn check_drift(
        &self,
        look: &mut ServiceSync,
        wanted: &DesiredService,
        drift: bool,
    ) -> Result<SyncResult, ServiceSyncError> {
        look.operation = ServiceOperationKind::CheckDrift;
        if !drift {
            // Do not compare again right after the nodes could not be confirmed.
            self.backend_nodes.check_doubt().map_err(ServiceSyncError::StaleCache)?;
        }
        let changes = match self.cloud.plan(self.op_for_service(look), &wanted.spec).await? {
            Ok(changes) => changes,
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => Vec::new(),
            // The provider cannot compare: ensure instead, which is idempotent.
            Err(error) if error.kind() == ErrorKind::NotImplemented => {
                return self.ensure(look, wanted, ReadMode::Fresh, false).await;
            }
            // The comparison would be rejected indefinitely. `ensure` also keeps the backends up to date.
            Err(error) if error.kind().is_rejection() && !drift => {
                return self.ensure(look, wanted, ReadMode::Fresh, true).await;
            }
            Err(error) => return Err(ServiceSyncError::cloud(ServiceOperation::Compare, error)),
        };
        // Log the differences and repair them. They count as drift if everything was in sync before.
        for change in &changes {
            let operation = &change.operation;
            let object = &change.object;
            let why = &change.reason;
            tracing::info!(service = %look.key, %operation, %object, %why, drift, "load balancer differs");
        }
        if !changes.is_empty() {
            if drift {
                look.reason = "drift";
                self.metrics.drift.inc_by(changes.len() as u64);
            }
            return self.ensure(look, wanted, ReadMode::Fresh, !drift).await;
        }
        // Without differences, record that the cloud is in the desired state.
        look.state.may_exist_in_cloud = true;
        look.state.has_attempted = true;
        look.state.desired_status.get_or_insert_with(|| wanted.service.status.clone());
        look.state.announced_attempt = Some(Attempt::Serve(wanted.digest));
        self.metrics.count(ServiceOperationKind::CheckDrift, ServiceOutcome::Done);
        Ok(self.mark_in_sync(look, wanted))
    }

    /// Publishes what a provider call returned, and handles its result.
    async fn apply_outcome(
        &self,
        look: &mut ServiceSync,
        wanted: &DesiredService,
        outcome: LbOutcome,
        doing: ServiceOperation,
    ) -> Result<SyncResult, ServiceSyncError> {
        let LbOutcome { status, annotations, result } = outcome;
        let finished = match &result {
            Ok(Progress::Done) => true,
            Err(error) => error.kind() == ErrorKind::ImplementedElsewhere,
            Ok(Progress::Pending { .. }) => false,
        };
        let next = finished.then(|| self.mark_in_sync(look, wanted));
        if let Some(status) = &status {
            look.state.desired_status = Some(status.clone());
        }
        look.state.desired_annotations.extend(annotations.clone());
        let service = look.service.clone().unwrap_or_else(|| wanted.service.clone());
        let published = self.publish_status(look, &service, status.as_ref(), &annotations).await;
        match result {
            Ok(Progress::Done) => published?,
            Err(error) if error.kind() == ErrorKind::ImplementedElsewhere => return Ok(next.unwrap_or(IDLE)),
            Err(error) => return Err(ServiceSyncError::cloud(doing, error)),
            Ok(Progress::Pending { after, why }) => {
                published?;
                tracing::debug!(service = %look.key, ?after, %why, "load balancer is on its way");
                return Ok(self.requeue_pending(look, after));
            }
        }
        self.metrics.count(look.operation, ServiceOutcome::Done);
        self.report_success(look, wanted, &doing);
        Ok(next.unwrap_or(IDLE))
    }

    /// Records that the cloud is in the desired state, and schedules the next drift check.
    fn mark_in_sync(&self, look: &mut ServiceSync, wanted: &DesiredService) -> SyncResult {
        let now = self.now();
        let verify_at = match look.state.applied {
            // An update of backends is no drift check.
            Some(applied)
                if applied.digest == wanted.digest && look.operation == ServiceOperationKind::UpdateBackends =>
            {
                applied.verify_at
            }
            _ => now + self.config.verify_period.mul_f64(rand::random_range(0.75..1.25)),
        };
        look.state.applied = Some(AppliedState {
            digest: wanted.digest,
            backend_fingerprint: Some(wanted.backend_fingerprint),
            verify_at,
        });
        look.state.served_as = look.state.backend_kind.clone().map(|takes| {
            let digest = wanted.digest;
            let service = wanted.service.clone();
            ServedAs { digest, service, takes }
        });
        look.state.deferred = None;
        look.state.pending_since = None;
        look.state.last_failure_event = None;
        SyncResult::RequeueAt { until: Some(verify_at), resets_failures: true }
    }

    fn requeue_pending(&self, look: &mut ServiceSync, after: Duration) -> SyncResult {
        let now = self.now();
        look.state.pending_since.get_or_insert(now);
        let until = now + after.clamp(*PENDING_DELAY.start(), *PENDING_DELAY.end());
        look.defer(now, until, false);
        self.metrics.count(look.operation, ServiceOutcome::Pending);
        look.reconcile_outcome = Reconciled::Pending;
        SyncResult::RequeueAt { until: Some(until), resets_failures: true }
    }

    fn op_for_service(&self, look: &ServiceSync) -> Op {
        let pending = look.state.pending_since.map_or(Duration::ZERO, |since| self.now().saturating_sub(since));
        let op = self.op.clone().with_pending_for(pending).with_reason(look.reason);
        match look.object() {
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

    /// Defers this attempt until `until`. With other backends it is deferred for less time: after an update of backends
    /// unless `all_backends`, after a drift check or a status write, and after an `ensure` if the backends are updated
    /// separately.
    fn defer(&mut self, now: Duration, until: Duration, all_backends: bool) {
        let waits_less = match self.operation {
            ServiceOperationKind::UpdateBackends => !all_backends,
            ServiceOperationKind::CheckDrift | ServiceOperationKind::PublishStatus => true,
            ServiceOperationKind::Ensure => self.keeps_serving_old_spec,
            ServiceOperationKind::Delete | ServiceOperationKind::Reject => false,
        };
        let backends = self.fingerprint.filter(|_| waits_less).map(|with| (now, with));
        self.state.deferred = self.attempt.map(|subject| DeferredAttempt { until, subject, backends });
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
