//! Decides when node changes are applied to the load balancers. Does no I/O and reads no clock.

use std::time::Duration;

use super::backend_nodes::Urgency;

/// The time without a node change after which a batch is applied.
const QUIET_PERIOD: Duration = Duration::from_secs(2);
/// The maximum time that a change waits while others keep coming.
const MAX_BATCH_DELAY: Duration = Duration::from_secs(30);

/// Batches node changes.
///
/// The first change is applied at once, those that follow are applied together, and removals never
/// wait. All times are durations since the start of the controller.
#[derive(Debug, Default)]
pub(crate) struct NodeChangeBatcher {
    last_pass: Option<Duration>,
    /// The time of the first change in the batch.
    first_change_at: Option<Duration>,
    /// True if the batch has more than changes of uninitialised nodes.
    has_urgent: bool,
    /// The time of the next pass, if one is scheduled.
    due: Option<Duration>,
}

impl NodeChangeBatcher {
    /// Records a change.
    pub(crate) fn record(&mut self, urgency: Urgency, now: Duration) {
        // Schedule the pass by the urgency of this change.
        let latest = *self.first_change_at.get_or_insert(now) + MAX_BATCH_DELAY;
        let is_first =
            !self.has_urgent && self.last_pass.is_none_or(|last| now >= last + QUIET_PERIOD);
        let due = match urgency {
            Urgency::Now => now,
            Urgency::Soon if is_first => now,
            Urgency::Soon => (now + QUIET_PERIOD).min(latest),
            Urgency::Later => self.due.unwrap_or(latest),
        };
        self.has_urgent |= urgency > Urgency::Later;
        // Each change restarts the quiet period, but a pass that is already due stays due.
        if self.due.is_none_or(|earlier| earlier > now) {
            self.due = Some(due);
        }
    }

    /// Schedules a pass no later than `at`.
    pub(crate) fn schedule_by(&mut self, at: Duration) {
        if self.due.is_none_or(|due| due > at) {
            self.due = Some(at);
        }
    }

    /// Returns the time of the next pass; `None` if nothing changed.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Starts a pass over the load balancers. Returns the time of the first change that it covers.
    pub(crate) fn start_pass(&mut self, now: Duration) -> Option<Duration> {
        let first_change_at = self.first_change_at;
        *self = Self { last_pass: Some(now), ..Self::default() };
        first_change_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn after(changes: &[(u64, Urgency)]) -> (NodeChangeBatcher, Vec<u64>) {
        let (mut pacer, mut passes) = (NodeChangeBatcher::default(), Vec::new());
        for (at, urgency) in changes {
            while let Some(due) = pacer.due().filter(|due| *due < ms(*at)) {
                passes.push(u64::try_from(due.as_millis()).unwrap());
                pacer.start_pass(due);
            }
            pacer.record(*urgency, ms(*at));
        }
        if let Some(due) = pacer.due() {
            passes.push(u64::try_from(due.as_millis()).unwrap());
            pacer.start_pass(due);
        }
        (pacer, passes)
    }

    #[test]
    fn the_first_change_acts_at_once_and_followers_together_when_there_is_quiet() {
        use Urgency::{Later, Now, Soon};
        for (name, changes, passes) in [
            ("one change", vec![(5000, Soon)], vec![5000]),
            ("followers wait for quiet", vec![(0, Soon), (100, Soon), (1500, Soon)], vec![0, 3500]),
            (
                "after quiet the next is a first one again",
                vec![(0, Soon), (2000, Soon)],
                vec![0, 2000],
            ),
            ("removals wait for nothing", vec![(0, Now), (1, Now), (2, Now)], vec![0, 1, 2]),
            (
                "a removal takes along what waits",
                vec![(0, Soon), (100, Soon), (200, Now)],
                vec![0, 200],
            ),
            ("a node that is not initialised can wait", vec![(0, Later)], vec![30_000]),
            ("its initialisation cannot", vec![(0, Later), (300, Soon)], vec![300]),
            (
                "nor does it hold up others",
                vec![(0, Soon), (100, Soon), (1000, Later)],
                vec![0, 2100],
            ),
        ] {
            assert_eq!(after(&changes).1, passes, "{name}");
        }
    }

    #[test]
    fn a_change_waits_at_most_half_a_minute_while_others_keep_coming() {
        let changes: Vec<_> = (0..100).map(|i| (i * 1000, Urgency::Soon)).collect();
        assert_eq!(after(&changes).1, [0, 31_000, 61_999 + 1, 93_000, 101_000]);
    }
}
