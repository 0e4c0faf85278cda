//! Plans one Service: a pure function from desired state, observed state and sync state to an
//! action.
//!
//! A cloud call costs time and money. So the cloud is called only if the desired state (by its
//! digest) or the backends differ from those applied last, or if a drift check is due. The sync
//! state is kept in memory only. After a restart, a Service that looks finished is first compared
//! with the cloud, not ensured.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    k8s::{LbIngress, LbStatus, ServiceFields, ServiceView},
    provider::{BackendKind, Digest, FieldError, ReadMode},
};

/// How long a write may take to arrive through the watch. After that the cache is trusted again,
/// whatever its resource versions say: etcd may have been restored from a backup.
const WATCH_CONFIRM_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an update of backends that was rejected, or is not finished, defers an update with
/// other backends. The removal of a node that left must not wait for minutes because of a node that
/// joined.
const BACKEND_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Minimum interval between two repairs of what another client writes to a Service. Two controllers
/// that both consider it theirs must not overwrite each other as fast as they can.
const MIN_RESTORE_INTERVAL: Duration = Duration::from_secs(30);

/// What this process remembers about one Service between syncs, beyond the cache.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each named where it is used"
)]
pub(crate) struct ServiceSyncState {
    /// UID of the Service that this describes; empty before the first sync.
    pub(crate) uid: Box<str>,
    /// The Service as last observed, for the deletion of its load balancer after the Service is
    /// gone.
    pub(crate) last_observed: Option<Arc<ServiceView>>,
    /// True if the cloud may hold something for the Service. Set before the first call that could
    /// create something.
    pub(crate) may_exist_in_cloud: bool,
    /// True once the cloud reported that nothing is left of the load balancer. Only the finalizer
    /// remains to be removed.
    pub(crate) deleted: bool,
    /// True if the Service, when last observed, belonged to another controller by its class.
    pub(crate) other_controller: bool,
    /// What was last applied to the cloud, if that is certain.
    pub(crate) applied: Option<AppliedState>,
    /// True once the cloud was asked to ensure or delete the load balancer, or a drift check found
    /// no difference. Before that, a Service that looks finished is only compared with the cloud;
    /// afterwards it is ensured.
    pub(crate) has_attempted: bool,
    /// The failures of `ensure` in a row, if it failed last.
    pub(crate) failed_ensures: Option<FailedEnsures>,
    /// Desired state whose `ensure` fails, and the backends that were applied nevertheless.
    pub(crate) backends_applied_despite_failure: Option<ServedBackends>,
    /// An attempt that must not run before a time.
    pub(crate) deferred: Option<DeferredAttempt>,
    /// Since when the cloud reports the load balancer as pending.
    pub(crate) pending_since: Option<Duration>,
    /// Status that the Service should have.
    pub(crate) desired_status: Option<LbStatus>,
    /// Annotations that the Service should have; `None` for one that it should not have.
    pub(crate) desired_annotations: BTreeMap<Box<str>, Option<Box<str>>>,
    /// When finalizer or status were last restored after another client had changed them.
    pub(crate) restored_at: Option<Duration>,
    /// Status and annotations that we wrote, until the cache shows them.
    pub(crate) unconfirmed: UnconfirmedWrites,
    /// Our last write, until the cache shows it.
    pub(crate) last_write: Option<LastWrite>,
    /// Attempt whose start was reported by an event. Retries of it emit no further one.
    pub(crate) announced_attempt: Option<Attempt>,
    /// True while the event for the end of the announced attempt is still to be emitted.
    pub(crate) completion_event_due: bool,
    /// The last failure that was reported by an event.
    pub(crate) last_failure_event: Option<ReportedFailure>,
    /// True once an event reported that there are no backends; false again when there are some.
    pub(crate) reported_no_backends: bool,
    /// When an event last reported new backends, or an ensured load balancer.
    pub(crate) backends_event_at: Option<Duration>,
    /// Notices of the provider that were reported.
    pub(crate) reported_notices: BTreeSet<Digest>,
    /// Kind of backends that the Service has, as last parsed.
    pub(crate) backend_kind: Option<BackendKind>,
    /// Digest of the validation errors that were last reported, so that they are reported once.
    pub(crate) reported_invalid_digest: Option<Digest>,
    /// State of the Service that the load balancer serves. While the Service is invalid, the
    /// backends follow this state.
    pub(crate) served_state: Option<ServedState>,
}

/// Failures of `ensure` in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailedEnsures {
    /// Digest of the desired state.
    pub(crate) digest: Digest,
    pub(crate) count: u32,
}

/// A failure that an event reported, so that its repetition is not reported again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportedFailure {
    pub(crate) attempt: Option<Attempt>,
    pub(crate) event_reason: &'static str,
    pub(crate) error_kind: &'static str,
}

/// What was written to a Service and may not be in the cache yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct UnconfirmedWrites {
    pub(crate) status: Option<LbStatus>,
    pub(crate) annotations: BTreeMap<Box<str>, Option<Box<str>>>,
}

/// State of a Service after our last write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastWrite {
    /// Resource version of the write. The cache is older as long as its own version is lower.
    pub(crate) version: u64,
    /// True if the Service has our finalizer after the write.
    pub(crate) finalizer: bool,
    /// When the write was made.
    pub(crate) at: Duration,
}

/// A state that was applied to the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppliedState {
    /// Desired state without backends.
    pub(crate) digest: Digest,
    /// Fingerprint of the backends; `None` if the last attempt to change them did not succeed, so
    /// that they are unknown.
    pub(crate) backend_fingerprint: Option<u64>,
    /// When the next drift check is due.
    pub(crate) verify_at: Duration,
}

/// What an attempt is about. Deferring one attempt does not defer another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// To have a load balancer with this digest.
    Serve(Digest),
    /// To have none. The digest is that of the annotations, because one of them may be what
    /// prevents the deletion.
    Delete(Digest),
}

impl Attempt {
    /// Makes the attempt of a deletion.
    pub(crate) fn for_delete(
        service: Option<&ServiceView>,
        state: &ServiceSyncState,
        follow_up: AfterDelete,
    ) -> Self {
        let mut described_by = state.last_observed.as_deref();
        if follow_up == AfterDelete::RemoveFinalizer && service.is_some() {
            described_by = service;
        }
        Self::Delete(Digest::of(&described_by.map(|service| &service.annotations)))
    }
}

/// An attempt that must not run before a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeferredAttempt {
    pub(crate) until: Duration,
    pub(crate) subject: Attempt,
    /// The backends of the attempt, if it is deferred for less time with other ones.
    pub(crate) backends: Option<DeferredBackends>,
}

/// The backends with which an attempt ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeferredBackends {
    /// When the attempt ran.
    pub(crate) tried_at: Duration,
    pub(crate) fingerprint: u64,
}

/// Desired state of a Service, as the provider and the framework parse it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DesiredState {
    /// Another controller serves it.
    ImplementedElsewhere,
    /// It is invalid. `served`: what its existing load balancer gets meanwhile.
    Invalid { errors: Vec<FieldError>, served: Option<ServedBackends> },
    /// A load balancer with this digest and these backends.
    Serve { digest: Digest, backends: u64 },
}

/// A state of a Service that a load balancer serves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServedState {
    /// Identifies the state.
    pub(crate) digest: Digest,
    /// The Service in that state.
    pub(crate) service: Arc<ServiceView>,
    /// Kind of backends in that state.
    pub(crate) backend_kind: BackendKind,
}

/// Backends that a load balancer gets although the Service as it is now cannot be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServedBackends {
    /// Identifies the state of the Service that selects the backends.
    pub(crate) digest: Digest,
    /// Fingerprint of the backends.
    pub(crate) fingerprint: u64,
}

/// Everything that the plan depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanInput<'a> {
    /// The Service; `None` if it no longer exists.
    pub(crate) service: Option<&'a ServiceView>,
    pub(crate) state: &'a ServiceSyncState,
    /// Says which load-balancer classes are ours.
    pub(crate) fields: &'a ServiceFields,
    /// `None` if there is no Service of ours to parse.
    pub(crate) desired: Option<&'a DesiredState>,
    /// True while a node-change pass is scheduled that has not queued this Service yet.
    pub(crate) node_sync_scheduled: bool,
    /// Time since the start of the controller.
    pub(crate) now: Duration,
}

/// What to do about a Service, so specific that no choice is left.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ServiceAction {
    /// Do nothing, and forget the sync state.
    Forget,
    /// Do nothing: the Service belongs to another controller.
    Ignore,
    /// Do nothing before `until`, unless something changes.
    Wait { until: Option<Duration> },
    /// Report the validation errors to the user.
    ReportInvalid { errors: Vec<FieldError> },
    /// Apply the desired load balancer.
    Serve(ServeAction),
    /// Delete the load balancer.
    Delete { follow_up: AfterDelete, start_event: StartEvent },
}

/// What to do about the load balancer of a Service that should have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServeAction {
    /// Apply the desired state to the cloud.
    Ensure { read_mode: ReadMode, start_event: StartEvent },
    /// Apply the desired backends.
    UpdateBackends,
    /// Ask the provider what differs.
    CheckDrift(DriftCheck),
    /// Write finalizer and status again, which another client changed.
    RestoreStatus,
}

/// Why a load balancer is compared with the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriftCheck {
    /// An earlier process seems to have finished it.
    AfterStart,
    /// It was in sync before, so differences count as drift.
    Periodic,
}

/// Whether an event reports the start of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartEvent {
    Emit,
    /// The attempt was announced before, or is no news to the owner.
    Skip,
}

impl StartEvent {
    fn unless(already_announced: bool) -> Self {
        if already_announced {
            Self::Skip
        } else {
            Self::Emit
        }
    }
}

impl ServiceAction {
    /// Returns the reason for the action in words; empty if it does nothing.
    pub(crate) fn reason(&self, state: &ServiceSyncState) -> &'static str {
        match self {
            Self::Forget | Self::Ignore | Self::Wait { .. } => "",
            Self::ReportInvalid { .. } => "service cannot be served as it is",
            Self::Serve(action) => action.reason(state),
            Self::Delete { follow_up: AfterDelete::RemoveFinalizer, .. } => {
                "load balancer is no longer needed"
            }
            Self::Delete { .. } => "service was deleted",
        }
    }
}

impl ServeAction {
    fn reason(self, state: &ServiceSyncState) -> &'static str {
        match self {
            Self::Ensure { .. } if state.applied.is_some() => "service changed",
            Self::Ensure { .. } if state.has_attempted => "load balancer is not finished",
            Self::Ensure { .. } => "service created",
            Self::UpdateBackends => match state.backend_kind {
                Some(BackendKind::Endpoints) => "endpoints changed",
                _ => "nodes changed",
            },
            Self::CheckDrift(DriftCheck::AfterStart) => "first comparison after the start",
            Self::CheckDrift(DriftCheck::Periodic) => "comparison is due",
            Self::RestoreStatus => "another client changed the service",
        }
    }
}

/// What follows a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterDelete {
    /// The Service no longer exists: forget it.
    Forget,
    /// Another Service with the same name exists: sync it.
    Requeue,
    /// Remove finalizer, status and our annotations from the Service.
    RemoveFinalizer,
}

/// Plans one Service.
pub(crate) fn plan(input: PlanInput<'_>) -> ServiceAction {
    let PlanInput { service, state, now, .. } = input;
    let Some(service) = service else {
        return if state.may_exist_in_cloud {
            delete(input, AfterDelete::Forget)
        } else {
            ServiceAction::Forget
        };
    };
    if state.may_exist_in_cloud && state.uid != service.uid {
        return delete(input, AfterDelete::Requeue);
    }
    match service_ownership(service, state, input.fields) {
        ServiceOwnership::OtherController => ServiceAction::Ignore,
        ServiceOwnership::Releasing
            if state.may_exist_in_cloud || has_finalizer(service, state, now) =>
        {
            delete(input, AfterDelete::RemoveFinalizer)
        }
        // The finalizer is removed, but the cache does not show that yet. Keep the sync state until
        // it does.
        ServiceOwnership::Releasing if unconfirmed_write(service, state, now).is_some() => {
            ServiceAction::Wait { until: None }
        }
        ServiceOwnership::Releasing => ServiceAction::Forget,
        ServiceOwnership::Ours => match input.desired {
            None => ServiceAction::Wait { until: None },
            Some(DesiredState::ImplementedElsewhere) => ServiceAction::Ignore,
            Some(DesiredState::Invalid { errors, served }) => plan_invalid(input, errors, *served),
            Some(DesiredState::Serve { digest, backends }) => {
                plan_serve(input, service, *digest, *backends)
            }
        },
    }
}

/// Plans an invalid Service. Its load balancer, made by this or an earlier process, keeps serving
/// the last state, but its backends still follow the nodes.
fn plan_invalid(
    input: PlanInput<'_>,
    errors: &[FieldError],
    served: Option<ServedBackends>,
) -> ServiceAction {
    let state = input.state;
    if state.reported_invalid_digest != Some(invalid_digest(errors)) {
        return ServiceAction::ReportInvalid { errors: errors.to_vec() };
    }
    let Some(served) = served else {
        return ServiceAction::Wait { until: None };
    };
    let is_applied = state.applied.is_some_and(|applied| {
        applied.digest == served.digest && applied.backend_fingerprint == Some(served.fingerprint)
    });
    if is_applied {
        return ServiceAction::Wait { until: None };
    }
    match deferred_until(input, Attempt::Serve(served.digest), Some(served.fingerprint)) {
        Some(until) => ServiceAction::Wait { until: Some(until) },
        None => ServiceAction::Serve(ServeAction::UpdateBackends),
    }
}

/// Returns a digest of the validation errors of a Service.
pub(crate) fn invalid_digest(errors: &[FieldError]) -> Digest {
    Digest::of(
        &errors
            .iter()
            .map(|error| (&*error.field, &*error.message))
            .collect::<Vec<_>>(),
    )
}

/// Which controller a Service belongs to.
enum ServiceOwnership {
    OtherController,
    Ours,
    /// It was ours, and its load balancer is to be deleted.
    Releasing,
}

fn service_ownership(
    service: &ServiceView,
    state: &ServiceSyncState,
    fields: &ServiceFields,
) -> ServiceOwnership {
    if !service.is_load_balancer {
        // The class is removed with the type. If another controller served the Service before, that
        // one cleans up.
        if state.other_controller && !state.may_exist_in_cloud {
            return ServiceOwnership::OtherController;
        }
        return ServiceOwnership::Releasing;
    }
    if !fields.claims_class(service.class.as_deref()) {
        // A class can only change together with the type. So release what was made before that.
        if state.may_exist_in_cloud {
            return ServiceOwnership::Releasing;
        }
        return ServiceOwnership::OtherController;
    }
    if service.deleting {
        ServiceOwnership::Releasing
    } else {
        ServiceOwnership::Ours
    }
}

fn delete(input: PlanInput<'_>, follow_up: AfterDelete) -> ServiceAction {
    let attempt = Attempt::for_delete(input.service, input.state, follow_up);
    if let Some(until) = deferred_until(input, attempt, None) {
        return ServiceAction::Wait { until: Some(until) };
    }
    let already_announced = matches!(input.state.announced_attempt, Some(Attempt::Delete(_)));
    ServiceAction::Delete {
        follow_up,
        start_event: StartEvent::unless(already_announced),
    }
}

fn plan_serve(
    input: PlanInput<'_>,
    service: &ServiceView,
    digest: Digest,
    backends: u64,
) -> ServiceAction {
    let PlanInput { state, now, .. } = input;
    if let Some(until) = deferred_until(input, Attempt::Serve(digest), Some(backends)) {
        return ServiceAction::Wait { until: Some(until) };
    }
    // If an earlier process seems to have finished it, a drift check is enough to confirm that.
    if !state.has_attempted && is_finished(service, state, now) {
        return ServiceAction::Serve(ServeAction::CheckDrift(DriftCheck::AfterStart));
    }
    let already_announced = state.announced_attempt == Some(Attempt::Serve(digest));
    let ensure = |read_mode| {
        let start_event = StartEvent::unless(already_announced);
        ServiceAction::Serve(ServeAction::Ensure { read_mode, start_event })
    };
    // Without an attempt, only the backends of an invalid Service were applied.
    if !state.has_attempted {
        return ensure(ReadMode::Fresh);
    }
    let Some(applied) = state.applied else {
        return ensure(ReadMode::Fresh);
    };
    if applied.digest != digest {
        return ensure(ReadMode::Cached);
    }
    if applied.backend_fingerprint != Some(backends)
        && !(input.node_sync_scheduled && applied.backend_fingerprint.is_some())
    {
        return ServiceAction::Serve(ServeAction::UpdateBackends);
    }
    if applied.verify_at <= now {
        return ServiceAction::Serve(ServeAction::CheckDrift(DriftCheck::Periodic));
    }
    if has_finalizer(service, state, now) && shows_desired_status(service, state, now) {
        return ServiceAction::Wait { until: Some(applied.verify_at) };
    }
    match state.restored_at {
        Some(last) if last + MIN_RESTORE_INTERVAL > now => {
            ServiceAction::Wait { until: Some(last + MIN_RESTORE_INTERVAL) }
        }
        _ => ServiceAction::Serve(ServeAction::RestoreStatus),
    }
}

/// Tells whether the Service shows a load balancer that some process has finished: our finalizer
/// and an address.
pub(crate) fn is_finished(service: &ServiceView, state: &ServiceSyncState, now: Duration) -> bool {
    has_finalizer(service, state, now) && !service.status.ingress.is_empty()
}

/// Returns the state that this process applied, with the current status, which decides whether the
/// Service is served.
pub(crate) fn served_by_this_process(
    state: &ServiceSyncState,
    service: &ServiceView,
) -> Option<ServedState> {
    let served = state.served_state.as_ref()?;
    let is_applied = state
        .applied
        .is_some_and(|applied| applied.digest == served.digest);
    if !state.has_attempted || !is_applied {
        return None;
    }
    let service = ServiceView { status: service.status.clone(), ..(*served.service).clone() };
    Some(ServedState { service: Arc::new(service), ..served.clone() })
}

/// Returns until when this attempt, with these backends, is deferred.
fn deferred_until(
    input: PlanInput<'_>,
    subject: Attempt,
    backends: Option<u64>,
) -> Option<Duration> {
    let deferred = input
        .state
        .deferred
        .filter(|deferred| deferred.subject == subject)?;
    let mut until = deferred.until;
    if let Some(tried) = deferred.backends
        && Some(tried.fingerprint) != backends
    {
        until = until.min(tried.tried_at + BACKEND_RETRY_DELAY);
    }
    (until > input.now).then_some(until)
}

/// Returns our last write if the cache does not show it yet.
fn unconfirmed_write(
    service: &ServiceView,
    state: &ServiceSyncState,
    now: Duration,
) -> Option<LastWrite> {
    let cached_version = service.resource_version.parse::<u64>().ok()?;
    state
        .last_write
        .filter(|write| cached_version < write.version && now < write.at + WATCH_CONFIRM_TIMEOUT)
}

/// Returns the Service with our last write applied, if the cache does not show that write yet.
pub(crate) fn with_unconfirmed_write(
    service: &ServiceView,
    state: &ServiceSyncState,
    now: Duration,
) -> Option<ServiceView> {
    unconfirmed_write(service, state, now)?;
    let mut written = service.clone();
    if let Some(status) = &state.unconfirmed.status {
        written.status = status.clone();
    }
    for (key, value) in &state.unconfirmed.annotations {
        if let Some(value) = value {
            written
                .annotations
                .insert(Arc::from(&**key), Arc::from(&**value));
        } else {
            written.annotations.remove(&**key);
        }
    }
    Some(written)
}

/// Tells whether the Service has our finalizer, according to our last write or the cache.
pub(crate) fn has_finalizer(
    service: &ServiceView,
    state: &ServiceSyncState,
    now: Duration,
) -> bool {
    match unconfirmed_write(service, state, now) {
        Some(write) => write.finalizer,
        None => service.has_finalizer(),
    }
}

/// Tells whether the Service has the desired status and annotations, or may have them as soon as
/// the cache shows our last write.
fn shows_desired_status(service: &ServiceView, state: &ServiceSyncState, now: Duration) -> bool {
    if unconfirmed_write(service, state, now).is_some() {
        return true;
    }
    if let Some(status) = &state.desired_status
        && !same_status(&service.status, status)
    {
        return false;
    }
    state
        .desired_annotations
        .iter()
        .all(|(key, value)| service.annotations.get(&**key).map(|v| &**v) == value.as_deref())
}

/// Compares two statuses as the API server would store them: it defaults `ipMode` to `VIP` where
/// there is an IP address.
pub(crate) fn same_status(a: &LbStatus, b: &LbStatus) -> bool {
    a.ingress.len() == b.ingress.len()
        && a.ingress
            .iter()
            .zip(&b.ingress)
            .all(|(a, b)| same_ingress(a, b))
}

fn same_ingress(a: &LbIngress, b: &LbIngress) -> bool {
    a.ip == b.ip
        && a.hostname == b.hostname
        && a.ports == b.ports
        && stored_ip_mode(a) == stored_ip_mode(b)
}

fn stored_ip_mode(ingress: &LbIngress) -> Option<&str> {
    if ingress.ip.is_some() && ingress.ip_mode.is_none() {
        return Some("VIP");
    }
    ingress.ip_mode.as_deref()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
