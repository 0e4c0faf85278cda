//! The limit of the time that one call of a provider may sleep.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The maximum total sleep of one call. It is short because the call occupies a worker.
const MAX_SLEEP: Duration = Duration::from_secs(2);

/// The time that one call has slept.
#[derive(Debug, Default)]
pub(super) struct SleepBudget(Mutex<SleepState>);

#[derive(Debug, Default)]
struct SleepState {
    spent: Duration,
    /// The time when all sleeps that have begun will be over. Overlapping sleeps count once.
    until: Option<Instant>,
}

impl SleepBudget {
    /// Counts a sleep of `time` that begins now. Returns false, without counting it, if that would
    /// exceed the limit.
    pub(super) fn begin(&self, time: Duration) -> bool {
        let now = Instant::now();
        self.0.lock().add(now, now + time, MAX_SLEEP)
    }

    /// Returns how long the call may still sleep from now on.
    pub(super) fn remaining(&self) -> Duration {
        let state = self.0.lock();
        let unspent = MAX_SLEEP.saturating_sub(state.spent);
        // Another sleep until the end of the current ones costs nothing more.
        match state.until {
            Some(until) => unspent + until.saturating_duration_since(Instant::now()),
            None => unspent,
        }
    }

    /// Counts time as slept.
    pub(super) fn charge(&self, time: Duration) {
        let mut state = self.0.lock();
        state.spent = state.spent.saturating_add(time);
    }

    /// Counts the time since `since` as slept, without a limit.
    pub(super) fn charge_since(&self, since: Instant) {
        self.0.lock().add(since, Instant::now(), Duration::MAX);
    }
}

impl SleepState {
    /// Counts the part of a sleep that no earlier sleep covers. Returns false, without counting it,
    /// if the total would exceed `max`.
    fn add(&mut self, from: Instant, to: Instant, max: Duration) -> bool {
        let uncovered_from = self.until.map_or(from, |until| until.max(from));
        let uncovered = to.saturating_duration_since(uncovered_from);
        let spent = self.spent.saturating_add(uncovered);
        if !uncovered.is_zero() && spent > max {
            return false;
        }
        self.spent = spent;
        self.until = self.until.max(Some(to));
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use crate::{provider::Op, write_gate::WriteGate};

    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn op() -> Op {
        Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_sleeps_two_seconds_in_all_and_the_next_one_as_long() {
        let (op, begin) = (op(), Instant::now());
        assert!(op.sleep(ms(1500)).await);
        assert!(!op.sleep(ms(501)).await);
        assert!(op.clone().sleep(ms(500)).await, "clones are the same call");
        assert!(!op.sleep(ms(1)).await);
        assert!(op.sleep(Duration::ZERO).await, "that is no sleep");
        assert_eq!((begin.elapsed(), op.remaining_sleep()), (ms(2000), Duration::ZERO));
        assert!(
            op.clone()
                .for_call(begin + ms(60_000))
                .sleep(ms(2000))
                .await
        );
        assert!(op.with_fresh_sleep_budget().sleep(ms(2000)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_sleeps_at_the_same_time_counts_once() {
        let (op, begin) = (op(), Instant::now());
        let all = (1..=10).map(|i| op.sleep(ms(200 * i)));
        assert!(
            futures::future::join_all(all)
                .await
                .into_iter()
                .all(|slept| slept)
        );
        assert_eq!((begin.elapsed(), op.remaining_sleep()), (ms(2000), Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn to_wait_for_another_call_counts_and_is_not_cut_off() {
        let op = op();
        op.wait_shared(tokio::time::sleep(ms(1200))).await;
        assert_eq!(op.remaining_sleep(), ms(800));
        assert!(op.sleep(ms(800)).await);
        op.wait_shared(tokio::time::sleep(ms(5000))).await;
        assert!(!op.sleep(ms(1)).await);
    }
}
