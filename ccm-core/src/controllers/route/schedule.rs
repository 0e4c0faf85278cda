//! Schedules the reconciles. One starts at once after a change, but at most one per second, and at
//! least one per period.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::metrics::SyncTrigger;

/// The minimum interval between two reconciles, so that changes that come close together share one.
/// Upstream reserves 10 s for each change, one after the other.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum interval before a reconcile that only repairs a condition. If two controllers
/// disagree about a condition, they must not keep the cloud busy.
const MIN_CONDITION_INTERVAL: Duration = Duration::from_secs(10);

/// The kind of a node change, by what it affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeChangeKind {
    /// The routes of the node may be outdated.
    Routes,
    /// Another client changed the condition of the node.
    NetworkCondition,
}

/// Node changes since the last reconcile.
#[derive(Debug, Default)]
pub(super) struct PendingNodeChanges {
    pending: Mutex<NodeChangeSet>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct NodeChangeSet {
    /// The names of the nodes whose routes may be outdated.
    nodes: HashSet<Arc<str>>,
    /// True if another client changed a condition.
    condition_changed: bool,
}

impl PendingNodeChanges {
    /// Records a change, and wakes up the reconcile loop if the change is more urgent than those
    /// before.
    pub(super) fn record(&self, node: &Arc<str>, change: NodeChangeKind) {
        let mut pending = self.pending.lock();
        let before = pending.most_urgent();
        match change {
            NodeChangeKind::Routes => {
                pending.nodes.insert(node.clone());
            }
            NodeChangeKind::NetworkCondition => pending.condition_changed = true,
        }
        if pending.most_urgent() != before {
            self.wake.notify_one();
        }
    }

    /// Waits until a change is recorded that is more urgent than those before.
    ///
    /// # Cancellation
    /// This method is cancel safe: no change is lost.
    pub(super) async fn changed(&self) {
        self.wake.notified().await;
    }

    /// Returns the most urgent kind of change.
    pub(super) fn pending(&self) -> Option<NodeChangeKind> {
        self.pending.lock().most_urgent()
    }

    /// Takes all changes; returns the nodes whose routes may be outdated.
    pub(super) fn take(&self) -> HashSet<Arc<str>> {
        std::mem::take(&mut *self.pending.lock()).nodes
    }
}

impl NodeChangeSet {
    fn most_urgent(&self) -> Option<NodeChangeKind> {
        if !self.nodes.is_empty() {
            Some(NodeChangeKind::Routes)
        } else if self.condition_changed {
            Some(NodeChangeKind::NetworkCondition)
        } else {
            None
        }
    }
}

/// The times of reconciles.
#[derive(Debug)]
pub(super) struct Schedule {
    /// The start of the last reconcile.
    last: Option<Instant>,
    /// The end of the period.
    periodic: Instant,
    /// The time of the retry after changes or a listing failed.
    pub(super) retry: Option<Instant>,
}

impl Schedule {
    pub(super) fn new(now: Instant) -> Self {
        Self { last: None, periodic: now, retry: None }
    }

    /// Records the start of a reconcile. The next one is due after `period`, even without a change.
    pub(super) fn started(&mut self, now: Instant, period: Duration) {
        self.last = Some(now);
        self.periodic = now + period;
        self.retry = None;
    }

    /// Schedules a retry no later than `at`.
    pub(super) fn retry_by(&mut self, at: Instant) {
        if self.retry.is_none_or(|earlier| earlier > at) {
            self.retry = Some(at);
        }
    }

    /// Returns the time and the trigger of the next reconcile. It does not start before
    /// `not_before`.
    pub(super) fn next(
        &self,
        change: Option<NodeChangeKind>,
        not_before: Option<Instant>,
    ) -> (Instant, SyncTrigger) {
        let (at, trigger) = self.next_without_backoff(change);
        match not_before {
            Some(not_before) => (at.max(not_before), trigger),
            None => (at, trigger),
        }
    }

    fn next_without_backoff(&self, change: Option<NodeChangeKind>) -> (Instant, SyncTrigger) {
        // The first reconcile needs no trigger.
        let Some(last) = self.last else {
            return (self.periodic, SyncTrigger::Periodic);
        };
        let mut due = self.periodic;
        if let Some(retry) = self.retry {
            // The period itself may be shorter than the minimum interval, if so configured.
            due = due.min(retry.max(last + MIN_INTERVAL));
        }
        let min_interval = match change {
            Some(NodeChangeKind::Routes) => MIN_INTERVAL,
            Some(NodeChangeKind::NetworkCondition) => MIN_CONDITION_INTERVAL,
            None => return (due, SyncTrigger::Periodic),
        };
        if last + min_interval <= due {
            (last + min_interval, SyncTrigger::NodeChange)
        } else {
            (due, SyncTrigger::Periodic)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_change_acts_at_once_and_followers_within_a_second() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        assert_eq!(
            schedule.next(Some(NodeChangeKind::Routes), None),
            (start, SyncTrigger::Periodic)
        );
        schedule.started(start, secs(3600));
        let news = Some(NodeChangeKind::Routes);
        // Later than this time, it is due at once.
        assert_eq!(schedule.next(news, None), (start + MIN_INTERVAL, SyncTrigger::NodeChange));
        assert_eq!(
            schedule.next(Some(NodeChangeKind::NetworkCondition), None),
            (start + secs(10), SyncTrigger::NodeChange)
        );
        assert_eq!(schedule.next(None, None), (start + secs(3600), SyncTrigger::Periodic));
        assert_eq!(
            schedule.next(news, Some(start + secs(30))),
            (start + secs(30), SyncTrigger::NodeChange)
        );
    }

    #[test]
    fn a_retry_shortens_the_wait_and_a_period_goes_on_from_start_to_start() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        schedule.started(start, secs(10));
        schedule.retry = Some(start + secs(4));
        assert_eq!(schedule.next(None, None), (start + secs(4), SyncTrigger::Periodic));
        schedule.retry = Some(start);
        assert_eq!(schedule.next(None, None), (start + MIN_INTERVAL, SyncTrigger::Periodic));
        schedule.retry = Some(start + secs(60));
        assert_eq!(schedule.next(None, None), (start + secs(10), SyncTrigger::Periodic));
        schedule.started(start + secs(4), secs(10));
        assert_eq!(schedule.next(None, None), (start + secs(14), SyncTrigger::Periodic));
    }

    #[tokio::test(start_paused = true)]
    async fn changes_wake_once_and_are_taken_together() {
        let signals = PendingNodeChanges::default();
        signals.record(&"a".into(), NodeChangeKind::NetworkCondition);
        assert_eq!(signals.pending(), Some(NodeChangeKind::NetworkCondition));
        signals.changed().await;
        signals.record(&"b".into(), NodeChangeKind::Routes);
        signals.changed().await;
        signals.record(&"c".into(), NodeChangeKind::Routes);
        let again = tokio::time::timeout(secs(60), signals.changed()).await;
        assert!(again.is_err(), "more of the same is no news");
        let mut taken: Vec<_> = signals.take().into_iter().collect();
        taken.sort();
        assert_eq!(taken, ["b".into(), "c".into()]);
        assert_eq!(signals.pending(), None);
    }
}
