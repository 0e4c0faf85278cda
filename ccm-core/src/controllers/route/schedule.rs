//! When the routes are reconciled: at once after a change, then at most once a second, and once per
//! period.

use std::{collections::HashSet, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::metrics::SyncTrigger;

/// Least time from one reconcile to the next: changes that come close together share one. Upstream
/// lets each change wait 10 s for every one before it (W16).
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The same if only a condition was changed by somebody else, so that two controllers that disagree
/// about it do not keep the cloud busy.
const MIN_CONDITION_INTERVAL: Duration = Duration::from_secs(10);

/// What a node change affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeChangeKind {
    /// Its routes may be outdated.
    Routes,
    /// Its condition: somebody else changed it.
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
    /// Names of the nodes whose routes may be outdated.
    nodes: HashSet<Arc<str>>,
    condition: bool,
}

impl PendingNodeChanges {
    pub(super) fn record(&self, node: &Arc<str>, news: NodeChangeKind) {
        let mut pending = self.pending.lock();
        let was = pending.most_urgent();
        match news {
            NodeChangeKind::Routes => drop(pending.nodes.insert(node.clone())),
            NodeChangeKind::NetworkCondition => pending.condition = true,
        }
        if pending.most_urgent() != was {
            self.wake.notify_one();
        }
    }

    /// Waits until a change is recorded that is more urgent than those before.
    ///
    /// # Cancellation
    /// Safe: no change is lost.
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
        match (self.nodes.is_empty(), self.condition) {
            (false, _) => Some(NodeChangeKind::Routes),
            (true, true) => Some(NodeChangeKind::NetworkCondition),
            (true, false) => None,
        }
    }
}

/// Times of reconciles.
#[derive(Debug)]
pub(super) struct Schedule {
    /// Start of the last reconcile.
    last: Option<Instant>,
    /// When the period ends.
    periodic: Instant,
    /// When a change that failed, or everything after a failed listing, is retried.
    pub(super) retry: Option<Instant>,
}

impl Schedule {
    pub(super) fn new(now: Instant) -> Self {
        Self { last: None, periodic: now, retry: None }
    }

    /// Records the start of a reconcile. The next one is due after `period`, whatever happens in
    /// between.
    pub(super) fn started(&mut self, now: Instant, period: Duration) {
        self.last = Some(now);
        self.periodic = now + period;
        self.retry = None;
    }

    /// Returns when the next reconcile is to start, and why. None starts before `pause` is over.
    pub(super) fn next(
        &self,
        news: Option<NodeChangeKind>,
        pause: Option<Instant>,
    ) -> (Instant, SyncTrigger) {
        let after = |gap: Duration| self.last.map_or(self.periodic, |last| last + gap);
        let by_news = news.map(|news| match news {
            NodeChangeKind::Routes => after(MIN_INTERVAL),
            NodeChangeKind::NetworkCondition => after(MIN_CONDITION_INTERVAL),
        });
        // A period below the minimum interval is what the operator configured.
        let by_time = self
            .retry
            .map_or(self.periodic, |retry| retry.max(after(MIN_INTERVAL)).min(self.periodic));
        let (at, trigger) = match by_news {
            // The first reconcile is due in any case.
            Some(at) if at <= by_time && self.last.is_some() => (at, SyncTrigger::NodeChange),
            _ => (by_time, SyncTrigger::Periodic),
        };
        (pause.map_or(at, |pause| at.max(pause)), trigger)
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
    async fn news_wake_once_and_are_taken_together() {
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
