//! Sync state of each Service's load balancer: the observed state, with this process's own changes
//! since it was read, and what the next sync needs to continue.
//!
//! Usually nobody else changes these objects. The drift check, which the framework requests from
//! time to time, finds manual changes. An error discards the observed state.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ccm_core::provider::{CloudError, Digest, Op, ReadMode};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    model::DesiredLoadBalancer,
    plan::{PlannedAction, PoolMethod},
    security_groups::listed::ListedSecurityGroup,
};
use crate::{
    api::{neutron::FloatingIp, octavia::LoadBalancer},
    lb::{desired_members::NodeBackend, observed::ObservedLoadBalancer},
};

/// Minimum delay between two polls of a load balancer that is not ready.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum delay between two polls.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum age of the observed state with which an interrupted sync may continue, instead of
/// reading everything again.
const MAX_RESUME_AGE: Duration = Duration::from_secs(600);
/// Maximum age of a load balancer whose children have not been read yet. Reading may continue with
/// the children, which are newer then.
const MAX_PARTIAL_AGE: Duration = Duration::from_secs(120);

/// Number of a shared listing. Clocks alone could not tell whether a change within the same tick
/// came before the listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListingRound(u64);

/// Counts shared listings.
#[derive(Debug, Default)]
pub(super) struct ListingRounds(AtomicU64);

impl ListingRounds {
    /// Returns the number of the last listing that has begun. Only later listings are sure to show
    /// a change made before now.
    pub(super) fn now(&self) -> ListingRound {
        ListingRound(self.0.load(Ordering::SeqCst))
    }

    /// Begins a listing and returns its number.
    pub(super) fn begin(&self) -> ListingRound {
        ListingRound(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

/// The floating IP on the VIP's port, as far as it was read.
#[derive(Clone, Debug, Default)]
pub(super) enum AttachedFloatingIp {
    /// Not read yet, or changed since.
    #[default]
    Unknown,
    /// The port has no floating IP.
    None,
    /// The port has this floating IP.
    Known(Box<FloatingIp>),
}

impl AttachedFloatingIp {
    /// Returns the floating IP if there is one and it was read.
    pub(super) fn get(&self) -> Option<&FloatingIp> {
        match self {
            Self::Known(floating) => Some(floating),
            Self::Unknown | Self::None => None,
        }
    }
}

impl From<Option<FloatingIp>> for AttachedFloatingIp {
    fn from(found: Option<FloatingIp>) -> Self {
        found.map_or(Self::None, |floating| Self::Known(Box::new(floating)))
    }
}

/// The objects of a Service that a shared listing contains: everything but members.
pub(super) struct ListedService {
    pub(super) observed: ObservedLoadBalancer,
    pub(super) floating_ip: AttachedFloatingIp,
    pub(super) security_group: Option<ListedSecurityGroup>,
    pub(super) read_at: Instant,
}

/// Desired state that was last applied completely, with the backends.
#[derive(Clone, Debug)]
pub(super) struct LastApplied {
    desired: Arc<DesiredLoadBalancer>,
    backends: Vec<NodeBackend>,
}

impl LastApplied {
    pub(super) fn new(desired: &DesiredLoadBalancer, backends: &[NodeBackend]) -> Self {
        Self {
            desired: Arc::new(desired.clone()),
            backends: backends.to_vec(),
        }
    }

    /// Returns true if this desired state was applied, whatever the backends were.
    pub(super) fn is_for(&self, desired: &DesiredLoadBalancer) -> bool {
        *self.desired == *desired
    }

    fn matches(&self, desired: &DesiredLoadBalancer, backends: &[NodeBackend]) -> bool {
        self.is_for(desired) && self.backends == backends
    }

    /// Replaces the backends, after only they were applied. Returns `None` if the other parts of
    /// `desired` have changed too and are not applied yet.
    pub(super) fn with_backends(
        self,
        desired: &DesiredLoadBalancer,
        backends: &[NodeBackend],
    ) -> Option<Self> {
        if !self.is_for(desired) {
            return None;
        }
        Some(Self { backends: backends.to_vec(), ..self })
    }
}

/// Sync state of a Service's security group.
#[derive(Clone, Debug, Default)]
pub(super) struct SecurityGroupSyncState {
    /// Digest of the group and backends that were last applied completely.
    pub(super) last_applied: Option<Digest>,
    listed: Option<ListedSecurityGroup>,
}

impl SecurityGroupSyncState {
    /// Takes the group as a shared listing showed it, unless that is too old. It is used only once,
    /// because this process may change the group after that.
    pub(super) fn take_listed(&mut self) -> Option<ListedSecurityGroup> {
        self.listed
            .take()
            .filter(|listed| listed.started.elapsed() < MAX_PARTIAL_AGE)
    }
}

/// The time since which a load balancer has been pending with one change.
#[derive(Clone, Copy, Debug)]
struct PendingSince {
    since: Instant,
    /// True after a warning about the long wait was emitted.
    warned: bool,
}

/// Sync state of one Service's load balancer.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each named at its use"
)]
pub(super) struct LoadBalancerSyncState {
    /// Observed state, or `None` if it has to be read or the load balancer does not exist.
    pub(super) observed: Option<ObservedLoadBalancer>,
    /// True when `observed` contains the children too.
    pub(super) children_known: bool,
    /// True when `observed` comes from a shared listing. That is enough to find differences, but it
    /// is read again before a change. Only members are changed without that, because they were read
    /// for this Service.
    pub(super) from_listing: bool,
    /// The last listing that may miss a change by this process. `None` if it has changed nothing of
    /// the Service.
    pub(super) listings_stale_until: Option<ListingRound>,
    /// The last listing that had begun when the load balancer was last read or changed. Only a
    /// later one can show a newer status.
    pub(super) as_of: ListingRound,
    /// Time when the load balancer was last read from the cloud.
    pub(super) read_at: Option<Instant>,
    pub(super) floating_ip: AttachedFloatingIp,
    pub(super) security_group: SecurityGroupSyncState,
    pub(super) last_applied: Option<LastApplied>,
    /// True when a sync was interrupted. The next one then continues with `observed` in every read
    /// mode.
    pub(super) unfinished: bool,
    /// `None` unless the load balancer is pending.
    pending: Option<PendingSince>,
    /// ID of the load balancer that this process created for the Service.
    pub(super) created_id: Option<Box<str>>,
    /// Time of the last failover.
    pub(super) failed_over: Option<Instant>,
    /// Time when Octavia last did not allow a failover.
    pub(super) failover_denied: Option<Instant>,
    /// True when this sync deleted the load balancer because its creation had failed. The Service
    /// may still name its ID.
    pub(super) replaced_failed: bool,
    /// ID of the load balancer that is being deleted.
    pub(super) deleting_id: Option<Box<str>>,
    /// Algorithm that the cloud rejected. This process does not try it again.
    pub(super) rejected_method: Option<PoolMethod>,
}

impl LoadBalancerSyncState {
    /// Discards the observed state, so that the next sync reads it.
    pub(super) fn invalidate(&mut self) {
        self.observed = None;
        self.children_known = false;
        self.from_listing = false;
        self.read_at = None;
        self.floating_ip = AttachedFloatingIp::Unknown;
        self.security_group = SecurityGroupSyncState::default();
        self.last_applied = None;
        self.unfinished = false;
    }

    /// Returns the part that the next attempt to delete the Service still needs.
    pub(super) fn after_failed_deletion(self) -> Self {
        Self {
            created_id: self.created_id,
            failed_over: self.failed_over,
            failover_denied: self.failover_denied,
            deleting_id: self.deleting_id,
            ..Self::default()
        }
    }

    /// Returns the observed load balancer.
    ///
    /// # Errors
    /// Returns a transient error if there is none: it was deleted during the sync.
    pub(super) fn require_observed(&self) -> Result<&ObservedLoadBalancer, CloudError> {
        self.observed.as_ref().ok_or_else(changed_meanwhile)
    }

    /// Returns true if this process has applied exactly this and nothing is left to do.
    pub(super) fn is_in_sync(
        &self,
        desired: &DesiredLoadBalancer,
        backends: &[NodeBackend],
    ) -> bool {
        !self.unfinished
            && self
                .last_applied
                .as_ref()
                .is_some_and(|last| last.matches(desired, backends))
    }

    /// Returns true if the observed state is recent enough for a read mode.
    pub(super) fn is_observed_for(&self, read_mode: ReadMode) -> bool {
        if self.observed.is_none() {
            return false;
        }
        if read_mode == ReadMode::Cached {
            return true;
        }
        let age = self.read_at.map(|at| at.elapsed());
        if self.unfinished && age.is_some_and(|age| age < MAX_RESUME_AGE) {
            return true;
        }
        // The rate limit interrupted the last observation before the children were read.
        !self.children_known && age.is_some_and(|age| age < MAX_PARTIAL_AGE)
    }

    /// Sets the load balancer that was found for this Service alone. Its children are read later.
    pub(super) fn set_found(&mut self, found: Option<LoadBalancer>, now: ListingRound) {
        self.observed = found.map(ObservedLoadBalancer::new);
        self.read_at = Some(Instant::now());
        self.as_of = now;
    }

    /// Sets the observed state from a shared listing.
    pub(super) fn set_listed(&mut self, listed: ListedService) {
        self.observed = Some(listed.observed);
        self.floating_ip = listed.floating_ip;
        self.security_group.listed = listed.security_group;
        self.read_at = Some(listed.read_at);
        self.from_listing = true;
    }

    /// Replaces a load balancer from a shared listing by one that was read for this Service. Its
    /// children and its floating IP have to be read again too.
    pub(super) fn replace_listed(&mut self, load_balancer: LoadBalancer, now: ListingRound) {
        if let Some(observed) = &mut self.observed {
            observed.load_balancer = load_balancer;
        }
        self.from_listing = false;
        self.children_known = false;
        self.floating_ip = AttachedFloatingIp::Unknown;
        self.read_at = Some(Instant::now());
        self.as_of = now;
    }

    /// Records that Octavia accepted a change, with which the load balancer is pending from now on.
    pub(super) fn record_own_change(&mut self, now: ListingRound) {
        self.stop_waiting();
        self.mark_changed(now);
    }

    /// Returns true if an action only sets an algorithm that the cloud has rejected.
    pub(super) fn has_rejected(&self, action: &PlannedAction) -> bool {
        self.rejected_method.is_some() && self.rejected_method == action.method_change()
    }

    /// Returns true if the load balancer was pending at the last poll.
    pub(super) fn is_waiting(&self) -> bool {
        self.pending.is_some()
    }

    /// Ends the wait, because the load balancer is ready or pending with a new change. The next
    /// wait starts again with short intervals.
    pub(super) fn stop_waiting(&mut self) {
        self.pending = None;
    }

    /// Returns the delay before the next poll: half the time that the load balancer has been
    /// pending, within bounds.
    pub(super) fn poll_interval(&mut self) -> Duration {
        let pending = self
            .pending
            .get_or_insert_with(|| PendingSince { since: Instant::now(), warned: false });
        (pending.since.elapsed() / 2).clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL)
    }

    /// Records that this process changed something, or may have. Listings that have already begun
    /// do not count any more.
    pub(super) fn mark_changed(&mut self, now: ListingRound) {
        self.listings_stale_until = Some(now);
        self.as_of = now;
    }

    /// Returns the maximum age of a listing that shows whether the load balancer is still busy.
    pub(super) fn max_observation_age(&mut self) -> Duration {
        (self.poll_interval() / 4).max(MIN_POLL_INTERVAL)
    }

    /// Returns true once, when the load balancer has been pending for `threshold`.
    pub(super) fn crossed_warning_threshold(&mut self, threshold: Duration) -> bool {
        let Some(pending) = &mut self.pending else {
            return false;
        };
        if pending.warned || pending.since.elapsed() < threshold {
            return false;
        }
        pending.warned = true;
        true
    }
}

/// Sync states of all Services, by UID. One worker at a time syncs a Service.
#[derive(Debug, Default)]
pub(super) struct SyncStateStore {
    states: Mutex<HashMap<Box<str>, LoadBalancerSyncState>>,
    pub(super) rounds: ListingRounds,
}

impl SyncStateStore {
    /// Takes the sync state of a Service, to be [put back](Self::put) after the sync. If the sync's
    /// future is dropped before that, the next sync reads everything again and uses no listing from
    /// before now, because a change may have been on its way.
    pub(super) fn take(&self, uid: &str) -> LoadBalancerSyncState {
        let unknown = LoadBalancerSyncState {
            listings_stale_until: Some(self.rounds.now()),
            ..LoadBalancerSyncState::default()
        };
        self.states
            .lock()
            .insert(uid.into(), unknown)
            .unwrap_or_default()
    }

    pub(super) fn put(&self, uid: &str, state: LoadBalancerSyncState) {
        self.states.lock().insert(uid.into(), state);
    }

    pub(super) fn forget(&self, uid: &str) {
        self.states.lock().remove(uid);
    }
}

/// Returns the delay before the next attempt of a pending operation: as long as it has been pending
/// already, within bounds. So the delay doubles with each attempt.
pub(super) fn retry_delay(op: &Op) -> Duration {
    op.pending_for().clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL)
}

/// Creates the error for an object that was deleted or replaced since it was read. The sync starts
/// again after a second.
pub(super) fn changed_meanwhile() -> CloudError {
    CloudError::transient("the load balancer changed meanwhile")
        .with_retry_after(Duration::from_secs(1))
}
