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
    model::{DesiredLoadBalancer, ListenerKey, Targets},
    pods::RuleInputs,
    seen::ObservedState,
};
use crate::{
    api::{InstanceId, SecurityGroupId, TargetGroupArn, elb::LoadBalancer},
    client::ResponseCache,
};

/// What is known of one Service.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadBalancerSyncState {
    /// What there is; `None` when that has to be read.
    pub(super) observed: Option<ObservedState>,
    /// When that was last read from AWS.
    pub(super) read_at: Option<Instant>,
    /// What it was completely brought to, with these targets.
    pub(super) last_applied: Option<(Arc<DesiredLoadBalancer>, Targets)>,
    /// What rules were looked after for.
    pub(super) rule_inputs: RuleInputs,
    /// What its owner knows to be left alone: groups, and addresses.
    pub(super) reported_unmanaged: (BTreeSet<Box<str>>, BTreeSet<IpAddr>),
    /// Instances that were targets then.
    pub(super) instances: BTreeSet<InstanceId>,
    /// When something was last changed: what was read in common before does not count.
    pub(super) changed_at: Option<Instant>,
    /// Whether balancer and target groups were deleted, so that the rest of a deletion need not look for them again.
    pub(super) load_balancer_deleted: bool,
    /// Target groups that are being deleted.
    pub(super) deleting_target_groups: BTreeSet<TargetGroupArn>,
    /// Names of deleted balancers, which are in descriptions of rules.
    pub(super) deleted_names: BTreeSet<Box<str>>,
    /// What a look was told that was broken off for want of turns.
    pub(super) responses: ResponseCache,
    /// Listeners whose stickiness was asked for when everything was last as wanted.
    pub(super) sticky_listeners: BTreeSet<ListenerKey>,
    /// What is to be taken away and cannot be read, while it is not known what there is.
    pub(super) to_clean_up: CleanupState,
}

/// What was given up and is perhaps still there.
#[derive(Clone, Debug, Default)]
pub(super) struct CleanupState {
    /// Keys of tags, as in [`ObservedState`].
    pub(super) recorded_tags: BTreeSet<Box<str>>,
    /// Security groups, as in [`ObservedState`].
    pub(super) detached: BTreeSet<SecurityGroupId>,
    /// The load balancer and the target groups that this process has seen or made. A deletion tries them by their ARNs: a
    /// list may not show yet what was made a moment before something else failed.
    pub(super) balancer: Option<LoadBalancer>,
    pub(super) groups: BTreeSet<TargetGroupArn>,
}

impl From<ObservedState> for CleanupState {
    fn from(observed: ObservedState) -> Self {
        let groups = observed.target_groups.into_iter().map(|observed| observed.group.arn).collect();
        let balancer = observed.load_balancer.map(|observed| observed.load_balancer);
        Self {
            recorded_tags: observed.removable_tag_keys,
            detached: observed.detached_security_groups,
            balancer,
            groups,
        }
    }
}

impl LoadBalancerSyncState {
    /// Forgets what there is, but for what no reading tells.
    pub(super) fn invalidate(&mut self) {
        if let Some(observed) = self.observed.take() {
            self.to_clean_up = observed.into();
        }
        (self.read_at, self.last_applied) = (None, None);
    }

    /// Takes what there is; what no reading tells of it stays here as well.
    pub(super) fn take_observed(&mut self) -> Option<ObservedState> {
        let observed = self.observed.take()?;
        self.to_clean_up = observed.clone().into();
        Some(observed)
    }

    /// Adds to what was read what no reading tells.
    pub(super) fn restore_unreadable(&self, observed: &mut ObservedState) {
        let CleanupState { recorded_tags, detached, .. } = self.to_clean_up.clone();
        (observed.removable_tag_keys, observed.detached_security_groups) = (recorded_tags, detached);
    }

    /// Forgets a deletion that was not finished, since the Service wants a balancer again.
    pub(super) fn cancel_deletion(&mut self) {
        self.load_balancer_deleted = false;
        self.deleted_names.clear();
        self.deleting_target_groups.clear();
    }
}

/// What is known of all Services, by UID. A Service is owned by one worker at a time.
#[derive(Debug, Default)]
pub(super) struct SyncStateStore(Mutex<HashMap<Box<str>, LoadBalancerSyncState>>);

impl SyncStateStore {
    /// Takes what is known of a Service. Until it is [put back](Self::put) nothing is known, and a shared look that was
    /// made before now does not count: whoever took it may be dropped amid a change.
    pub(super) fn take(&self, uid: &str) -> LoadBalancerSyncState {
        let mut all = self.0.lock();
        let known = all.remove(uid).unwrap_or_default();
        let left =
            known.observed.as_ref().map_or_else(|| known.to_clean_up.clone(), |observed| observed.clone().into());
        let sticky = known.sticky_listeners.clone();
        all.insert(
            uid.into(),
            LoadBalancerSyncState {
                changed_at: Some(Instant::now()),
                to_clean_up: left,
                sticky_listeners: sticky,
                ..LoadBalancerSyncState::default()
            },
        );
        known
    }

    /// Tells whether a Service's network load balancer is known to have this DNS name.
    pub(super) fn has_dns_name(&self, uid: &str, dns_name: &str) -> bool {
        let known = self.0.lock();
        let balancer = known.get(uid).and_then(|known| known.observed.as_ref()?.load_balancer.as_ref());
        balancer.is_some_and(|seen| *seen.load_balancer.dns_name == *dns_name)
    }

    pub(super) fn put(&self, uid: &str, known: LoadBalancerSyncState) {
        self.0.lock().insert(uid.into(), known);
    }

    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}
