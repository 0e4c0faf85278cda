//! What this process knows of each Service's balancer: what it read, and what it changed since.
//!
//! Nobody else changes these things in the ordinary run of things; what somebody changes by hand is found by the comparison
//! that the framework asks for now and then. After an error nothing is known any more.

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

use super::{
    members::NodeBackend, model::DesiredLoadBalancer, security_groups::listed::ListedSecurityGroup,
    seen::ObservedLoadBalancer,
};

/// Bounds of the pause between two looks at a balancer that is not ready.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// A place in the order of shared readings: clocks alone cannot tell what came first within a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListingRound(u64);

/// Counts shared readings.
#[derive(Debug, Default)]
pub(super) struct ListingRounds(AtomicU64);

impl ListingRounds {
    /// Returns the last reading that has begun: only those after it show what was changed before now.
    pub(super) fn now(&self) -> ListingRound {
        ListingRound(self.0.load(Ordering::SeqCst))
    }

    /// Begins a reading.
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
    /// Returns the floating IP that is known to be there.
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

/// What is known of one Service.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each named at its use")]
pub(super) struct LoadBalancerSyncState {
    /// What there is; `None` when that has to be read.
    pub(super) observed: Option<ObservedLoadBalancer>,
    /// Whether the children are known too.
    pub(super) children_known: bool,
    /// Whether the picture is of a reading that was shared: good to compare with, and looked at again before anything is
    /// changed but members, which were read for this Service alone.
    pub(super) from_listing: bool,
    /// What was read in common up to then does not count: this process has changed something since, or may have; `None`
    /// when it has never touched the Service.
    pub(super) listings_stale_until: Option<ListingRound>,
    /// The last shared reading that had begun when the balancer was last looked at or changed: only a newer one tells more.
    pub(super) as_of: ListingRound,
    /// When it was last read from the cloud.
    pub(super) read_at: Option<Instant>,
    /// Floating IP on the VIP's port.
    pub(super) floating_ip: AttachedFloatingIp,
    /// Security group and ports of a reading that was shared.
    pub(super) listed_security_group: Option<ListedSecurityGroup>,
    /// What it was completely brought to, with these backends.
    pub(super) last_applied: Option<(Arc<DesiredLoadBalancer>, Vec<NodeBackend>)>,
    /// What the security group and the ports were completely brought to.
    pub(super) applied_security_group: Option<Digest>,
    /// Whether something was begun and not finished, so that the picture is to be used at any depth.
    pub(super) unfinished: bool,
    /// Since when the balancer is waited for, and whether a warning was given.
    pub(super) waiting_since: Option<(Instant, bool)>,
    /// When the balancer was last failed over.
    pub(super) failed_over: Option<Instant>,
    /// Whether the balancer that the Service names was deleted because it could not be made.
    pub(super) replaced_failed: bool,
    /// Balancer that is being deleted.
    pub(super) deleting_id: Option<Box<str>>,
    /// Algorithm that the cloud refused for a pool: not to be tried again by this process.
    pub(super) rejected_method: Option<(String, Box<str>)>,
}

impl LoadBalancerSyncState {
    /// Forgets what there is.
    pub(super) fn invalidate(&mut self) {
        (self.observed, self.children_known, self.from_listing, self.read_at) = (None, false, false, None);
        (self.floating_ip, self.listed_security_group, self.applied_security_group) =
            (AttachedFloatingIp::Unknown, None, None);
        (self.last_applied, self.unfinished) = (None, false);
    }

    /// Returns how long to wait for the balancer: the longer it takes the longer, counted from its last change.
    pub(super) fn poll_interval(&mut self) -> Duration {
        let (since, _) = *self.waiting_since.get_or_insert((Instant::now(), false));
        (since.elapsed() / 2).clamp(POLL_INTERVAL.0, POLL_INTERVAL.1)
    }

    /// Notes that something was changed, or may have been.
    pub(super) fn mark_changed(&mut self, now: ListingRound) {
        (self.listings_stale_until, self.as_of) = (Some(now), now);
    }

    /// Returns how old a look may be that says whether the balancer is still busy.
    pub(super) fn max_observation_age(&mut self) -> Duration {
        (self.poll_interval() / 4).max(POLL_INTERVAL.0)
    }

    /// Tells once that the wait has become long.
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

/// What is known of all Services, by UID. A Service is owned by one worker at a time.
#[derive(Debug, Default)]
pub(super) struct SyncStateStore {
    states: Mutex<HashMap<Box<str>, LoadBalancerSyncState>>,
    pub(super) rounds: ListingRounds,
}

impl SyncStateStore {
    /// Takes what is known of a Service. Until it is [put back](Self::put) nothing is known, and what was read in common
    /// before now does not count: whoever took it may be dropped amid a change.
    pub(super) fn take(&self, uid: &str) -> LoadBalancerSyncState {
        let doubt =
            LoadBalancerSyncState { listings_stale_until: Some(self.rounds.now()), ..LoadBalancerSyncState::default() };
        self.states.lock().insert(uid.into(), doubt).unwrap_or_default()
    }

    pub(super) fn put(&self, uid: &str, known: LoadBalancerSyncState) {
        self.states.lock().insert(uid.into(), known);
    }

    pub(super) fn forget(&self, uid: &str) {
        self.states.lock().remove(uid);
    }
}

/// Waits as long as it was waited so far, which doubles the time between tries, within bounds.
pub(super) fn pause(op: &Op) -> Duration {
    op.pending_for().clamp(POLL_INTERVAL.0, POLL_INTERVAL.1)
}
