//! The time for which the cloud has repeated an answer about an instance.

use std::time::Duration;

use super::MAX_PERIODS_BETWEEN_QUERIES;

/// The maximum time between two answers that counts before a node is marked out of service, in
/// periods and absolutely. If a pass took longer, the instance may have run meanwhile.
const MAX_COUNTED_PERIODS: u32 = 12;
const MAX_COUNTED_GAP: Duration = Duration::from_secs(60);

/// An answer that the cloud has repeated: a proof of absence, or that an instance is shut down.
#[derive(Clone, Copy, Debug)]
pub(super) struct RepeatedAnswer {
    /// The time for which the cloud has given this answer. Only time between two answers counts,
    /// not that around an error.
    pub(super) duration: Duration,
    /// The same, with at most [`max_counted_gap`] between two answers.
    pub(super) counted: Duration,
    /// The time of the last such answer; `None` after an error.
    pub(super) last_answer: Option<Duration>,
}

impl RepeatedAnswer {
    pub(super) fn start(now: Duration) -> Self {
        Self {
            duration: Duration::ZERO,
            counted: Duration::ZERO,
            last_answer: Some(now),
        }
    }

    pub(super) fn confirm_again(&mut self, now: Duration, period: Duration) {
        if let Some(last) = self.last_answer {
            let gap = now.saturating_sub(last);
            self.duration += gap;
            self.counted += gap.min(max_counted_gap(period));
        }
        self.last_answer = Some(now);
    }

    pub(super) fn interrupt(&mut self) {
        self.last_answer = None;
    }
}

/// Returns the maximum time between two answers that counts before a node is marked out of service:
/// twelve periods and at most a minute, but at least the longest planned time between two queries.
fn max_counted_gap(period: Duration) -> Duration {
    (period * MAX_COUNTED_PERIODS)
        .min(MAX_COUNTED_GAP)
        .max(period * MAX_PERIODS_BETWEEN_QUERIES)
}
