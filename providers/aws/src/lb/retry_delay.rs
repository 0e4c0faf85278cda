//! Delays before the next try while AWS is still working on an object. Each delay equals the time
//! waited so far, within bounds, so that it doubles from try to try.

use std::{hash::Hash, time::Duration};

use ccm_core::provider::{CloudError, Digest, Op, Progress};

/// Work that must not be tried again before a delay.
#[derive(Clone, Debug)]
pub(super) struct Deferred {
    /// The delay before the next try.
    pub(super) after: Duration,
    /// The reason for the delay, as users see it.
    pub(super) reason: Box<str>,
}

impl From<Deferred> for Progress {
    fn from(Deferred { after, reason }: Deferred) -> Self {
        Self::Pending { after, reason }
    }
}

/// Returns [`Progress::Pending`] with the shortest delay and all reasons, or [`Progress::Done`] if
/// nothing was deferred.
pub(super) fn earliest(deferred: Vec<Deferred>) -> Progress {
    let Some(after) = deferred.iter().map(|deferred| deferred.after).min() else {
        return Progress::Done;
    };
    let reasons: Vec<_> = deferred
        .into_iter()
        .map(|deferred| deferred.reason)
        .collect();
    Progress::Pending { after, reason: reasons.join("; ").into() }
}

/// Delays before the first retries after AWS did not find an object that the Service names or that
/// was just created. A certificate or an address is often created together with its Service.
const MISSING_OBJECT_DELAYS: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(15), Duration::from_secs(60)];

/// The retries of one Service for an object that AWS does not find.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MissingObjectRetries {
    /// The desired state that cannot be applied.
    desired: Option<Digest>,
    /// The number of failed attempts to apply it.
    failures: usize,
}

impl MissingObjectRetries {
    /// Counts a failed attempt, and returns its error with the delay before the next one. After
    /// some short delays, the error keeps the delay that it has. A change of the Service begins
    /// anew.
    pub(super) fn shorten_delay(&mut self, desired: &impl Hash, error: CloudError) -> CloudError {
        let digest = Digest::of(desired);
        if self.desired != Some(digest) {
            *self = Self { desired: Some(digest), failures: 0 };
        }
        let delay = MISSING_OBJECT_DELAYS.get(self.failures);
        self.failures = self.failures.saturating_add(1);
        match delay {
            Some(delay) => error.with_retry_after(*delay),
            None => error,
        }
    }
}

/// Time after which a Warning event reports that a deletion is slow.
pub(super) const SLOW_DELETION_THRESHOLD: Duration = Duration::from_secs(1800);

/// Returns the delay before the next try to delete an object that is in use.
pub(super) fn object_in_use(op: &Op) -> Duration {
    op.pending_for()
        .clamp(Duration::from_secs(2), Duration::from_secs(60))
}

/// Returns the delay before the next try to delete a security group that is in use. AWS takes
/// minutes to remove the interfaces of a load balancer.
pub(super) fn security_group_in_use(op: &Op) -> Duration {
    op.pending_for()
        .clamp(Duration::from_secs(5), Duration::from_secs(60))
}

/// Returns the delay before rejected targets are registered again. AWS rejects an instance that is
/// starting until it runs.
pub(super) fn rejected_targets(op: &Op) -> Duration {
    op.pending_for()
        .clamp(Duration::from_secs(15), Duration::from_secs(300))
}

/// Returns the delay before the health of targets is read again, while a Service moves to their load
/// balancer.
pub(super) fn unready_targets(op: &Op) -> Duration {
    op.pending_for()
        .clamp(Duration::from_secs(15), Duration::from_secs(60))
}

/// Returns the delay before the state of a new load balancer is read again. It is active after some
/// minutes.
pub(super) fn provisioning(op: &Op) -> Duration {
    op.pending_for()
        .clamp(Duration::from_secs(15), Duration::from_secs(60))
}

/// Returns the delay before capacity is reserved again. AWS carries out a reservation within an hour, or
/// some.
pub(super) fn capacity_reservation(op: &Op) -> Duration {
    op.pending_for()
        .clamp(Duration::from_secs(60), Duration::from_secs(600))
}

/// Returns true if a deletion has become slow. As a rule only one try gets true, because the next one
/// comes after `next_delay`, unless nodes change meanwhile.
pub(super) fn has_become_slow(op: &Op, next_delay: Duration) -> bool {
    (SLOW_DELETION_THRESHOLD..SLOW_DELETION_THRESHOLD + next_delay).contains(&op.pending_for())
}
