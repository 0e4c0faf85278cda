//! Sync state of each Service's load balancer: what this process read, and what it has changed
//! since.
//!
//! Usually nobody else changes these objects. Manual changes are found by the drift check that the
//! framework requests from time to time. After an error the observed state is not known any more.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ccm_core::provider::{CloudError, Digest, Op, ReadMode};
use openstack_api::{neutron::FloatingIp, octavia::LoadBalancer};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    model::DesiredLoadBalancer,
    plan::{PlannedAction, PoolMethod},
    security_groups::listed::ListedSecurityGroup,
};
use crate::lb::{desired_members::NodeBackend, observed::ObservedLoadBalancer};

/// Minimum delay between two polls of a load balancer that is not ready.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum delay between two polls.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// How long an interrupted sync may resume with the observed state that it had, without reading
/// everything again.
const RESUME_WINDOW: Duration = Duration::from_secs(600);
/// How long an observation that was interrupted before the children were read may resume with the
/// load balancer as it was read. The children are read later and so are newer.
const RESUMED_OBSERVATION_AGE: Duration = Duration::from_secs(120);

/// Position of a shared listing among all: clocks alone cannot order two events within a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListingRound(u64);

/// Counts shared listings.
#[derive(Debug, Default)]
pub(super) struct ListingRounds(AtomicU64);

impl ListingRounds {
    /// Returns the last listing that has begun. Only those after it show what was changed before
    /// now.
    pub(super) fn now(&self) -> ListingRound {
        ListingRound(self.0.load(Ordering::SeqCst))
    }

    /// Begins a listing.
    pub(super) fn begin(&self) -> ListingRound {
        ListingRound(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

/// What is known of the floating IP on the VIP's port.
#[derive(Clone, Debug, Default)]
pub(super) enum AttachedFloatingIp {
    /// It has to be read.
    #[default]
    Unknown,
    /// There is none.
    None,
    /// This one.
    Known(Box<FloatingIp>),
}

impl AttachedFloatingIp {
    /// Returns the floating IP, if it is known that there is one.
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

/// What a listing shows of a Service: everything but members.
pub(super) struct ListedService {
    pub(super) observed: ObservedLoadBalancer,
    pub(super) floating_ip: AttachedFloatingIp,
    pub(super) security_group: Option<ListedSecurityGroup>,
    pub(super) read_at: Instant,
}

/// What was last applied completely.
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

    pub(super) fn is(&self, desired: &DesiredLoadBalancer, backends: &[NodeBackend]) -> bool {
        *self.desired == *desired && self.backends == backends
    }

    /// Returns the same with other backends; `None` if something else was applied than `desired`.
    pub(super) fn with_backends(
        self,
        desired: &DesiredLoadBalancer,
        backends: &[NodeBackend],
    ) -> Option<Self> {
        if *self.desired != *desired {
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
    /// Takes the group as the shared listing showed it, unless that was too long ago. It is used
    /// once.
    pub(super) fn take_listed(&mut self) -> Option<ListedSecurityGroup> {
        self.listed
            .take()
            .filter(|listed| listed.started.elapsed() < RESUMED_OBSERVATION_AGE)
    }
}

/// A load balancer that has been pending for some time.
#[derive(Clone, Copy, Debug)]
struct PendingSince {
    since: Instant,
    /// True when a warning was emitted.
    warned: bool,
}

/// Sync state of one Service.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts, each named at its use"
)]
pub(super) struct LoadBalancerSyncState {
    /// Observed state; `None` when it has to be read.
    pub(super) observed: Option<ObservedLoadBalancer>,
    /// True when the children are known too.
    pub(super) children_known: bool,
    /// True when `observed` comes from a shared listing. That is good enough to compare with, but
    /// it is read again before anything is changed except members, which were read for this Service
    /// alone.
    pub(super) from_listing: bool,
    /// Listings up to this one do not count, because this process has changed something since, or
    /// may have; `None` when it has never changed the Service.
    pub(super) listings_stale_until: Option<ListingRound>,
    /// The last shared listing that had begun when the load balancer was last read or changed. Only
    /// a newer one shows more.
    pub(super) as_of: ListingRound,
    /// When it was last read from the cloud.
    pub(super) read_at: Option<Instant>,
    /// Floating IP on the VIP's port.
    pub(super) floating_ip: AttachedFloatingIp,
    pub(super) security_group: SecurityGroupSyncState,
    pub(super) last_applied: Option<LastApplied>,
    /// True when something was begun and not finished; then `observed` is used in every read mode.
    pub(super) unfinished: bool,
    /// `None` unless the load balancer is pending.
    pending: Option<PendingSince>,
    /// When the load balancer was last failed over.
    pub(super) failed_over: Option<Instant>,
    /// True when the load balancer that the Service names was deleted because its creation had
    /// failed.
    pub(super) replaced_failed: bool,
    /// Load balancer that is being deleted.
    pub(super) deleting_id: Option<Box<str>>,
    /// Algorithm that the cloud rejected; this process does not try it again.
    pub(super) rejected_method: Option<PoolMethod>,
}

impl LoadBalancerSyncState {
    /// Forgets the observed state.
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

    /// Returns what a later attempt to delete the Service still needs.
    pub(super) fn after_failed_deletion(self) -> Self {
        Self {
            failed_over: self.failed_over,
            deleting_id: self.deleting_id,
            ..Self::default()
        }
    }

    /// Returns the observed load balancer.
    ///
    /// # Errors
    /// It does not exist any more.
    pub(super) fn require_observed(&self) -> Result<&ObservedLoadBalancer, CloudError> {
        self.observed.as_ref().ok_or_else(object_gone)
    }

    /// Takes the observed load balancer, to put it back after it was changed.
    ///
    /// # Errors
    /// It does not exist any more.
    pub(super) fn take_observed(&mut self) -> Result<ObservedLoadBalancer, CloudError> {
        self.observed.take().ok_or_else(object_gone)
    }

    /// Returns whether the observed state is good enough for a read mode.
    pub(super) fn is_observed_for(&self, read_mode: ReadMode) -> bool {
        if self.observed.is_none() {
            return false;
        }
        if read_mode == ReadMode::Cached {
            return true;
        }
        let age = self.read_at.map(|at| at.elapsed());
        if self.unfinished && age.is_some_and(|age| age < RESUME_WINDOW) {
            return true;
        }
        // The rate limit interrupted the last observation before the children were read.
        !self.children_known && age.is_some_and(|age| age < RESUMED_OBSERVATION_AGE)
    }

    /// Sets the result of looking for the load balancer. Its children are not known yet.
    pub(super) fn set_found(&mut self, found: Option<LoadBalancer>, now: ListingRound) {
        self.observed = found.map(ObservedLoadBalancer::new);
        self.read_at = Some(Instant::now());
        self.as_of = now;
    }

    /// Sets what a shared listing shows.
    pub(super) fn set_listed(&mut self, listed: ListedService) {
        self.observed = Some(listed.observed);
        self.floating_ip = listed.floating_ip;
        self.security_group.listed = listed.security_group;
        self.read_at = Some(listed.read_at);
        self.from_listing = true;
    }

    /// Replaces a load balancer from a shared listing by the one that was read for this Service.
    /// Its children and its floating IP have to be read again too.
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

    /// Sets the load balancer after this process has changed it.
    pub(super) fn set_changed(&mut self, observed: ObservedLoadBalancer, now: ListingRound) {
        self.observed = Some(observed);
        self.stop_waiting();
        self.mark_changed(now);
    }

    /// Returns whether an action only sets an algorithm that the cloud has rejected.
    pub(super) fn has_rejected(&self, action: &PlannedAction) -> bool {
        self.rejected_method.is_some() && self.rejected_method == action.method_change()
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.pending.is_some()
    }

    /// Records that the load balancer is not pending, or pending with another change.
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

    /// Records that something was changed, or may have been.
    pub(super) fn mark_changed(&mut self, now: ListingRound) {
        self.listings_stale_until = Some(now);
        self.as_of = now;
    }

    /// Returns how old an answer may be that shows whether the load balancer is still busy.
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
    /// Takes the sync state of a Service. Until it is [put back](Self::put) nothing is known, and
    /// listings from before now do not count: the future that took it may be dropped amid a change.
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

/// Returns a delay as long as the wait so far, within bounds. That doubles the time between tries.
pub(super) fn pause(op: &Op) -> Duration {
    op.pending_for().clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL)
}

/// The object to be changed does not exist any more: retried after one second.
pub(super) fn object_gone() -> CloudError {
    CloudError::transient("the load balancer changed meanwhile")
        .with_retry_after(Duration::from_secs(1))
}
