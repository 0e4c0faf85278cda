//! What this process knows of each Service's objects: what it read, and what it changed since.
//!
//! Nobody else changes them in the ordinary run of things; what somebody changes by hand is found by the comparison that
//! the framework asks for now and then. After an error nothing is known any more.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    model::{ListenerKey, Targets, Wanted},
    pods::Ground,
    seen::Observed,
};
use crate::{
    api::{InstanceId, SecurityGroupId, TargetGroupArn, elb::LoadBalancer},
    client::Answers,
};

/// What is known of one Service.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// What there is; `None` when that has to be read.
    pub(super) observed: Option<Observed>,
    /// When that was last read from AWS.
    pub(super) read_at: Option<Instant>,
    /// What it was completely brought to, with these targets.
    pub(super) applied: Option<(Arc<Wanted>, Targets)>,
    /// What rules were looked after for.
    pub(super) ground: Ground,
    /// What its owner knows to be left alone: groups, and addresses.
    pub(super) told: (BTreeSet<Box<str>>, BTreeSet<IpAddr>),
    /// Instances that were targets then.
    pub(super) instances: BTreeSet<InstanceId>,
    /// When something was last changed: what was read in common before does not count.
    pub(super) changed: Option<Instant>,
    /// Whether balancer and target groups were deleted, so that the rest of a deletion need not look for them again.
    pub(super) deleted: bool,
    /// Target groups that are being deleted.
    pub(super) groups: BTreeSet<TargetGroupArn>,
    /// Names of deleted balancers, which are in descriptions of rules.
    pub(super) names: BTreeSet<Box<str>>,
    /// What a look was told that was broken off for want of turns.
    pub(super) answers: Answers,
    /// Listeners whose stickiness was asked for when everything was last as wanted.
    pub(super) sticky: BTreeSet<ListenerKey>,
    /// What is to be taken away and cannot be read, while it is not known what there is.
    pub(super) left: Left,
}

/// What was given up and is perhaps still there.
#[derive(Clone, Debug, Default)]
pub(super) struct Left {
    /// Keys of tags, as in [`Observed`].
    pub(super) recorded_tags: BTreeSet<Box<str>>,
    /// Security groups, as in [`Observed`].
    pub(super) detached: BTreeSet<SecurityGroupId>,
    /// The load balancer and the target groups that this process has seen or made. A deletion tries them by their ARNs: a
    /// list may not show yet what was made a moment before something else failed.
    pub(super) balancer: Option<LoadBalancer>,
    pub(super) groups: BTreeSet<TargetGroupArn>,
}

impl From<Observed> for Left {
    fn from(observed: Observed) -> Self {
        let groups = observed.groups.into_iter().map(|observed| observed.group.arn).collect();
        let balancer = observed.balancer.map(|observed| observed.balancer);
        Self { recorded_tags: observed.recorded_tags, detached: observed.detached, balancer, groups }
    }
}

impl Known {
    /// Forgets what there is, but for what no reading tells.
    pub(super) fn doubt(&mut self) {
        if let Some(observed) = self.observed.take() {
            self.left = observed.into();
        }
        (self.read_at, self.applied) = (None, None);
    }

    /// Takes what there is; what no reading tells of it stays here as well.
    pub(super) fn take_observed(&mut self) -> Option<Observed> {
        let observed = self.observed.take()?;
        self.left = observed.clone().into();
        Some(observed)
    }

    /// Adds to what was read what no reading tells.
    pub(super) fn hand_over(&self, observed: &mut Observed) {
        let Left { recorded_tags, detached, .. } = self.left.clone();
        (observed.recorded_tags, observed.detached) = (recorded_tags, detached);
    }

    /// Forgets a deletion that was not finished, since the Service wants a balancer again.
    pub(super) fn revive(&mut self) {
        self.deleted = false;
        self.names.clear();
        self.groups.clear();
    }
}

/// What is known of all Services, by UID. A Service is owned by one worker at a time.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<Box<str>, Known>>);

impl Memory {
    /// Takes what is known of a Service. Until it is [put back](Self::put) nothing is known, and a shared look that was
    /// made before now does not count: whoever took it may be dropped amid a change.
    pub(super) fn take(&self, uid: &str) -> Known {
        let mut all = self.0.lock();
        let known = all.remove(uid).unwrap_or_default();
        let left = known.observed.as_ref().map_or_else(|| known.left.clone(), |observed| observed.clone().into());
        let sticky = known.sticky.clone();
        all.insert(uid.into(), Known { changed: Some(Instant::now()), left, sticky, ..Known::default() });
        known
    }

    /// Tells whether a Service's network load balancer is known to have this DNS name.
    pub(super) fn knows(&self, uid: &str, dns_name: &str) -> bool {
        let known = self.0.lock();
        let balancer = known.get(uid).and_then(|known| known.observed.as_ref()?.balancer.as_ref());
        balancer.is_some_and(|seen| *seen.balancer.dns_name == *dns_name)
    }

    pub(super) fn put(&self, uid: &str, known: Known) {
        self.0.lock().insert(uid.into(), known);
    }

    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}
