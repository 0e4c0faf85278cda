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
    provider::{Backends, Depth, Digest, InvalidInput},
};

/// How long a write may take to come back through the watch. After that the cache is believed again, whatever its versions
/// say: etcd may have been restored from a backup.
const ECHO_PATIENCE: Duration = Duration::from_secs(60);
/// How long an update of backends that was refused, or is not finished, holds back one with other backends: a node that
/// left must not wait for minutes because of one that joined.
const BACKENDS_PATIENCE: Duration = Duration::from_secs(30);
/// Least time between two repairs of what somebody else writes to a Service. Two controllers that both think that it is
/// theirs must not write by turns as fast as they can.
const REPAIR_GAP: Duration = Duration::from_secs(30);

/// What this process knows about one Service beyond the cache.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each named where it is used")]
pub(crate) struct Known {
    /// UID that all of this is about; empty before the Service is looked at.
    pub(crate) uid: Box<str>,
    /// The Service as last seen, for the deletion of a balancer whose Service is gone.
    pub(crate) last_seen: Option<Arc<ServiceView>>,
    /// Whether the cloud may hold something for it. Set before the first call that could make something.
    pub(crate) may_exist: bool,
    /// Whether the cloud said that nothing is left of it: what remains is to take the finalizer off.
    pub(crate) deleted: bool,
    /// Whether it was last seen as another controller's, by its class.
    pub(crate) foreign: bool,
    /// What the cloud was last brought to, if that is certain.
    pub(crate) applied: Option<Applied>,
    /// Whether `ensure` or a comparison was tried since it is known: it cannot be adopted without a question any more.
    pub(crate) attempted: bool,
    /// Of which desired state `ensure` has failed last, and how many times in a row.
    pub(crate) failed_ensures: Option<(Digest, u32)>,
    /// Desired state whose `ensure` fails, and fingerprint of the backends that were brought in line beside it.
    pub(crate) followed: Option<(Digest, u64)>,
    /// Nothing is tried about this before then.
    pub(crate) hold: Option<Hold>,
    /// Since when the cloud answers "not yet".
    pub(crate) pending_since: Option<Duration>,
    /// Status that should be on the Service.
    pub(crate) published: Option<LbStatus>,
    /// Annotations that should be on it, or not.
    pub(crate) annotations: BTreeMap<Box<str>, Option<Box<str>>>,
    /// When finalizer or status were last written again after somebody had changed them.
    pub(crate) repaired_at: Option<Duration>,
    /// Status and annotations of our writes, until the cache shows them.
    pub(crate) sent: Sent,
    /// Our last write, until the cache shows it.
    pub(crate) written: Option<Written>,
    /// Desired state whose beginning the user was told, so that trying again tells nothing new.
    pub(crate) announced: Option<Subject>,
    /// Whether the end of what was announced is still to be told.
    pub(crate) unfinished: bool,
    /// The last failure that the user was told: of what, event reason and kind.
    pub(crate) told: Option<(Option<Subject>, &'static str, &'static str)>,
    /// Whether the user was told that there is no backend.
    pub(crate) told_empty: bool,
    /// When the user was last told of new backends, or of a balancer.
    pub(crate) told_backends: Option<Duration>,
    /// Remarks of the provider that were told.
    pub(crate) remarked: BTreeSet<Digest>,
    /// Which backends it takes, as last read.
    pub(crate) takes: Option<Backends>,
    /// What was last refused, so that it is told once.
    pub(crate) refused: Option<Digest>,
    /// The Service as it is served: until its owner mends one that is invalid now.
    pub(crate) served_as: Option<ServedAs>,
}

/// What was written to a Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sent {
    pub(crate) status: Option<LbStatus>,
    pub(crate) annotations: BTreeMap<Box<str>, Option<Box<str>>>,
}

/// What the Service is since our last write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Its resource version. What the cache shows is older as long as its own is less.
    pub(crate) version: u64,
    /// Whether it carries our finalizer.
    pub(crate) finalizer: bool,
    /// When it was made.
    pub(crate) at: Duration,
}

/// A state that the cloud was brought to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    /// Desired state without backends.
    pub(crate) digest: Digest,
    /// Fingerprint of the backends; `None` when the last attempt to change them failed, so that they are in doubt.
    pub(crate) backends: Option<u64>,
    /// When to compare with the cloud again.
    pub(crate) verify_at: Duration,
}

/// What an attempt is about: another one is not held back by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// To have a balancer of this digest.
    Serve(Digest),
    /// To have none. The digest is that of the annotations, of which one may be what keeps the balancer from being deleted.
    Delete(Digest),
}

impl Subject {
    /// Makes the one of a deletion.
    pub(crate) fn delete(service: Option<&ServiceView>, known: &Known, then: Then) -> Self {
        let seen = service.filter(|_| then == Then::Release).or(known.last_seen.as_deref());
        Self::Delete(Digest::of(&seen.map(|service| &service.annotations)))
    }
}

/// Something that is not tried before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) until: Duration,
    pub(crate) subject: Subject,
    /// Of an update of backends: when it was tried, and with which.
    pub(crate) backends: Option<(Duration, u64)>,
}

/// What a Service wants, as the provider and the framework read it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wish {
    /// Another controller serves it.
    Elsewhere,
    /// It cannot be served as it is. `served`: what its balancer from before is given meanwhile.
    Refused { mistakes: Vec<InvalidInput>, served: Option<Served> },
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
    pub(crate) takes: Backends,
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
pub(crate) struct Facts<'a> {
    /// The Service, unless it is gone.
    pub(crate) service: Option<&'a ServiceView>,
    pub(crate) known: &'a Known,
    /// Which classes are ours.
    pub(crate) fields: &'a ServiceFields,
    /// `None` where there is no Service of ours to be read.
    pub(crate) wish: Option<&'a Wish>,
    /// Whether changes of nodes are being brought together, and this Service will be put in line when that is done.
    pub(crate) pass_awaited: bool,
    /// Time since the start of the controller.
    pub(crate) now: Duration,
}

/// What is to be done, so specific that doing it needs no choice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing, and nothing needs to be remembered.
    Forget,
    /// Nothing, ever: it is another controller's.
    LeaveAlone,
    /// Nothing before then, unless something changes.
    Rest { until: Option<Duration> },
    /// Tell the user what is wrong.
    Refuse { mistakes: Vec<InvalidInput> },
    /// Bring the cloud to the wished state. `announce`: tell the user that it begins.
    Ensure { depth: Depth, announce: bool },
    /// Bring the backends in line.
    UpdateBackends,
    /// Ask what differs; `drift`: differences are drift, since everything was in line before.
    Compare { drift: bool },
    /// Write finalizer and status, which somebody changed, again.
    Publish,
    /// Delete the balancer, then do what `then` says.
    Delete { then: Then, announce: bool },
}

impl Step {
    /// Returns why it is done, in words; empty for what does nothing.
    pub(crate) fn reason(&self, known: &Known) -> &'static str {
        match self {
            Self::Forget | Self::LeaveAlone | Self::Rest { .. } => "",
            Self::Refuse { .. } => "service cannot be served as it is",
            Self::Ensure { .. } if known.applied.is_some() => "service changed",
            Self::Ensure { .. } if known.attempted => "load balancer is not finished",
            Self::Ensure { .. } => "service created",
            Self::UpdateBackends => match known.takes {
                Some(Backends::Endpoints) => "endpoints changed",
                _ => "nodes changed",
            },
            Self::Compare { drift: true } => "comparison is due",
            Self::Compare { drift: false } => "first look",
            Self::Publish => "somebody changed the service",
            Self::Delete { then: Then::Release, .. } => "load balancer is not wanted any more",
            Self::Delete { .. } => "service is gone",
        }
    }
}

/// What follows a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The Service is gone: forget it.
    Forget,
    /// A namesake is there: look at it.
    LookAgain,
    /// Take finalizer, status and our annotations off the Service.
    Release,
}

/// Decides about one Service.
pub(crate) fn decide(facts: Facts<'_>) -> Step {
    let Facts { service, known, now, .. } = facts;
    let Some(service) = service else {
        return if known.may_exist { delete(facts, Then::Forget) } else { Step::Forget };
    };
    if known.may_exist && known.uid != service.uid {
        return delete(facts, Then::LookAgain);
    }
    match standing(service, known, facts.fields) {
        Standing::Foreign => Step::LeaveAlone,
        Standing::Leaving if known.may_exist || has_finalizer(service, known, now) => delete(facts, Then::Release),
        // Until the cache shows what we wrote, that is what is known.
        Standing::Leaving if unseen(service, known, now).is_some() => Step::Rest { until: None },
        Standing::Leaving => Step::Forget,
        Standing::Wanted => match facts.wish {
            None => Step::Rest { until: None },
            Some(Wish::Elsewhere) => Step::LeaveAlone,
            Some(Wish::Refused { mistakes, served }) => refused(facts, mistakes, *served),
            Some(Wish::Serve { digest, backends }) => serve(facts, service, *digest, *backends),
        },
    }
}

/// What was served before goes on as it was, by this process or another: its nodes come and go all the same.
fn refused(facts: Facts<'_>, mistakes: &[InvalidInput], served: Option<Served>) -> Step {
    let Facts { known, .. } = facts;
    if known.refused != Some(digest_of(mistakes)) {
        return Step::Refuse { mistakes: mistakes.to_vec() };
    }
    let has = |served: &Served| {
        known.applied.is_some_and(|has| has.digest == served.digest && has.backends == Some(served.backends))
    };
    match served.filter(|served| !has(served)) {
        Some(served) => match held(facts, Subject::Serve(served.digest), Some(served.backends)) {
            Some(until) => Step::Rest { until: Some(until) },
            None => Step::UpdateBackends,
        },
        None => Step::Rest { until: None },
    }
}

/// Identifies what is wrong with a Service.
pub(crate) fn digest_of(mistakes: &[InvalidInput]) -> Digest {
    Digest::of(&mistakes.iter().map(|m| (&*m.field, &*m.message)).collect::<Vec<_>>())
}

/// Whose business a Service is.
enum Standing {
    Foreign,
    Wanted,
    Leaving,
}

fn standing(service: &ServiceView, known: &Known, fields: &ServiceFields) -> Standing {
    let ours = fields.claims(service.class.as_deref());
    match (service.is_load_balancer, service.deleting) {
        // A class can only change together with the type: what was made before is given up.
        (true, _) if !ours && known.may_exist => Standing::Leaving,
        (true, _) if !ours => Standing::Foreign,
        (true, false) => Standing::Wanted,
        // The class goes with the type. What was another's before is still for that one to clean up.
        (false, _) if known.foreign && !known.may_exist => Standing::Foreign,
        (true, true) | (false, _) => Standing::Leaving,
    }
}

fn delete(facts: Facts<'_>, then: Then) -> Step {
    match held(facts, Subject::delete(facts.service, facts.known, then), None) {
        Some(until) => Step::Rest { until: Some(until) },
        None => Step::Delete { then, announce: !matches!(facts.known.announced, Some(Subject::Delete(_))) },
    }
}

fn serve(facts: Facts<'_>, service: &ServiceView, digest: Digest, backends: u64) -> Step {
    let Facts { known, now, .. } = facts;
    if let Some(until) = held(facts, Subject::Serve(digest), Some(backends)) {
        return Step::Rest { until: Some(until) };
    }
    let announce = known.announced != Some(Subject::Serve(digest));
    // Without an attempt only backends were followed, of a Service that was invalid.
    let Some(applied) = known.applied.filter(|_| known.attempted) else {
        // Finished by an earlier process, as it seems: a question is enough if it is true.
        return if is_finished(service, known, now) && !known.attempted {
            Step::Compare { drift: false }
        } else {
            Step::Ensure { depth: Depth::Verify, announce }
        };
    };
    if applied.digest != digest {
        Step::Ensure { depth: Depth::Trust, announce }
    } else if applied.backends != Some(backends) && !(facts.pass_awaited && applied.backends.is_some()) {
        Step::UpdateBackends
    } else if applied.verify_at <= now {
        Step::Compare { drift: true }
    } else if !has_finalizer(service, known, now) || !shows_published(service, known, now) {
        match known.repaired_at.map(|last| last + REPAIR_GAP).filter(|next| *next > now) {
            None => Step::Publish,
            Some(next) => Step::Rest { until: Some(next) },
        }
    } else {
        Step::Rest { until: Some(applied.verify_at) }
    }
}

/// Tells whether a Service shows a load balancer that some process has finished.
pub(crate) fn is_finished(service: &ServiceView, known: &Known, now: Duration) -> bool {
    has_finalizer(service, known, now) && !service.status.ingress.is_empty()
}

/// Returns until when an attempt of this kind, with these backends, has to wait.
fn held(facts: Facts<'_>, subject: Subject, backends: Option<u64>) -> Option<Duration> {
    let hold = facts.known.hold.filter(|hold| hold.subject == subject)?;
    let until = match hold.backends {
        Some((tried, with)) if Some(with) != backends => hold.until.min(tried + BACKENDS_PATIENCE),
        _ => hold.until,
    };
    Some(until).filter(|until| *until > facts.now)
}

/// Returns our last write if the cache does not show it yet.
fn unseen(service: &ServiceView, known: &Known, now: Duration) -> Option<Written> {
    let seen = service.resource_version.parse::<u64>().ok()?;
    known.written.filter(|written| seen < written.version && now < written.at + ECHO_PATIENCE)
}

/// Returns the Service as it is since our last write, if the cache does not show that yet.
pub(crate) fn since_our_write(service: &ServiceView, known: &Known, now: Duration) -> Option<ServiceView> {
    unseen(service, known, now)?;
    let mut since = service.clone();
    since.status = known.sent.status.clone().unwrap_or(since.status);
    for (key, value) in &known.sent.annotations {
        match value {
            Some(value) => since.annotations.insert(Arc::from(&**key), Arc::from(&**value)),
            None => since.annotations.remove(&**key),
        };
    }
    Some(since)
}

/// Tells whether the Service carries our finalizer, as far as known.
pub(crate) fn has_finalizer(service: &ServiceView, known: &Known, now: Duration) -> bool {
    unseen(service, known, now).map_or_else(|| service.has_finalizer(), |written| written.finalizer)
}

fn shows_published(service: &ServiceView, known: &Known, now: Duration) -> bool {
    let is = |key: &str, value: Option<&str>| service.annotations.get(key).map(|v| &**v) == value;
    unseen(service, known, now).is_some()
        || (known.published.as_ref().is_none_or(|published| same_status(&service.status, published))
            && known.annotations.iter().all(|(key, value)| is(key, value.as_deref())))
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
