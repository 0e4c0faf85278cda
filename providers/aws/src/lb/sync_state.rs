//! The sync state of each Service: the observed state that this process read, updated by its own
//! changes since.
//!
//! Nobody else is expected to change the objects. The periodic drift check finds manual changes.
//! After an error the observed state is unknown and is read again.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    model::{DesiredLoadBalancer, ListenerKey, Targets},
    retry_delay::MissingObjectRetries,
};
use crate::{
    api::{InstanceId, LoadBalancerArn, SecurityGroupId, TargetGroupArn, elb::LoadBalancer},
    client::ResponseCache,
    clock::ago,
    lb::{observe::observed::ObservedState, targets::pods::RuleInputs},
};

/// The security groups and addresses that must admit the load balancer and that its owner has to
/// open by hand.
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
    /// The targets that were applied with it; empty while some are still pending.
    pub(super) targets: Targets,
}

/// The state that this process keeps about one Service between syncs.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadBalancerSyncState {
    /// The observed state; `None` if it must be read from AWS.
    pub(super) observed: Option<ObservedState>,
    /// The time when the observed state was last read from AWS.
    pub(super) read_at: Option<Instant>,
    /// The desired state that was last applied completely; `None` after an interrupted sync.
    pub(super) last_applied: Option<LastApplied>,
    /// The inputs for which security group rules were last ensured.
    pub(super) rule_inputs: RuleInputs,
    /// The unmanaged groups and addresses that an event last reported.
    pub(super) reported_unmanaged: ReportedUnmanaged,
    /// Instances that were targets when targets were last applied.
    pub(super) instances: BTreeSet<InstanceId>,
    /// The time of the last change. Listings that began earlier may not show it.
    pub(super) changed_at: Option<Instant>,
    /// True once load balancer and target groups are deleted. The rest of the deletion then does
    /// not search for them again.
    pub(super) load_balancer_deleted: bool,
    /// Target groups whose deletion has begun.
    pub(super) deleting_target_groups: BTreeSet<TargetGroupArn>,
    /// Names of deleted load balancers, which are in the descriptions of rules.
    pub(super) deleted_names: BTreeSet<Box<str>>,
    /// Responses of a read that a rate limit interrupted.
    pub(super) responses: ResponseCache,
    /// Listeners whose stickiness was requested when everything was last applied.
    pub(super) sticky_listeners: BTreeSet<ListenerKey>,
    /// True once it was announced that the Service is read in the dialect `extended`, or if there
    /// was nothing to announce because its load balancer was new.
    pub(super) activation_announced: bool,
    /// The retries for an object that AWS does not find.
    pub(super) missing_object: MissingObjectRetries,
    /// The objects to remove that cannot be read from AWS, kept while `observed` is `None`.
    pub(super) to_clean_up: CleanupState,
    /// The load balancer that the Service adopts, from before it is claimed until the adoption is
    /// finished.
    pub(super) adopting: Option<LoadBalancer>,
    /// The reservation of capacity that AWS rejected last.
    pub(super) rejected_capacity: Option<RejectedCapacity>,
}

/// A reservation of capacity that AWS rejected. It is not requested again before a time, unless the
/// Service asks for another one. Everything else goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct RejectedCapacity {
    /// The capacity units that were requested.
    pub(super) units: u32,
    /// The time from which the same request may be sent again.
    pub(super) until: Instant,
}

/// Objects that are no longer desired and may still exist.
#[derive(Clone, Debug, Default)]
pub(super) struct CleanupState {
    /// Keys of tags, see [`ObservedState::removable_tag_keys`].
    pub(super) removable_tag_keys: BTreeSet<Box<str>>,
    /// Security groups, see [`ObservedState::detached_security_groups`].
    pub(super) detached_security_groups: BTreeSet<SecurityGroupId>,
    /// The load balancer that this process has observed or created. A deletion uses its ARN,
    /// because a listing may not show yet what was created just before an error.
    pub(super) load_balancer: Option<LoadBalancer>,
    /// The target groups that this process has observed or created, kept for the same reason.
    pub(super) target_groups: BTreeSet<TargetGroupArn>,
}

impl From<ObservedState> for CleanupState {
    fn from(observed: ObservedState) -> Self {
        let target_groups = observed
            .target_groups
            .into_iter()
            .map(|observed| observed.resource.arn)
            .collect();
        let load_balancer = observed.load_balancer.map(|observed| observed.resource);
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
        Some(&observed.resource)
    }

    /// Returns true if the adoption of a load balancer is not known to be finished.
    pub(super) fn is_adopting(&self, arn: &LoadBalancerArn) -> bool {
        let mut adopting = self.adopting.iter();
        adopting.any(|adopting| adopting.arn == *arn)
    }

    /// Returns true if this desired state was applied completely, except perhaps its targets.
    pub(super) fn was_applied(&self, desired: &DesiredLoadBalancer) -> bool {
        self.last_applied
            .as_ref()
            .is_some_and(|applied| *applied.desired == *desired)
    }

    /// Returns true if this desired state was applied with these targets, and the observed state is
    /// still valid.
    pub(super) fn is_in_sync(&self, desired: &DesiredLoadBalancer, targets: &Targets) -> bool {
        let has_targets = self
            .last_applied
            .as_ref()
            .is_some_and(|applied| applied.targets == *targets);
        // A reservation that was rejected is due again.
        let is_capacity_due = self
            .rejected_capacity
            .is_some_and(|rejected| rejected.until <= Instant::now());
        self.observed.is_some() && has_targets && self.was_applied(desired) && !is_capacity_due
    }

    /// Forgets the rejection of a reservation that may be requested again, or is not desired any more.
    pub(super) fn forget_old_rejection(&mut self, desired: &DesiredLoadBalancer) {
        if !self.is_capacity_rejected(desired) {
            self.rejected_capacity = None;
        }
    }

    /// Returns true if AWS rejected the desired reservation so recently that it is left out.
    pub(super) fn is_capacity_rejected(&self, desired: &DesiredLoadBalancer) -> bool {
        self.rejected_capacity.is_some_and(|rejected| {
            desired.capacity_units == Some(rejected.units) && rejected.until > Instant::now()
        })
    }

    /// Returns true if the observed state was read from AWS within this period.
    pub(super) fn was_read_within(&self, period: Duration) -> bool {
        self.read_at.is_some_and(|at| at > ago(period))
    }

    /// Forgets the observed state, except what cannot be read again.
    pub(super) fn invalidate(&mut self) {
        if let Some(observed) = self.observed.take() {
            self.to_clean_up = observed.into();
        }
        self.read_at = None;
        self.last_applied = None;
    }

    /// Takes the observed state. The parts that cannot be read again stay in `to_clean_up` too.
    pub(super) fn take_observed(&mut self) -> Option<ObservedState> {
        let observed = self.observed.take()?;
        self.to_clean_up = observed.clone().into();
        Some(observed)
    }

    /// Adds the tags and security groups to remove to a newly read state.
    pub(super) fn copy_cleanup_to(&self, observed: &mut ObservedState) {
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

/// The sync states of all Services, by UID. Only one worker at a time syncs a Service.
#[derive(Debug, Default)]
pub(super) struct SyncStateStore(Mutex<HashMap<Box<str>, LoadBalancerSyncState>>);

impl SyncStateStore {
    /// Takes the sync state of a Service. Until it is [put back](Self::put) the observed state
    /// counts as unknown and older listings are not used, because the caller may be dropped in the
    /// middle of a change.
    pub(super) fn take(&self, uid: &str) -> LoadBalancerSyncState {
        let mut states = self.0.lock();
        let state = states.remove(uid).unwrap_or_default();
        let to_clean_up = match &state.observed {
            Some(observed) => observed.clone().into(),
            None => state.to_clean_up.clone(),
        };
        let placeholder = LoadBalancerSyncState {
            changed_at: Some(Instant::now()),
            to_clean_up,
            sticky_listeners: state.sticky_listeners.clone(),
            activation_announced: state.activation_announced,
            adopting: state.adopting.clone(),
            ..LoadBalancerSyncState::default()
        };
        states.insert(uid.into(), placeholder);
        state
    }

    /// Returns true if a Service's Network Load Balancer was observed with this DNS name.
    pub(super) fn has_dns_name(&self, uid: &str, dns_name: &str) -> bool {
        let states = self.0.lock();
        let load_balancer = states.get(uid).and_then(|state| state.load_balancer());
        load_balancer.is_some_and(|load_balancer| *load_balancer.dns_name == *dns_name)
    }

    /// Returns true if a Service's Network Load Balancer was observed.
    pub(super) fn has_load_balancer(&self, uid: &str) -> bool {
        let states = self.0.lock();
        let state = states.get(uid);
        state.is_some_and(|state| state.load_balancer().is_some())
    }

    /// Returns the observed state of a Service.
    pub(super) fn observed(&self, uid: &str) -> Option<ObservedState> {
        self.0.lock().get(uid)?.observed.clone()
    }

    /// Puts the sync state back after a sync.
    pub(super) fn put(&self, uid: &str, state: LoadBalancerSyncState) {
        self.0.lock().insert(uid.into(), state);
    }

    /// Removes the sync state of a deleted Service.
    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}
