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

use ccm_core::provider::{Digest, Op};
use openstack_api::neutron::FloatingIp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{model::DesiredLoadBalancer, security_groups::listed::ListedSecurityGroup};
use crate::lb::{desired_members::NodeBackend, observed::ObservedLoadBalancer};

/// Minimum and maximum delay between two polls of a load balancer that is not ready.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

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
    /// Security group and ports from a shared listing.
    pub(super) listed_security_group: Option<ListedSecurityGroup>,
    /// Desired state and backends that were last applied completely.
    pub(super) last_applied: Option<(Arc<DesiredLoadBalancer>, Vec<NodeBackend>)>,
    /// Digest of the security group and backends that were last applied completely.
    pub(super) applied_security_group: Option<Digest>,
    /// True when something was begun and not finished; then `observed` is used in every read mode.
    pub(super) unfinished: bool,
    /// Since when the load balancer is pending, and whether a warning was emitted.
    pub(super) waiting_since: Option<(Instant, bool)>,
    /// When the load balancer was last failed over.
    pub(super) failed_over: Option<Instant>,
    /// True when the load balancer that the Service names was deleted because its creation had
    /// failed.
    pub(super) replaced_failed: bool,
    /// Load balancer that is being deleted.
    pub(super) deleting_id: Option<Box<str>>,
    /// Pool and algorithm that the cloud rejected; this process does not try it again.
    pub(super) rejected_method: Option<(String, Box<str>)>,
}

impl LoadBalancerSyncState {
    /// Forgets the observed state.
    pub(super) fn invalidate(&mut self) {
        self.observed = None;
        self.children_known = false;
        self.from_listing = false;
        self.read_at = None;
        self.floating_ip = AttachedFloatingIp::Unknown;
        self.listed_security_group = None;
        self.applied_security_group = None;
        self.last_applied = None;
        self.unfinished = false;
    }

    /// Returns the delay before the next poll: half the time that the load balancer has been
    /// pending, within bounds.
    pub(super) fn poll_interval(&mut self) -> Duration {
        let (since, _) = *self.waiting_since.get_or_insert((Instant::now(), false));
        (since.elapsed() / 2).clamp(POLL_INTERVAL.0, POLL_INTERVAL.1)
    }

    /// Records that something was changed, or may have been.
    pub(super) fn mark_changed(&mut self, now: ListingRound) {
        self.listings_stale_until = Some(now);
        self.as_of = now;
    }

    /// Returns how old an answer may be that shows whether the load balancer is still busy.
    pub(super) fn max_observation_age(&mut self) -> Duration {
        (self.poll_interval() / 4).max(POLL_INTERVAL.0)
    }

    /// Returns true once, when the wait has become longer than `patience`.
    pub(super) fn crossed_warning_threshold(&mut self, patience: Duration) -> bool {
        match &mut self.waiting_since {
            Some((since, warned)) if !*warned && since.elapsed() >= patience => {
                *warned = true;
                true
            }
            _ => false,
        }
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
        let doubt = LoadBalancerSyncState {
            listings_stale_until: Some(self.rounds.now()),
            ..LoadBalancerSyncState::default()
        };
        self.states
            .lock()
            .insert(uid.into(), doubt)
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
    op.pending_for().clamp(POLL_INTERVAL.0, POLL_INTERVAL.1)
}
