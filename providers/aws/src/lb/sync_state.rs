//! The sync state of each Service: what this process read, and what it has changed since.
//!
//! Normally nobody else changes the objects; manual changes are found by the drift check that the
//! framework requests periodically. After an error the observed state is unknown.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::model::{DesiredLoadBalancer, ListenerKey, Targets};
use crate::{
    api::{InstanceId, SecurityGroupId, TargetGroupArn, elb::LoadBalancer},
    client::ResponseCache,
    lb::{observe::observed::ObservedState, targets::pods::RuleInputs},
};

/// What the owner of a Service has to open by hand.
#[derive(Clone, Debug, Default)]
pub(super) struct ReportedUnmanaged {
    /// Security groups that are not tagged for this cluster.
    pub(super) groups: BTreeSet<Box<str>>,
    /// Addresses without a network interface.
    pub(super) addresses: BTreeSet<IpAddr>,
}

/// A desired state that was applied completely.
#[derive(Clone, Debug)]
pub(super) struct LastApplied {
    /// The desired state.
    pub(super) desired: Arc<DesiredLoadBalancer>,
    /// The targets that were applied with it; empty while some are pending.
    pub(super) targets: Targets,
}

/// The sync state of one Service.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadBalancerSyncState {
    /// Observed state; `None` if it has to be read.
    pub(super) observed: Option<ObservedState>,
    /// When the observed state was last read from AWS.
    pub(super) read_at: Option<Instant>,
    /// What was last applied completely.
    pub(super) last_applied: Option<LastApplied>,
    /// The inputs for which security group rules were last ensured.
    pub(super) rule_inputs: RuleInputs,
    /// What was last reported to the owner of the Service.
    pub(super) reported_unmanaged: ReportedUnmanaged,
    /// Instances that were targets then.
    pub(super) instances: BTreeSet<InstanceId>,
    /// When something was last changed: a listing from before that does not count.
    pub(super) changed_at: Option<Instant>,
    /// Whether load balancer and target groups are deleted, so that the rest of the deletion need
    /// not look for them again.
    pub(super) load_balancer_deleted: bool,
    /// Target groups whose deletion has begun.
    pub(super) deleting_target_groups: BTreeSet<TargetGroupArn>,
    /// Names of deleted load balancers, which are in the descriptions of rules.
    pub(super) deleted_names: BTreeSet<Box<str>>,
    /// Responses of a read that a rate limit interrupted.
    pub(super) responses: ResponseCache,
    /// Listeners whose stickiness was requested when everything was last applied.
    pub(super) sticky_listeners: BTreeSet<ListenerKey>,
    /// What has to be removed and cannot be read from AWS, kept while `observed` is `None`.
    pub(super) to_clean_up: CleanupState,
}

/// What is no longer desired and may still exist.
#[derive(Clone, Debug, Default)]
pub(super) struct CleanupState {
    /// Keys of tags, see [`ObservedState::removable_tag_keys`].
    pub(super) removable_tag_keys: BTreeSet<Box<str>>,
    /// Security groups, see [`ObservedState::detached_security_groups`].
    pub(super) detached_security_groups: BTreeSet<SecurityGroupId>,
    /// The load balancer and the target groups that this process has observed or created. A
    /// deletion tries them by ARN: a listing may not show yet what was created just before another
    /// error.
    pub(super) load_balancer: Option<LoadBalancer>,
    pub(super) target_groups: BTreeSet<TargetGroupArn>,
}

impl From<ObservedState> for CleanupState {
    fn from(observed: ObservedState) -> Self {
        let target_groups = observed
            .target_groups
            .into_iter()
            .map(|observed| observed.group.arn)
            .collect();
        let load_balancer = observed
            .load_balancer
            .map(|observed| observed.load_balancer);
        Self {
            removable_tag_keys: observed.removable_tag_keys,
            detached_security_groups: observed.detached_security_groups,
            load_balancer,
            target_groups,
        }
    }
}

impl LoadBalancerSyncState {
    /// Returns the observed load balancer.
    pub(super) fn load_balancer(&self) -> Option<&LoadBalancer> {
        let observed = self.observed.as_ref()?.load_balancer.as_ref()?;
        Some(&observed.load_balancer)
    }

    /// Forgets the observed state, except what cannot be read again.
    pub(super) fn invalidate(&mut self) {
        if let Some(observed) = self.observed.take() {
            self.to_clean_up = observed.into();
        }
        self.read_at = None;
        self.last_applied = None;
    }

    /// Takes the observed state out; what cannot be read again also stays here.
    pub(super) fn take_observed(&mut self) -> Option<ObservedState> {
        let observed = self.observed.take()?;
        self.to_clean_up = observed.clone().into();
        Some(observed)
    }

    /// Adds to a newly read state what cannot be read.
    pub(super) fn restore_unreadable(&self, observed: &mut ObservedState) {
        observed
            .removable_tag_keys
            .clone_from(&self.to_clean_up.removable_tag_keys);
        observed
            .detached_security_groups
            .clone_from(&self.to_clean_up.detached_security_groups);
    }

    /// Forgets an unfinished deletion, because the Service needs a load balancer again.
    pub(super) fn cancel_deletion(&mut self) {
        self.load_balancer_deleted = false;
        self.deleted_names.clear();
        self.deleting_target_groups.clear();
    }
}

/// The sync states of all Services, by UID. Only one worker at a time works on a Service.
#[derive(Debug, Default)]
pub(super) struct SyncStateStore(Mutex<HashMap<Box<str>, LoadBalancerSyncState>>);

impl SyncStateStore {
    /// Takes the sync state of a Service. Until it is [put back](Self::put) the observed state is
    /// unknown and older listings do not count: the caller may be dropped in the middle of a
    /// change.
    pub(super) fn take(&self, uid: &str) -> LoadBalancerSyncState {
        let mut states = self.0.lock();
        let state = states.remove(uid).unwrap_or_default();
        let to_clean_up = match &state.observed {
            Some(observed) => observed.clone().into(),
            None => state.to_clean_up.clone(),
        };
        let taken = LoadBalancerSyncState {
            changed_at: Some(Instant::now()),
            to_clean_up,
            sticky_listeners: state.sticky_listeners.clone(),
            ..LoadBalancerSyncState::default()
        };
        states.insert(uid.into(), taken);
        state
    }

    /// Tells whether a Service's Network Load Balancer was observed with this DNS name.
    pub(super) fn has_dns_name(&self, uid: &str, dns_name: &str) -> bool {
        let states = self.0.lock();
        let load_balancer = states.get(uid).and_then(|state| state.load_balancer());
        load_balancer.is_some_and(|load_balancer| *load_balancer.dns_name == *dns_name)
    }

    pub(super) fn put(&self, uid: &str, state: LoadBalancerSyncState) {
        self.0.lock().insert(uid.into(), state);
    }

    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}
