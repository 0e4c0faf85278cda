//! Back-off of a capability after throttled answers.

use std::time::Duration;

use tokio::time::Instant;

use super::CloudError;

/// The first and the maximum back-off after a throttled answer without `retry_after`.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// The back-off of a whole capability after a throttled answer.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    until: Option<Instant>,
    /// The length of the last back-off.
    delay: Duration,
    /// The number of back-offs. The result of a call that began before the last back-off does not
    /// show whether that was long enough.
    generation: u64,
}

impl Throttle {
    /// Returns the time before which no call should begin, if there is one.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Returns the generation of a call that begins now, for [`record`](Self::record).
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Records the end of a call that began in `generation`, with its throttled answer if there was
    /// one.
    pub(crate) fn record(&mut self, generation: u64, throttled: Option<&CloudError>) {
        let is_current = generation == self.generation;
        match throttled {
            Some(error) => {
                // If the call began after the last back-off, that was too short, even if the cloud
                // itself requested it.
                let min_delay = if is_current {
                    self.delay * 2
                } else {
                    Duration::ZERO
                };
                if is_current {
                    self.delay = (self.delay * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
                    self.generation += 1;
                }
                let delay = error
                    .retry_after()
                    .map_or(self.delay, |after| after.max(min_delay.min(self.delay)));
                self.until = self.until.max(Some(Instant::now() + delay));
            }
            None if is_current => (self.until, self.delay) = (None, Duration::ZERO),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::ErrorKind;

    #[tokio::test(start_paused = true)]
    async fn calls_throttled_together_are_one_reason_to_wait_longer_and_a_straggler_is_none_to_go_on()
     {
        let slow_down = || CloudError::new(ErrorKind::Throttled, "slow down");
        let slow = slow_down();
        let begin = Instant::now();
        let pause = |throttle: &Throttle| throttle.until().map(|until| until - begin);
        let mut throttle = Throttle::default();
        for _ in 0..4 {
            throttle.record(0, Some(&slow));
        }
        assert_eq!(pause(&throttle), Some(Duration::from_secs(1)));
        throttle.record(0, None);
        assert_eq!(
            pause(&throttle),
            Some(Duration::from_secs(1)),
            "it was answered before the pause"
        );
        throttle.record(1, Some(&slow));
        assert_eq!(pause(&throttle), Some(Duration::from_secs(2)));
        let named = slow_down().with_retry_after(Duration::from_secs(9));
        throttle.record(2, Some(&named));
        throttle.record(2, Some(&slow));
        assert_eq!(pause(&throttle), Some(Duration::from_secs(9)), "the longest counts");
        throttle.record(3, None);
        assert_eq!((pause(&throttle), throttle.delay), (None, Duration::ZERO));
        let short = slow_down().with_retry_after(Duration::from_millis(200));
        throttle.record(3, Some(&short));
        assert_eq!(pause(&throttle), Some(Duration::from_millis(200)), "the cloud's word");
        throttle.record(3, Some(&short));
        assert_eq!(pause(&throttle), Some(Duration::from_millis(200)), "from before the pause");
        throttle.record(4, Some(&short));
        assert_eq!(pause(&throttle), Some(Duration::from_secs(2)), "it was not enough");
    }
}
