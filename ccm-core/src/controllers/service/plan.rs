//! What to do about one Service: a pure decision from what is seen and what is remembered.
//!
//! A cloud call costs time and money, so there is one only where something differs: the digest of the desired state from
//! the one last applied, the backends from those last applied, or a full check is due. What is remembered is memory
//! only; after a restart a Service that looks finished is first compared, not ensured.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    k8s::{LbIngress, LbStatus, ServiceFields, ServiceView},
    provider::{BackendKind, Digest, FieldError, ReadMode},
};

/// How long a write may take to come back through the watch. After that the cache is believed again, whatever its versions
/// say: etcd may have been restored from a backup.
const WATCH_CONFIRM_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an update of backends that was refused, or is not finished, holds back one with other backends: a node that
/// left must not wait for minutes because of one that joined.
const BACKEND_RETRY_DELAY: Duration = Duration::from_secs(30);
/// Least time between two repairs of what somebody else writes to a Service. Two controllers that both think that it is
/// theirs must not write by turns as fast as they can.
const MIN_RESTORE_INTERVAL: Duration = Duration::from_secs(30);

/// What this process knows about one Service beyond the cache.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each named where it is used")]
pub(crate) struct ServiceSyncState {
    /// UID that all of this is about; empty before the Service is looked at.
    pub(crate) uid: Box<str>,
    /// The Service as last seen, for the deletion of a balancer whose Service is gone.
    pub(crate) last_observed: Option<Arc<ServiceView>>,
    /// Whether the cloud may hold something for it. Set before the first call that could make something.
    pub(crate) may_exist_in_cloud: bool,
    /// Whether the cloud said that nothing is left of it: what remains is to take the finalizer off.
    pub(crate) deleted: bool,
    /// Whether it was last seen as another controller's, by its class.
    pub(crate) other_controller: bool,
    /// What the cloud was last brought to, if that is certain.
    pub(crate) applied: Option<AppliedState>,
    /// Whether `ensure` or a comparison was tried since it is known: it cannot be adopted without a question any more.
    pub(crate) has_attempted: bool,
    /// Of which desired state `ensure` has failed last, and how many times in a row.
    pub(crate) failed_ensures: Option<(Digest, u32)>,
    /// Desired state whose `ensure` fails, and fingerprint of the backends that were brought in line beside it.
    pub(crate) followed: Option<(Digest, u64)>,
    /// Nothing is tried about this before then.
    pub(crate) deferred: Option<DeferredAttempt>,
    /// Since when the cloud answers "not yet".
    pub(crate) pending_since: Option<Duration>,
    /// Status that should be on the Service.
    pub(crate) desired_status: Option<LbStatus>,
    /// Annotations that should be on it, or not.
    pub(crate) desired_annotations: BTreeMap<Box<str>, Option<Box<str>>>,
    /// When finalizer or status were last written again after somebody had changed them.
    pub(crate) restored_at: Option<Duration>,
    /// Status and annotations of our writes, until the cache shows them.
    pub(crate) unconfirmed: UnconfirmedWrites,
    /// Our last write, until the cache shows it.
    pub(crate) last_write: Option<LastWrite>,
    /// Desired state whose beginning the user was told, so that trying again tells nothing new.
    pub(crate) announced_attempt: Option<Attempt>,
    /// Whether the end of what was announced is still to be told.
    pub(crate) completion_event_due: bool,
    /// The last failure that the user was told: of what, event reason and kind.
    pub(crate) last_failure_event: Option<(Option<Attempt>, &'static str, &'static str)>,
    /// Whether the user was told that there is no backend.
    pub(crate) reported_no_backends: bool,
    /// When the user was last told of new backends, or of a balancer.
    pub(crate) backends_event_at: Option<Duration>,
    /// Remarks of the provider that were told.
    pub(crate) reported_notices: BTreeSet<Digest>,
    /// Which backends it takes, as last read.
    pub(crate) backend_kind: Option<BackendKind>,
    /// What was last refused, so that it is told once.
    pub(crate) reported_invalid_digest: Option<Digest>,
    /// The Service as it is served: until its owner mends one that is invalid now.
    pub(crate) served_as: Option<ServedAs>,
}

/// What was written to a Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct UnconfirmedWrites {
    pub(crate) status: Option<LbStatus>,
    pub(crate) annotations: BTreeMap<Box<str>, Option<Box<str>>>,
}

/// What the Service is since our last write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastWrite {
    /// Its resource version. What the cache shows is older as long as its own is less.
    pub(crate) version: u64,
    /// Whether it carries our finalizer.
    pub(crate) finalizer: bool,
    /// When it was made.
    pub(crate) at: Duration,
}

/// A state that the cloud was brought to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppliedState {
    /// Desired state without backends.
    pub(crate) digest: Digest,
    /// Fingerprint of the backends; `None` when the last attempt to change them failed, so that they are in doubt.
    pub(crate) backend_fingerprint: Option<u64>,
    /// When to compare with the cloud again.
    pub(crate) verify_at: Duration,
}

/// What an attempt is about: another one is not held back by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// To have a balancer of this digest.
    Serve(Digest),
    /// To have none. The digest is that of the annotations, of which one may be what keeps the balancer from being deleted.
    Delete(Digest),
}

impl Attempt {
    /// Makes the one of a deletion.
    pub(crate) fn plan_delete(service: Option<&ServiceView>, known: &ServiceSyncState, then: AfterDelete) -> Self {
        let seen = service.filter(|_| then == AfterDelete::RemoveFinalizer).or(known.last_observed.as_deref());
        Self::Delete(Digest::of(&seen.map(|service| &service.annotations)))
    }
}

/// Something that is not tried before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeferredAttempt {
    pub(crate) until: Duration,
    pub(crate) subject: Attempt,
    /// Of an update of backends: when it was tried, and with which.
    pub(crate) backends: Option<(Duration, u64)>,
}

/// What a Service wants, as the provider and the framework read it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DesiredState {
    /// Another controller serves it.
    ImplementedElsewhere,
    /// It cannot be served as it is. `served`: what its balancer from before is given meanwhile.
    Invalid { errors: Vec<FieldError>, served: Option<Served> },
    /// A balancer with this digest and these backends.
    Serve { digest: Digest, backends: u64 },
}

/// A state of a Service by which a load balancer is served.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServedAs {
    /// Identifies the state.
    pub(crate) digest: Digest,
    /// The Service in that state.
    pub(crate) service: Arc<ServiceView>,
    /// Which backends it takes then.
    pub(crate) takes: BackendKind,
}

/// What the balancer of a Service that is refused is given: the backends of today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// Identifies the state of the Service by which the backends are chosen.
    pub(crate) digest: Digest,
    /// Fingerprint of the backends.
    pub(crate) backends: u64,
}

/// Everything that decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanInput<'a> {
    /// The Service, unless it is gone.
    pub(crate) service: Option<&'a ServiceView>,
    pub(crate) state: &'a ServiceSyncState,
    /// Which classes are ours.
    pub(crate) fields: &'a ServiceFields,
    /// `None` where there is no Service of ours to be read.
    pub(crate) desired: Option<&'a DesiredState>,
    /// Whether changes of nodes are being brought together, and this Service will be put in line when that is done.
    pub(crate) node_sync_scheduled: bool,
    /// Time since the start of the controller.
    pub(crate) now: Duration,
}

/// What is to be done, so specific that doing it needs no choice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ServiceAction {
    /// Nothing, and nothing needs to be remembered.
    Forget,
    /// Nothing, ever: it is another controller's.
    Ignore,
    /// Nothing before then, unless something changes.
    Wait { until: Option<Duration> },
    /// Tell the user what is wrong.
    ReportInvalid { mistakes: Vec<FieldError> },
    /// Bring the cloud to the wished state. `announce`: tell the user that it begins.
    Ensure { depth: ReadMode, announce: bool },
    /// Bring the backends in line.
    UpdateBackends,
    /// Ask what differs; `drift`: differences are drift, since everything was in line before.
    CheckDrift { drift: bool },
    /// Write finalizer and status, which somebody changed, again.
    RestoreStatus,
    /// Delete the balancer, then do what `then` says.
    Delete { then: AfterDelete, announce: bool },
}

impl ServiceAction {
    /// Returns why it is done, in words; empty for what does nothing.
    pub(crate) fn reason(&self, known: &ServiceSyncState) -> &'static str {
        match self {
            Self::Forget | Self::Ignore | Self::Wait { .. } => "",
            Self::ReportInvalid { .. } => "service cannot be served as it is",
            Self::Ensure { .. } if known.applied.is_some() => "service changed",
            Self::Ensure { .. } if known.has_attempted => "load balancer is not finished",
            Self::Ensure { .. } => "service created",
            Self::UpdateBackends => match known.backend_kind {
                Some(BackendKind::Endpoints) => "endpoints changed",
                _ => "nodes changed",
            },
            Self::CheckDrift { drift: true } => "comparison is due",
            Self::CheckDrift { drift: false } => "first look",
            Self::RestoreStatus => "somebody changed the service",
            Self::Delete { then: AfterDelete::RemoveFinalizer, .. } => "load balancer is not wanted any more",
            Self::Delete { .. } => "service is gone",
        }
    }
}

/// What follows a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterDelete {
    /// The Service is gone: forget it.
    Forget,
    /// A namesake is there: look at it.
    Requeue,
    /// Take finalizer, status and our annotations off the Service.
    RemoveFinalizer,
}

/// Decides about one Service.
pub(crate) fn plan(facts: PlanInput<'_>) -> ServiceAction {
    let PlanInput { service, state: known, now, .. } = facts;
    let Some(service) = service else {
        return if known.may_exist_in_cloud { delete(facts, AfterDelete::Forget) } else { ServiceAction::Forget };
    };
    if known.may_exist_in_cloud && known.uid != service.uid {
        return delete(facts, AfterDelete::Requeue);
    }
    match service_ownership(service, known, facts.fields) {
        ServiceOwnership::OtherController => ServiceAction::Ignore,
        ServiceOwnership::Releasing if known.may_exist_in_cloud || has_finalizer(service, known, now) => {
            delete(facts, AfterDelete::RemoveFinalizer)
        }
        // Until the cache shows what we wrote, that is what is known.
        ServiceOwnership::Releasing if unconfirmed_write(service, known, now).is_some() => {
            ServiceAction::Wait { until: None }
        }
        ServiceOwnership::Releasing => ServiceAction::Forget,
        ServiceOwnership::Ours => match facts.desired {
            None => ServiceAction::Wait { until: None },
            Some(DesiredState::ImplementedElsewhere) => ServiceAction::Ignore,
            Some(DesiredState::Invalid { errors: mistakes, served }) => plan_invalid(facts, mistakes, *served),
            Some(DesiredState::Serve { digest, backends }) => plan_serve(facts, service, *digest, *backends),
        },
    }
}

/// What was served before goes on as it was, by this process or another: its nodes come and go all the same.
fn plan_invalid(facts: PlanInput<'_>, mistakes: &[FieldError], served: Option<Served>) -> ServiceAction {
    let PlanInput { state: known, .. } = facts;
    if known.reported_invalid_digest != Some(invalid_digest(mistakes)) {
        return ServiceAction::ReportInvalid { mistakes: mistakes.to_vec() };
    }
    let has = |served: &Served| {
        known.applied.is_some_and(|has| has.digest == served.digest && has.backend_fingerprint == Some(served.backends))
    };
    match served.filter(|served| !has(served)) {
        Some(served) => match deferred_until(facts, Attempt::Serve(served.digest), Some(served.backends)) {
            Some(until) => ServiceAction::Wait { until: Some(until) },
            None => ServiceAction::UpdateBackends,
        },
        None => ServiceAction::Wait { until: None },
    }
}

/// Identifies what is wrong with a Service.
pub(crate) fn invalid_digest(mistakes: &[FieldError]) -> Digest {
    Digest::of(&mistakes.iter().map(|m| (&*m.field, &*m.message)).collect::<Vec<_>>())
}

/// Whose business a Service is.
enum ServiceOwnership {
    OtherController,
    Ours,
    Releasing,
}

fn service_ownership(service: &ServiceView, known: &ServiceSyncState, fields: &ServiceFields) -> ServiceOwnership {
    let ours = fields.claims_class(service.class.as_deref());
    match (service.is_load_balancer, service.deleting) {
        // A class can only change together with the type: what was made before is given up.
        (true, _) if !ours && known.may_exist_in_cloud => ServiceOwnership::Releasing,
        (true, _) if !ours => ServiceOwnership::OtherController,
        (true, false) => ServiceOwnership::Ours,
        // The class goes with the type. What was another's before is still for that one to clean up.
        (false, _) if known.other_controller && !known.may_exist_in_cloud => ServiceOwnership::OtherController,
        (true, true) | (false, _) => ServiceOwnership::Releasing,
    }
}

fn delete(facts: PlanInput<'_>, then: AfterDelete) -> ServiceAction {
    match deferred_until(facts, Attempt::plan_delete(facts.service, facts.state, then), None) {
        Some(until) => ServiceAction::Wait { until: Some(until) },
        None => {
            ServiceAction::Delete { then, announce: !matches!(facts.state.announced_attempt, Some(Attempt::Delete(_))) }
        }
    }
}

fn plan_serve(facts: PlanInput<'_>, service: &ServiceView, digest: Digest, backends: u64) -> ServiceAction {
    let PlanInput { state: known, now, .. } = facts;
    if let Some(until) = deferred_until(facts, Attempt::Serve(digest), Some(backends)) {
        return ServiceAction::Wait { until: Some(until) };
    }
    let announce = known.announced_attempt != Some(Attempt::Serve(digest));
    // Without an attempt only backends were followed, of a Service that was invalid.
    let Some(applied) = known.applied.filter(|_| known.has_attempted) else {
        // Finished by an earlier process, as it seems: a question is enough if it is true.
        return if is_finished(service, known, now) && !known.has_attempted {
            ServiceAction::CheckDrift { drift: false }
        } else {
            ServiceAction::Ensure { depth: ReadMode::Fresh, announce }
        };
    };
    if applied.digest != digest {
        ServiceAction::Ensure { depth: ReadMode::Cached, announce }
    } else if applied.backend_fingerprint != Some(backends)
        && !(facts.node_sync_scheduled && applied.backend_fingerprint.is_some())
    {
        ServiceAction::UpdateBackends
    } else if applied.verify_at <= now {
        ServiceAction::CheckDrift { drift: true }
    } else if !has_finalizer(service, known, now) || !shows_desired_status(service, known, now) {
        match known.restored_at.map(|last| last + MIN_RESTORE_INTERVAL).filter(|next| *next > now) {
            None => ServiceAction::RestoreStatus,
            Some(next) => ServiceAction::Wait { until: Some(next) },
        }
    } else {
        ServiceAction::Wait { until: Some(applied.verify_at) }
    }
}

/// Tells whether a Service shows a load balancer that some process has finished.
pub(crate) fn is_finished(service: &ServiceView, known: &ServiceSyncState, now: Duration) -> bool {
    has_finalizer(service, known, now) && !service.status.ingress.is_empty()
}

/// Returns until when an attempt of this kind, with these backends, has to wait.
fn deferred_until(facts: PlanInput<'_>, subject: Attempt, backends: Option<u64>) -> Option<Duration> {
    let hold = facts.state.deferred.filter(|hold| hold.subject == subject)?;
    let until = match hold.backends {
        Some((tried, with)) if Some(with) != backends => hold.until.min(tried + BACKEND_RETRY_DELAY),
        _ => hold.until,
    };
    Some(until).filter(|until| *until > facts.now)
}

/// Returns our last write if the cache does not show it yet.
fn unconfirmed_write(service: &ServiceView, known: &ServiceSyncState, now: Duration) -> Option<LastWrite> {
    let seen = service.resource_version.parse::<u64>().ok()?;
    known.last_write.filter(|written| seen < written.version && now < written.at + WATCH_CONFIRM_TIMEOUT)
}

/// Returns the Service as it is since our last write, if the cache does not show that yet.
pub(crate) fn with_unconfirmed_write(
    service: &ServiceView,
    known: &ServiceSyncState,
    now: Duration,
) -> Option<ServiceView> {
    unconfirmed_write(service, known, now)?;
    let mut since = service.clone();
    since.status = known.unconfirmed.status.clone().unwrap_or(since.status);
    for (key, value) in &known.unconfirmed.annotations {
        match value {
            Some(value) => since.annotations.insert(Arc::from(&**key), Arc::from(&**value)),
            None => since.annotations.remove(&**key),
        };
    }
    Some(since)
}

/// Tells whether the Service carries our finalizer, as far as known.
pub(crate) fn has_finalizer(service: &ServiceView, known: &ServiceSyncState, now: Duration) -> bool {
    unconfirmed_write(service, known, now).map_or_else(|| service.has_finalizer(), |written| written.finalizer)
}

fn shows_desired_status(service: &ServiceView, known: &ServiceSyncState, now: Duration) -> bool {
    let is = |key: &str, value: Option<&str>| service.annotations.get(key).map(|v| &**v) == value;
    unconfirmed_write(service, known, now).is_some()
        || (known.desired_status.as_ref().is_none_or(|published| same_status(&service.status, published))
            && known.desired_annotations.iter().all(|(key, value)| is(key, value.as_deref())))
}

/// Compares two states as the API server would store them: it defaults `ipMode` to `VIP` where there is an address.
pub(crate) fn same_status(a: &LbStatus, b: &LbStatus) -> bool {
    let mode = |ingress: &LbIngress| match (&ingress.ip, &ingress.ip_mode) {
        (Some(_), None) => Some("VIP".to_owned()),
        (_, mode) => mode.as_deref().map(str::to_owned),
    };
    a.ingress.len() == b.ingress.len()
        && a.ingress
            .iter()
            .zip(&b.ingress)
            .all(|(a, b)| a.ip == b.ip && a.hostname == b.hostname && a.ports == b.ports && mode(a) == mode(b))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
