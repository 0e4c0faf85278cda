//! Rate limiter of the tagging controller.

use std::time::Duration;

/// Token bucket that returns the delay of the next item.
#[derive(Debug)]
pub(super) struct RateLimiter {
    per_second: f64,
    burst: f64,
    /// Number of available tokens. Negative if tokens were taken in advance.
    tokens: f64,
    /// Time of the last update of `tokens`.
    refilled_at: Duration,
}

impl RateLimiter {
    /// Creates a full bucket. `per_second` must be greater than zero.
    pub(super) fn new(per_second: f64, burst: u32) -> Self {
        let burst = f64::from(burst);
        Self {
            per_second,
            burst,
            tokens: burst,
            refilled_at: Duration::ZERO,
        }
    }

    /// Takes a token, in advance if necessary, and returns the delay until it is available. `now`
    /// is the time since an arbitrary fixed instant.
    pub(super) fn reserve(&mut self, now: Duration) -> Duration {
        let elapsed = now.saturating_sub(self.refilled_at).as_secs_f64();
        self.tokens = (self.tokens + elapsed * self.per_second).min(self.burst) - 1.0;
        self.refilled_at = now;
        Duration::try_from_secs_f64((-self.tokens / self.per_second).max(0.0))
            .unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_its_rate() {
        let mut limiter = RateLimiter::new(2.0, 3);
        let waits: Vec<_> = (0..6)
            .map(|_| limiter.reserve(Duration::ZERO).as_millis())
            .collect();
        assert_eq!(waits, [0, 0, 0, 500, 1000, 1500]);
        assert_eq!(limiter.reserve(Duration::from_secs(2)), Duration::ZERO);
        assert_eq!(limiter.reserve(Duration::from_secs(3600)), Duration::ZERO);
    }
}
