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

use super::{model::Wanted, nodes::Backend, security::listed::Listed, seen::Seen};

/// Bounds of the pause between two looks at a balancer that is not ready.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// A place in the order of shared readings: clocks alone cannot tell what came first within a tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Round(u64);

/// Counts shared readings.
#[derive(Debug, Default)]
pub(super) struct Rounds(AtomicU64);

impl Rounds {
    /// Returns the last reading that has begun: only those after it show what was changed before now.
    pub(super) fn now(&self) -> Round {
        Round(self.0.load(Ordering::SeqCst))
    }

    /// Begins a reading.
    pub(super) fn begin(&self) -> Round {
        Round(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

/// What is known of the floating IP on the VIP's port.
#[derive(Clone, Debug, Default)]
pub(super) enum Attached {
    /// It has to be read.
    #[default]
    Unread,
    /// There is none.
    Nothing,
    /// This one.
    This(Box<FloatingIp>),
}

impl Attached {
    /// Returns the floating IP that is known to be there.
    pub(super) fn get(&self) -> Option<&FloatingIp> {
        match self {
            Self::This(floating) => Some(floating),
            Self::Unread | Self::Nothing => None,
        }
    }
}

impl From<Option<FloatingIp>> for Attached {
    fn from(found: Option<FloatingIp>) -> Self {
        found.map_or(Self::Nothing, |floating| Self::This(Box::new(floating)))
    }
}

/// What is known of one Service.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each named at its use")]
pub(super) struct Known {
    /// What there is; `None` when that has to be read.
    pub(super) seen: Option<Seen>,
    /// Whether the children are known too.
    pub(super) complete: bool,
    /// Whether the picture is of a reading that was shared: good to compare with, and looked at again before anything is
    /// changed but members, which were read for this Service alone.
    pub(super) shared: bool,
    /// What was read in common up to then does not count: this process has changed something since, or may have; `None`
    /// when it has never touched the Service.
    pub(super) touched: Option<Round>,
    /// The last shared reading that had begun when the balancer was last looked at or changed: only a newer one tells more.
    pub(super) as_of: Round,
    /// When it was last read from the cloud.
    pub(super) read_at: Option<Instant>,
    /// Floating IP on the VIP's port.
    pub(super) floating: Attached,
    /// Security group and ports of a reading that was shared.
    pub(super) listed: Option<Listed>,
    /// What it was completely brought to, with these backends.
    pub(super) applied: Option<(Arc<Wanted>, Vec<Backend>)>,
    /// What the security group and the ports were completely brought to.
    pub(super) group: Option<Digest>,
    /// Whether something was begun and not finished, so that the picture is to be used at any depth.
    pub(super) unfinished: bool,
    /// Since when the balancer is waited for, and whether a warning was given.
    pub(super) waiting: Option<(Instant, bool)>,
    /// When the balancer was last failed over.
    pub(super) failed_over: Option<Instant>,
    /// Whether the balancer that the Service names was deleted because it could not be made.
    pub(super) given_up: bool,
    /// Balancer that is being deleted.
    pub(super) deleting: Option<Box<str>>,
    /// Algorithm that the cloud refused for a pool: not to be tried again by this process.
    pub(super) refused_method: Option<(String, Box<str>)>,
}

impl Known {
    /// Forgets what there is.
    pub(super) fn doubt(&mut self) {
        (self.seen, self.complete, self.shared, self.read_at) = (None, false, false, None);
        (self.floating, self.listed, self.group) = (Attached::Unread, None, None);
        (self.applied, self.unfinished) = (None, false);
    }

    /// Returns how long to wait for the balancer: the longer it takes the longer, counted from its last change.
    pub(super) fn pause(&mut self) -> Duration {
        let (since, _) = *self.waiting.get_or_insert((Instant::now(), false));
        (since.elapsed() / 2).clamp(PAUSES.0, PAUSES.1)
    }

    /// Notes that something was changed, or may have been.
    pub(super) fn touch(&mut self, now: Round) {
        (self.touched, self.as_of) = (Some(now), now);
    }

    /// Returns how old a look may be that says whether the balancer is still busy.
    pub(super) fn look_age(&mut self) -> Duration {
        (self.pause() / 4).max(PAUSES.0)
    }

    /// Tells once that the wait has become long.
    pub(super) fn has_become_long(&mut self, patience: Duration) -> bool {
        match &mut self.waiting {
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
pub(super) struct Memory {
    known: Mutex<HashMap<Box<str>, Known>>,
    pub(super) rounds: Rounds,
}

impl Memory {
    /// Takes what is known of a Service. Until it is [put back](Self::put) nothing is known, and what was read in common
    /// before now does not count: whoever took it may be dropped amid a change.
    pub(super) fn take(&self, uid: &str) -> Known {
        let doubt = Known { touched: Some(self.rounds.now()), ..Known::default() };
        self.known.lock().insert(uid.into(), doubt).unwrap_or_default()
    }

    pub(super) fn put(&self, uid: &str, known: Known) {
        self.known.lock().insert(uid.into(), known);
    }

    pub(super) fn forget(&self, uid: &str) {
        self.known.lock().remove(uid);
    }
}

/// Waits as long as it was waited so far, which doubles the time between tries, within bounds.
pub(super) fn pause(op: &Op) -> Duration {
    op.pending_for().clamp(PAUSES.0, PAUSES.1)
}
