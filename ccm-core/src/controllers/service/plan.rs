//! Plans one Service: a pure function from desired state, observed state and sync state to an
//! action.
//!
//! Cloud calls are slow and rate limited. The cloud is therefore called only if the desired state
//! (by its digest) or the backends differ from those that were last applied, or if a drift check is
//! due. The sync state is kept in memory only, so after a restart a Service that looks finished is
//! first compared with the cloud, and ensured only if something differs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::condition::WrittenCondition;
use crate::{
    explain::AttemptRecord,
    k8s::{LbIngress, LbStatus, ServiceFields, ServiceView, well_known::ANNOTATION_RETAIN},
    provider::{BackendKind, Digest, FieldError, ReadMode, Retention},
};

/// The time within which the watch must deliver our own write. After that, the cache is trusted
/// even if its resource version is lower than that of the write, because etcd may have been
/// restored from a backup.
const WATCH_CONFIRM_TIMEOUT: Duration = Duration::from_secs(60);
/// The delay before other backends are tried after an update of backends was rejected, or while the
/// cloud is working on a change. A node that joined must not delay the removal of another node for
/// minutes.
const BACKEND_RETRY_DELAY: Duration = Duration::from_secs(30);
/// The minimum interval between two restores of what another client changed on a Service. If two
/// controllers both consider the Service theirs, they must not overwrite each other continuously.
const MIN_RESTORE_INTERVAL: Duration = Duration::from_secs(30);

/// The sync state of a Service, which this process remembers between syncs.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each named where it is used"
)]
pub(crate) struct ServiceSyncState {
    /// The UID of the Service that this describes; empty before the first sync.
    pub(crate) uid: Box<str>,
    /// The Service as last observed. It is needed to delete the load balancer after the Service
    /// itself is deleted.
    pub(crate) last_observed: Option<Arc<ServiceView>>,
    /// True if the cloud may have objects for the Service. Set before the first call that may
    /// create one.
    pub(crate) may_exist_in_cloud: bool,
    /// True once the load balancer is completely deleted, so that only the finalizer remains.
    pub(crate) deleted: bool,
    /// What the Service, when last observed, wanted to become of its load balancer.
    pub(crate) retention: Retention,
    /// True if another controller served the Service, by its class, when it was last observed.
    pub(crate) other_controller: bool,
    /// The desired state that was last applied to the cloud; `None` if that is uncertain.
    pub(crate) last_applied: Option<LastApplied>,
    /// True once this process has asked the cloud to ensure or delete the load balancer, with
    /// whatever result, or a drift check found no difference. Until then, a Service that looks finished is only compared with the cloud.
    pub(crate) has_attempted: bool,
    /// The consecutive failures of `ensure`; `None` if the last one succeeded.
    pub(crate) failed_ensures: Option<FailedEnsures>,
    /// The backends that were applied separately while `ensure` fails.
    pub(crate) backends_applied_despite_failure: Option<ServedBackends>,
    /// The goal that is deferred after a failure, or while the cloud is working on it.
    pub(crate) deferred: Option<DeferredGoal>,
    /// The time since which the cloud has reported the load balancer as pending.
    pub(crate) pending_since: Option<Duration>,
    /// The status that the Service should have.
    pub(crate) desired_status: Option<LbStatus>,
    /// The annotations that the Service should have; `None` for one that it should not have.
    pub(crate) desired_annotations: BTreeMap<Box<str>, Option<Box<str>>>,
    /// The time of the last restore of the finalizer or the status after another client had changed
    /// them.
    pub(crate) restored_at: Option<Duration>,
    /// The status and annotations that we wrote, until the cache shows them.
    pub(crate) unconfirmed: UnconfirmedWrites,
    /// Our last write, until the cache shows it.
    pub(crate) last_write: Option<LastWrite>,
    /// The goal whose start an event announced. A retry does not announce it again.
    pub(crate) announced_goal: Option<SyncGoal>,
    /// True until an event has reported that the announced goal is reached.
    pub(crate) completion_event_due: bool,
    /// The last attempt, if it failed or the cloud is still working on it. Only explanations read
    /// it.
    pub(crate) last_attempt: Option<Arc<AttemptRecord>>,
    /// The last failure that an event reported.
    pub(crate) last_failure_event: Option<ReportedFailure>,
    /// True once an event reported that there are no backends; false again when there are some.
    pub(crate) reported_no_backends: bool,
    /// The time of the last event about new backends or an ensured load balancer.
    pub(crate) backends_event_at: Option<Duration>,
    /// The provider's notices that events reported.
    pub(crate) reported_notices: BTreeSet<Digest>,
    /// The kind of backends that the Service had when it was last parsed.
    pub(crate) backend_kind: Option<BackendKind>,
    /// The digest of the validation errors that an event last reported.
    pub(crate) reported_invalid_digest: Option<Digest>,
    /// True if the last call of the provider said that another controller serves the Service.
    pub(crate) implemented_elsewhere: bool,
    /// What this process last wrote about our condition.
    pub(crate) written_condition: WrittenCondition,
    /// The change of our condition that the API server last rejected.
    pub(crate) rejected_condition: Option<WrittenCondition>,
    /// The spec that the load balancer serves. While the Service is invalid, this spec selects the
    /// backends.
    pub(crate) served_spec: Option<ServedSpec>,
}

impl ServiceSyncState {
    /// Records what the Service wants to become of its load balancer. The annotation of another
    /// Service of the same name says nothing about it, except in [`Self::retention_beside`].
    pub(crate) fn observe_retention(&mut self, service: Option<&ServiceView>) {
        if let Some(service) = service
            && (service.uid == self.uid || !self.may_exist_in_cloud)
        {
            self.retention = Retention::of(service);
        }
    }

    /// Returns what becomes of the load balancer while `service` has the name of its Service.
    /// `can_retain` says that the provider can keep load balancers.
    pub(crate) fn retention_beside(
        &self,
        service: Option<&ServiceView>,
        can_retain: bool,
    ) -> Retention {
        match service {
            Some(other) if self.may_exist_in_cloud && other.uid != self.uid => {
                self.retention.decided_by(other, can_retain)
            }
            _ => self.retention.clone(),
        }
    }
}

/// Consecutive failures of `ensure` with the same desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailedEnsures {
    /// The digest of the desired state.
    pub(crate) digest: Digest,
    pub(crate) count: u32,
}

/// A failure that an event reported. An equal failure is not reported again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportedFailure {
    pub(crate) goal: Option<SyncGoal>,
    pub(crate) event_reason: &'static str,
    pub(crate) error_kind: &'static str,
}

/// The status and annotations that were written to a Service and may not be in the cache yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct UnconfirmedWrites {
    pub(crate) status: Option<LbStatus>,
    pub(crate) annotations: BTreeMap<Box<str>, Option<Box<str>>>,
}

/// Our last write to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastWrite {
    /// The resource version of the write. While that of the cache is lower, the cache is older.
    pub(crate) version: u64,
    /// True if the Service has our finalizer after the write.
    pub(crate) finalizer: bool,
    /// The time of the write.
    pub(crate) at: Duration,
}

/// The desired state that was last applied to the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastApplied {
    /// The digest of the desired state without the backends.
    pub(crate) digest: Digest,
    /// The fingerprint of the backends; `None` if they are unknown because their last update did
    /// not succeed.
    pub(crate) backend_fingerprint: Option<u64>,
    /// The time of the next drift check.
    pub(crate) verify_at: Duration,
}

/// The goal that a sync works towards. A goal that fails is deferred, but a new goal is tried at
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncGoal {
    /// The load balancer matches the desired state with this digest.
    Serve(Digest),
    /// The load balancer is deleted. The digest is that of the Service's annotations, because a
    /// changed annotation may make the deletion possible.
    Delete(Digest),
}

impl SyncGoal {
    /// Returns the goal of deleting the load balancer of a Service.
    pub(crate) fn for_deletion(
        service: Option<&ServiceView>,
        state: &ServiceSyncState,
        follow_up: AfterDelete,
    ) -> Self {
        let mut described_by = state.last_observed.as_deref();
        if follow_up == AfterDelete::RemoveFinalizer && service.is_some() {
            described_by = service;
        }
        let annotations = described_by.map(|service| &service.annotations);
        // The annotation of another Service of this name may decide, too.
        let decision = (follow_up == AfterDelete::Requeue)
            .then(|| service.map(|successor| successor.annotation(ANNOTATION_RETAIN)));
        Self::Delete(Digest::of(&(annotations, decision)))
    }
}

/// A goal that must not be tried again before a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeferredGoal {
    pub(crate) until: Duration,
    pub(crate) goal: SyncGoal,
    /// The backends that were tried, if other backends are deferred for less time.
    pub(crate) backends: Option<DeferredBackends>,
}

/// The backends that were tried for a deferred goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeferredBackends {
    pub(crate) tried_at: Duration,
    pub(crate) fingerprint: u64,
}

/// The desired state of a Service, as the provider and the framework parse it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DesiredState {
    /// Another controller serves the Service.
    ImplementedElsewhere,
    /// The Service is invalid.
    Invalid {
        errors: Vec<FieldError>,
        /// The backends that its existing load balancer gets, if there is one.
        served: Option<ServedBackends>,
    },
    /// The Service should have a load balancer with this digest and these backends.
    Serve { digest: Digest, backends: u64 },
}

/// The spec of a Service that a load balancer serves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServedSpec {
    /// The digest of the spec.
    pub(crate) digest: Digest,
    /// The Service when it had this spec.
    pub(crate) service: Arc<ServiceView>,
    pub(crate) backend_kind: BackendKind,
}

/// The backends of a load balancer that keeps serving a spec because the current one cannot be
/// applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServedBackends {
    /// The digest of the spec that selects the backends.
    pub(crate) digest: Digest,
    pub(crate) fingerprint: u64,
}

/// The input of the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanInput<'a> {
    /// The Service; `None` if it no longer exists.
    pub(crate) service: Option<&'a ServiceView>,
    pub(crate) state: &'a ServiceSyncState,
    /// Selects the load-balancer classes that are ours.
    pub(crate) fields: &'a ServiceFields,
    /// `None` if there is no Service to serve: it does not exist, is being deleted, is not ours, or
    /// is another one of the same name.
    pub(crate) desired: Option<&'a DesiredState>,
    /// True while a node-change pass is scheduled that has not queued this Service yet.
    pub(crate) node_sync_scheduled: bool,
    /// The time since the start of the controller.
    pub(crate) now: Duration,
}

/// The action for a Service.
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
    /// Remove our condition from a Service that needs no load balancer and never had our finalizer.
    RemoveCondition,
    /// Delete the load balancer.
    Delete { follow_up: AfterDelete, start_event: StartEvent },
}

/// The action for a Service that should have a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServeAction {
    /// Apply the desired state to the cloud.
    Ensure { read_mode: ReadMode, start_event: StartEvent },
    /// Apply only the desired backends.
    UpdateBackends,
    /// Ask the provider for differences between the cloud and the desired state.
    CheckDrift(DriftCheck),
    /// Write finalizer and status again after another client changed them.
    RestoreStatus,
}

/// The reason for a drift check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriftCheck {
    /// The Service looks finished, but this process has not compared its load balancer yet, or has
    /// to compare it anew.
    First,
    /// The load balancer was in sync before, so differences count as drift.
    Periodic,
}

/// The decision whether an event announces the start of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartEvent {
    Emit,
    /// The goal was announced before, or the owner of the Service did not cause the action.
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
    /// Returns the reason for the action in words; empty if the action does nothing.
    pub(crate) fn reason(&self, state: &ServiceSyncState) -> &'static str {
        match self {
            Self::Forget | Self::Ignore | Self::Wait { .. } => "",
            Self::RemoveCondition => "condition is no longer needed",
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
            Self::Ensure { .. } if state.last_applied.is_some() => "service changed",
            Self::Ensure { .. } if state.has_attempted => "load balancer is not finished",
            Self::Ensure { .. } => "service created",
            Self::UpdateBackends => match state.backend_kind {
                Some(BackendKind::Endpoints) => "endpoints changed",
                _ => "nodes changed",
            },
            Self::CheckDrift(DriftCheck::First) => "first comparison with the cloud",
            Self::CheckDrift(DriftCheck::Periodic) => "comparison is due",
            Self::RestoreStatus => "another client changed the service",
        }
    }
}

/// The step that follows the deletion of a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterDelete {
    /// Forget the Service, which no longer exists.
    Forget,
    /// Sync the other Service that now has the same name.
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
        // The condition goes with the finalizer, if there is one. An invalid Service has none.
        ServiceOwnership::Releasing if service.own_condition.is_some() && !service.deleting => {
            ServiceAction::RemoveCondition
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

/// Plans an invalid Service. Its load balancer keeps serving the last valid spec, but its backends
/// still follow the nodes.
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
    // Update the backends if they differ from those that were last applied.
    let is_applied = state.last_applied.is_some_and(|applied| {
        applied.digest == served.digest && applied.backend_fingerprint == Some(served.fingerprint)
    });
    if is_applied {
        return ServiceAction::Wait { until: None };
    }
    match deferred_until(input, SyncGoal::Serve(served.digest), Some(served.fingerprint)) {
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

/// The controller that a Service belongs to.
enum ServiceOwnership {
    OtherController,
    Ours,
    /// This controller, until the load balancer is deleted.
    Releasing,
}

fn service_ownership(
    service: &ServiceView,
    state: &ServiceSyncState,
    fields: &ServiceFields,
) -> ServiceOwnership {
    if !service.is_load_balancer {
        // A Service that changes its type also loses its class. If another controller served the
        // Service before, that controller cleans up.
        if state.other_controller && !state.may_exist_in_cloud {
            return ServiceOwnership::OtherController;
        }
        return ServiceOwnership::Releasing;
    }
    if !fields.claims_class(service.class.as_deref()) {
        // A class can only change together with the type, so the Service had another type
        // meanwhile. Its load balancer from before that is still to be deleted.
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
    let goal = SyncGoal::for_deletion(input.service, input.state, follow_up);
    if let Some(until) = deferred_until(input, goal, None) {
        return ServiceAction::Wait { until: Some(until) };
    }
    let already_announced = matches!(input.state.announced_goal, Some(SyncGoal::Delete(_)));
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
    if let Some(until) = deferred_until(input, SyncGoal::Serve(digest), Some(backends)) {
        return ServiceAction::Wait { until: Some(until) };
    }
    // If an earlier process seems to have finished the load balancer, only compare it.
    if !state.has_attempted && is_finished(service, state, now) {
        return ServiceAction::Serve(ServeAction::CheckDrift(DriftCheck::First));
    }
    // Ensure the load balancer unless the desired state is applied already.
    let already_announced = state.announced_goal == Some(SyncGoal::Serve(digest));
    let ensure = |read_mode| {
        let start_event = StartEvent::unless(already_announced);
        ServiceAction::Serve(ServeAction::Ensure { read_mode, start_event })
    };
    // While the Service was invalid, only its backends were updated. That sets `last_applied` but
    // does not count as an attempt.
    if !state.has_attempted {
        return ensure(ReadMode::Fresh);
    }
    let Some(applied) = state.last_applied else {
        return ensure(ReadMode::Fresh);
    };
    if applied.digest != digest {
        return ensure(ReadMode::Cached);
    }
    // Update the backends, unless a pass over node changes will do so soon.
    let waits_for_node_sync = input.node_sync_scheduled && applied.backend_fingerprint.is_some();
    if applied.backend_fingerprint != Some(backends) && !waits_for_node_sync {
        return ServiceAction::Serve(ServeAction::UpdateBackends);
    }
    // If nothing changed, check for drift, both in the cloud and on the Service.
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

/// Returns true if the Service has our finalizer and an address, as it has once any process has
/// finished its load balancer.
pub(crate) fn is_finished(service: &ServiceView, state: &ServiceSyncState, now: Duration) -> bool {
    has_finalizer(service, state, now) && !service.status.ingress.is_empty()
}

/// Returns the spec that this process last applied, if that is certain. Its Service has the current
/// status, because the status shows whether the load balancer has an address.
pub(crate) fn last_served_spec(
    state: &ServiceSyncState,
    service: &ServiceView,
) -> Option<ServedSpec> {
    let served = state.served_spec.as_ref()?;
    let is_applied = state
        .last_applied
        .is_some_and(|applied| applied.digest == served.digest);
    if !state.has_attempted || !is_applied {
        return None;
    }
    let service = ServiceView { status: service.status.clone(), ..(*served.service).clone() };
    Some(ServedSpec { service: Arc::new(service), ..served.clone() })
}

/// Returns the time until which a goal is deferred with these backends; `None` if it is not
/// deferred.
fn deferred_until(input: PlanInput<'_>, goal: SyncGoal, backends: Option<u64>) -> Option<Duration> {
    let deferred = input
        .state
        .deferred
        .filter(|deferred| deferred.goal == goal)?;
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
    written.write_annotations(&state.unconfirmed.annotations);
    Some(written)
}

/// Returns true if the Service has our finalizer, according to our last write if the cache does not
/// show it yet, otherwise according to the cache.
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

/// Returns true if the Service has the desired status and annotations, or may have them as soon as
/// the cache shows our last write.
pub(crate) fn shows_desired_status(
    service: &ServiceView,
    state: &ServiceSyncState,
    now: Duration,
) -> bool {
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

/// Returns true if the API server would store both statuses alike. It defaults `ipMode` to `VIP`
/// where there is an IP address.
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
