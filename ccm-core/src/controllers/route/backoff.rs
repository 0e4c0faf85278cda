//! The back-off of single changes. A change that failed or is pending does not delay others.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net};

use crate::{
    k8s::NodeView,
    provider::{CloudError, ErrorKind, Route},
    runtime::work_queue::Backoff,
};

/// The back-off of a change that may succeed the next time.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(500),
    cap: Duration::from_secs(60),
};
/// The back-off after an error that only a person can fix. It ends early when the node changes, or
/// when a route is deleted after a quota was exceeded.
const LONG_BACKOFF: Duration = Duration::from_secs(300);
/// The bounds of the delay before a pending change is repeated, if the provider asks for less. In
/// between, it is as long as the change has been pending.
const PENDING_DELAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));
/// The delay once a change has been pending for too long.
const SLOW_DELAY: Duration = Duration::from_secs(60);
/// The number of consecutive failures after which a transient error is reported by an event of the
/// nodes that it concerns.
const FAILURES_BEFORE_EVENT: u32 = 3;
/// The event reason of a route that was not created, as upstream.
pub(super) const FAILED_TO_CREATE: &str = "FailedToCreateRoute";

/// The time after which a pending change counts as failed, and is reported by an event of the node.
const SLOW_CHANGE: Duration = Duration::from_secs(600);

/// The identity of a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ChangeKey {
    /// The creation of a route, by the UID of its node and the destination.
    Create(Box<str>, IpNet),
    /// The deletion of a route, by its name and destination.
    Delete(Box<str>, IpNet),
}

impl ChangeKey {
    pub(crate) fn create(node: &NodeView, destination: IpNet) -> Self {
        Self::Create(node.uid.clone(), destination)
    }

    pub(crate) fn delete(route: &Route) -> Self {
        Self::Delete(route.name.clone(), route.destination)
    }

    /// Returns the destination of the route.
    pub(crate) fn destination(&self) -> IpNet {
        match self {
            Self::Create(_, destination) | Self::Delete(_, destination) => *destination,
        }
    }

    /// Returns true if this is a creation for the node with this UID.
    fn is_creation_for(&self, uid: &str) -> bool {
        matches!(self, Self::Create(owner, _) if **owner == *uid)
    }
}

/// The changes whose last attempt failed or is pending. Times are durations since the start of the
/// controller.
#[derive(Debug, Default)]
pub(crate) struct ChangeBackoff(BTreeMap<ChangeKey, UnfinishedChange>);

#[derive(Clone, Debug)]
pub(crate) struct UnfinishedChange {
    /// The number of consecutive failures.
    pub(crate) failures: u32,
    /// The last attempt.
    pub(crate) outcome: ChangeOutcome,
    /// The time of the last attempt.
    pub(crate) at: Duration,
    pub(crate) retry_at: Duration,
    /// The reason of the last event about a failure.
    reported_reason: Option<&'static str>,
    /// True after an event said that the change has been pending for too long.
    reported_slow: bool,
    /// The UID of the node that has an event about this deletion, and its reason.
    reported_deletion: Option<(Box<str>, &'static str)>,
}

/// The outcome of the last attempt of a change that is not done.
#[derive(Clone, Debug)]
pub(crate) enum ChangeOutcome {
    Failed(CloudError),
    Pending {
        /// The time since which the change is pending.
        since: Duration,
        /// What it waits for.
        reason: Box<str>,
    },
}

impl ChangeOutcome {
    /// Describes the outcome: the error, or what the change waits for.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Failed(error) => error.chain(),
            Self::Pending { reason, .. } => format!("it is still pending: {reason}"),
        }
    }
}

impl UnfinishedChange {
    /// Returns true if the cloud works on the change, and has not for too long.
    pub(crate) fn is_pending(&self, now: Duration) -> bool {
        match &self.outcome {
            ChangeOutcome::Failed(_) => false,
            ChangeOutcome::Pending { since, .. } => now.saturating_sub(*since) < SLOW_CHANGE,
        }
    }

    fn has_exceeded_quota(&self) -> bool {
        matches!(&self.outcome, ChangeOutcome::Failed(error) if error.kind() == ErrorKind::QuotaExceeded)
    }
}

impl ChangeBackoff {
    /// Returns true if the change is deferred.
    pub(crate) fn is_backed_off(&self, key: &ChangeKey, now: Duration) -> bool {
        self.0.get(key).is_some_and(|change| change.retry_at > now)
    }

    /// Returns the change if its last attempt failed or is pending.
    pub(crate) fn get(&self, key: &ChangeKey) -> Option<&UnfinishedChange> {
        self.0.get(key)
    }

    /// Returns true if the change is pending, and not for so long that it counts as failed.
    pub(crate) fn is_pending(&self, key: &ChangeKey, now: Duration) -> bool {
        self.get(key).is_some_and(|change| change.is_pending(now))
    }

    /// Returns the time at which the first change is to be retried, which may be over.
    pub(crate) fn next_retry(&self) -> Option<Duration> {
        self.0.values().map(|change| change.retry_at).min()
    }

    /// Returns the changes whose last attempt failed or is pending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ChangeKey, &UnfinishedChange)> {
        self.0.iter()
    }

    /// Returns the number of changes whose last attempt failed, or that have been pending for so
    /// long that they count as failed.
    pub(crate) fn failed(&self, now: Duration) -> usize {
        self.0
            .values()
            .filter(|change| !change.is_pending(now))
            .count()
    }

    /// Counts a failure. Returns the reason of the event to emit, unless the node already has an
    /// event with this reason.
    pub(crate) fn record_failure(
        &mut self,
        key: ChangeKey,
        error: &CloudError,
        now: Duration,
    ) -> Option<&'static str> {
        let kind = error.kind();
        let reason = error.reason().unwrap_or(FAILED_TO_CREATE);
        let needs_event = self.needs_event(&key, reason);
        let outcome = ChangeOutcome::Failed(error.clone());
        let change = self.record(key, outcome, now);
        change.failures = change.failures.saturating_add(1);
        let delay = error.retry_after().unwrap_or_else(|| match kind {
            ErrorKind::InvalidInput | ErrorKind::QuotaExceeded | ErrorKind::NotImplemented => {
                LONG_BACKOFF
            }
            // Changes that failed together are retried together, so that they share a batch.
            _ => BACKOFF.shared_delay(change.failures, now),
        });
        change.retry_at = now + delay;
        if !needs_event || !is_worth_an_event(error, change.failures) {
            return None;
        }
        change.reported_reason = Some(reason);
        Some(reason)
    }

    /// Records that a change is pending and is to be repeated after a delay. Returns the reason of
    /// the event to emit if it has been pending for too long, unless the node already has one.
    pub(crate) fn record_pending(
        &mut self,
        key: ChangeKey,
        after: Duration,
        reason: &str,
        now: Duration,
    ) -> Option<&'static str> {
        let needs_event = match &key {
            ChangeKey::Create(uid, _) => self.for_node(uid).all(|change| !change.reported_slow),
            ChangeKey::Delete(..) => false,
        };
        let since = match self.0.get(&key).map(|change| &change.outcome) {
            Some(ChangeOutcome::Pending { since, .. }) => *since,
            _ => now,
        };
        let outcome = ChangeOutcome::Pending { since, reason: reason.into() };
        // The failures before stay counted, because an action may be accepted and fail each time.
        let change = self.record(key, outcome, now);
        let waited = now.saturating_sub(since);
        let growing = waited.clamp(PENDING_DELAY.0, PENDING_DELAY.1);
        if change.is_pending(now) {
            change.retry_at = now + after.max(growing);
            return None;
        }
        change.retry_at = now + after.max(SLOW_DELAY);
        if !needs_event {
            return None;
        }
        change.reported_slow = true;
        Some(FAILED_TO_CREATE)
    }

    /// Records the outcome of an attempt that was made now.
    fn record(
        &mut self,
        key: ChangeKey,
        outcome: ChangeOutcome,
        now: Duration,
    ) -> &mut UnfinishedChange {
        let change = self.0.entry(key).or_insert(UnfinishedChange {
            failures: 0,
            outcome: outcome.clone(),
            at: now,
            retry_at: now,
            reported_reason: None,
            reported_slow: false,
            reported_deletion: None,
        });
        change.outcome = outcome;
        change.at = now;
        change
    }

    /// Returns true if a failure with this reason is to be reported on the node. One event covers
    /// all routes of a node that fail for the same reason. Deletions are reported by
    /// [`deletion_event`](Self::deletion_event), because they belong to no node.
    fn needs_event(&mut self, key: &ChangeKey, reason: &'static str) -> bool {
        match key {
            ChangeKey::Create(uid, _) => self
                .for_node(uid)
                .all(|change| change.reported_reason != Some(reason)),
            ChangeKey::Delete(..) => false,
        }
    }

    /// Returns the reason of the event to emit about a deletion that failed or has been pending for
    /// too long, on the node with this UID; `None` if none is due, or the node already has an event
    /// with this reason. `default` is the reason of an error that names none.
    pub(crate) fn deletion_event(
        &mut self,
        key: &ChangeKey,
        node_uid: &str,
        default: &'static str,
        now: Duration,
    ) -> Option<&'static str> {
        let change = self.get(key)?;
        let reason = match &change.outcome {
            ChangeOutcome::Failed(error) if is_worth_an_event(error, change.failures) => {
                error.reason().unwrap_or(default)
            }
            ChangeOutcome::Pending { .. } if !change.is_pending(now) => default,
            _ => return None,
        };
        let reported = Some((Box::from(node_uid), reason));
        if change.reported_deletion == reported {
            return None;
        }
        let is_covered = self
            .0
            .values()
            .any(|other| other.reported_deletion == reported)
            || self.for_node(node_uid).any(|other| {
                other.reported_reason == Some(reason)
                    || other.reported_slow && reason == FAILED_TO_CREATE
            });
        self.0.get_mut(key)?.reported_deletion = reported;
        (!is_covered).then_some(reason)
    }

    /// Removes a change that succeeded.
    pub(crate) fn record_success(&mut self, key: &ChangeKey) {
        self.0.remove(key);
        if let ChangeKey::Delete(..) = key {
            // The deletion made room for routes that exceeded the quota.
            for change in self.0.values_mut() {
                if change.has_exceeded_quota() {
                    change.retry_at = Duration::ZERO;
                }
            }
        }
    }

    /// Ends the back-off of all creations for a node, because the node has changed.
    pub(crate) fn retry_now(&mut self, uid: &str) {
        for change in self.for_node(uid) {
            change.retry_at = Duration::ZERO;
        }
    }

    /// Returns the unfinished creations for a node. This takes logarithmic time, because it is called
    /// for every node during an outage.
    fn for_node<'a>(&'a mut self, uid: &'a str) -> impl Iterator<Item = &'a mut UnfinishedChange> {
        let first = ChangeKey::Create(uid.into(), IpNet::V4(Ipv4Net::default()));
        self.0
            .range_mut(first..)
            .take_while(move |(key, _)| key.is_creation_for(uid))
            .map(|(_, change)| change)
    }

    /// Removes the changes that are no longer needed.
    pub(crate) fn retain(&mut self, needed: &HashSet<ChangeKey>) {
        self.0.retain(|key, _| needed.contains(key));
    }
}

/// Returns true if an error is to be reported by an event after so many consecutive failures. A
/// transient error often affects all nodes, so it is not reported on the first one.
pub(super) fn is_worth_an_event(error: &CloudError, failures: u32) -> bool {
    !is_transient(error.kind()) || failures >= FAILURES_BEFORE_EVENT
}

/// Returns true if an error is probably not specific to the node and may go away soon.
fn is_transient(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Transient | ErrorKind::Throttled | ErrorKind::Conflict | ErrorKind::NotFound
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn key(uid: &str) -> ChangeKey {
        ChangeKey::Create(uid.into(), "10.0.0.0/24".parse().unwrap())
    }

    fn error(kind: ErrorKind) -> CloudError {
        CloudError::new(kind, "no")
    }

    #[test]
    fn a_failed_change_waits_by_itself_and_longer_each_time() {
        let mut failures = ChangeBackoff::default();
        let mut now = Duration::ZERO;
        let mut delays = Vec::new();
        for _ in 0..10 {
            failures.record_failure(key("a"), &error(ErrorKind::Transient), now);
            let due = failures.next_retry().unwrap();
            assert!(
                failures.is_backed_off(&key("a"), now) && !failures.is_backed_off(&key("a"), due)
            );
            delays.push(due.saturating_sub(now).as_secs_f64());
            now = due;
        }
        assert!(!failures.is_backed_off(&key("b"), Duration::ZERO));
        let wanted = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0];
        assert!(
            delays
                .iter()
                .zip(wanted)
                .all(|(have, want)| (want..want * 1.1).contains(have)),
            "{delays:?}"
        );
        failures.record_success(&key("a"));
        assert_eq!(failures.next_retry(), None);
    }

    #[test]
    fn the_error_says_how_long_to_wait() {
        let due = |error: &CloudError| {
            let mut failures = ChangeBackoff::default();
            failures.record_failure(key("a"), error, secs(10));
            failures.next_retry().unwrap().saturating_sub(secs(10))
        };
        assert_eq!(due(&error(ErrorKind::InvalidInput)), secs(300));
        assert_eq!(due(&error(ErrorKind::QuotaExceeded)), secs(300));
        assert_eq!(due(&error(ErrorKind::Transient).with_retry_after(secs(42))), secs(42));
        assert_eq!(due(&error(ErrorKind::InvalidInput).with_retry_after(secs(42))), secs(42));
    }

    #[test]
    fn a_pending_change_is_no_failure_until_it_has_taken_too_long() {
        let mut changes = ChangeBackoff::default();
        let mut told = Vec::new();
        for at in [2, 300, 601, 602, 700] {
            let reason = changes.record_pending(key("a"), secs(1), "runs", secs(at));
            let delay = changes.next_retry().unwrap().saturating_sub(secs(at));
            told.push((reason, changes.is_pending(&key("a"), secs(at)), delay.as_secs()));
            assert_eq!(changes.failed(secs(at)), usize::from(at >= 602));
        }
        let slow = Some(FAILED_TO_CREATE);
        let expected = [
            (None, true, 1),
            (None, true, 15),
            (None, true, 15),
            (slow, false, 60),
            (None, false, 60),
        ];
        assert_eq!(told, expected);
        // An error is told although the event about the wait has the same reason.
        let invalid = error(ErrorKind::InvalidInput);
        assert_eq!(changes.record_failure(key("a"), &invalid, secs(701)), slow);
        // A change of the node repeats it, and its deletion has no event by itself.
        changes.retry_now("a");
        assert!(!changes.is_backed_off(&key("a"), secs(702)));
        let delete = ChangeKey::Delete("r".into(), "10.0.1.0/24".parse().unwrap());
        for at in [1, 602] {
            assert_eq!(changes.record_pending(delete.clone(), secs(5), "runs", secs(at)), None);
        }
    }

    /// The cloud accepts an action each time, and it fails each time.
    #[test]
    fn what_is_accepted_and_fails_again_and_again_is_told_and_backs_off() {
        let mut changes = ChangeBackoff::default();
        let mut now = secs(1);
        let mut told = Vec::new();
        for _ in 0..5 {
            assert_eq!(changes.record_pending(key("a"), secs(1), "runs", now), None);
            now = changes.next_retry().unwrap();
            let failure = error(ErrorKind::Transient);
            told.push(changes.record_failure(key("a"), &failure, now));
            now = changes.next_retry().unwrap();
        }
        assert_eq!(told, [None, None, Some(FAILED_TO_CREATE), None, None]);
        assert!(now > secs(15), "{now:?}");
    }

    #[test]
    fn a_deleted_route_makes_room_for_those_that_the_quota_refused() {
        let mut failures = ChangeBackoff::default();
        failures.record_failure(key("quota"), &error(ErrorKind::QuotaExceeded), secs(1));
        failures.record_failure(key("bad"), &error(ErrorKind::InvalidInput), secs(1));
        failures.record_success(&key("other"));
        assert!(failures.is_backed_off(&key("quota"), secs(2)), "a creation makes no room");
        failures.record_success(&ChangeKey::Delete("r".into(), "10.0.1.0/24".parse().unwrap()));
        assert!(
            !failures.is_backed_off(&key("quota"), secs(2))
                && failures.is_backed_off(&key("bad"), secs(2))
        );
    }

    #[test]
    fn a_change_of_the_node_ends_its_waits_alone() {
        let mut failures = ChangeBackoff::default();
        for uid in ["a", "b"] {
            failures.record_failure(key(uid), &error(ErrorKind::InvalidInput), secs(1));
        }
        failures.retry_now("a");
        assert!(
            !failures.is_backed_off(&key("a"), secs(2))
                && failures.is_backed_off(&key("b"), secs(2))
        );
    }

    #[test]
    fn a_deletion_is_told_once_on_each_node_that_it_concerns() {
        let delete =
            |destination: &str| ChangeKey::Delete("r".into(), destination.parse().unwrap());
        let (first, second) = (delete("10.0.1.0/24"), delete("10.0.2.0/24"));
        let denied = error(ErrorKind::Denied);
        let mut changes = ChangeBackoff::default();
        let told = |changes: &mut ChangeBackoff, key: &ChangeKey, node: &str| {
            changes.record_failure(key.clone(), &denied, secs(1));
            changes.deletion_event(key, node, FAILED_TO_CREATE, secs(1))
        };
        assert_eq!(told(&mut changes, &first, "a"), Some(FAILED_TO_CREATE));
        assert_eq!(told(&mut changes, &first, "a"), None);
        assert_eq!(told(&mut changes, &second, "a"), None, "one event covers both");
        assert_eq!(told(&mut changes, &first, "b"), Some(FAILED_TO_CREATE), "another node waits");
        // A creation for the node has failed for the same reason.
        changes.record_failure(key("c"), &denied, secs(1));
        assert_eq!(told(&mut changes, &first, "c"), None);
        changes.record_success(&first);
        assert_eq!(told(&mut changes, &first, "b"), Some(FAILED_TO_CREATE), "it is news again");

        // What may pass is told after three failures, and a wait after ten minutes.
        let mut changes = ChangeBackoff::default();
        let mut told = Vec::new();
        for _ in 0..4 {
            changes.record_failure(first.clone(), &error(ErrorKind::Transient), secs(1));
            told.push(changes.deletion_event(&first, "a", "Deletion", secs(1)));
        }
        assert_eq!(told, [None, None, Some("Deletion"), None]);
        for (at, expected) in [(2, None), (601, None), (602, Some("Deletion")), (603, None)] {
            changes.record_pending(second.clone(), secs(1), "runs", secs(at));
            assert_eq!(changes.deletion_event(&second, "b", "Deletion", secs(at)), expected);
        }
    }

    #[test]
    fn a_passing_trouble_is_told_after_three_failures_and_others_at_once_but_once() {
        let mut failures = ChangeBackoff::default();
        let told: Vec<_> = (0..5)
            .map(|i| failures.record_failure(key("a"), &error(ErrorKind::Transient), secs(i)))
            .collect();
        assert_eq!(told, [None, None, Some(FAILED_TO_CREATE), None, None]);
        let other = ChangeKey::Create("a".into(), "fd00::/64".parse().unwrap());
        assert_eq!(
            failures.record_failure(other, &error(ErrorKind::InvalidInput), secs(5)),
            None,
            "it has been told"
        );
        assert_eq!(
            failures.record_failure(key("b"), &error(ErrorKind::InvalidInput), secs(5)),
            Some(FAILED_TO_CREATE)
        );
        let bad = error(ErrorKind::InvalidInput).with_reason("RouteTableFull");
        let told: Vec<_> = (0..2)
            .map(|i| failures.record_failure(key("a"), &bad, secs(i)))
            .collect();
        assert_eq!(told, [Some("RouteTableFull"), None]);
        failures.record_success(&key("a"));
        assert_eq!(
            failures.record_failure(key("a"), &bad, secs(9)),
            Some("RouteTableFull"),
            "it is news again"
        );
    }
}
