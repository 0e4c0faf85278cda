//! A limit for the rate of requests to a cloud.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Op;

/// The time for which the rate is halved after the cloud throttled a request.
const HALVED_RATE_DURATION: Duration = Duration::from_secs(30);

/// The rate that a [`RateLimiter`] admits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Tokens that are added per second; greater than 0.
    pub per_second: f64,
    /// Maximum number of tokens; at least 1.
    pub burst: u32,
}

/// A token bucket on tokio's clock, which admits `burst` requests at once and then `per_second`
/// requests per second.
///
/// A client uses one for each group of requests that the cloud limits together, so that this
/// process does not use up a limit that the cloud sets for the whole account. Tokens are taken in
/// advance: concurrent callers wait in the order in which they asked.
#[derive(Debug)]
pub struct RateLimiter(Mutex<TokenBucket>);

impl RateLimiter {
    /// Creates a full bucket.
    pub fn new(rate: Rate) -> Self {
        Self(Mutex::new(TokenBucket {
            rate,
            tokens: f64::from(rate.burst),
            refilled_at: Instant::now(),
            halved_until: None,
        }))
    }

    /// Waits for a token, for at most the time that the call may still
    /// [sleep](Op::remaining_sleep).
    ///
    /// # Errors
    /// Returns the delay until a token is available if that is longer. Then no token is taken, and
    /// the call should end with this delay as its `retry_after`.
    ///
    /// # Cancellation
    /// If the future is dropped while it waits, its token is lost.
    pub async fn acquire(&self, op: &Op) -> Result<(), Duration> {
        let wait = self.reserve(op.remaining_sleep())?;
        if op.sleep(wait).await {
            Ok(())
        } else {
            Err(wait)
        }
    }

    /// Takes a token, in advance if necessary, and returns the delay until it may be used.
    ///
    /// # Errors
    /// Returns this delay if it is longer than `max_wait`. Then no token is taken.
    pub fn reserve(&self, max_wait: Duration) -> Result<Duration, Duration> {
        self.0.lock().take(Instant::now(), max_wait)
    }

    /// Halves the rate for 30 seconds, because the cloud throttled a request. What remains of the
    /// burst is dropped.
    pub fn halve_rate(&self) {
        self.0.lock().halve(Instant::now());
    }
}

#[derive(Debug)]
struct TokenBucket {
    rate: Rate,
    /// The number of available tokens. Negative if tokens were taken in advance.
    tokens: f64,
    /// The time of the last update of `tokens`.
    refilled_at: Instant,
    halved_until: Option<Instant>,
}

impl TokenBucket {
    fn take(&mut self, now: Instant, max_wait: Duration) -> Result<Duration, Duration> {
        self.refill(now);
        let missing = (1.0 - self.tokens).max(0.0);
        // The conversion only fails for rates of one request in many thousand years. It rounds to
        // the nearest nanosecond, so a caller that waited for the returned delay gets its token.
        let wait =
            Duration::try_from_secs_f64(missing / self.current_rate(now)).unwrap_or(Duration::MAX);
        if wait > max_wait {
            return Err(wait);
        }
        self.tokens -= 1.0;
        Ok(wait)
    }

    fn halve(&mut self, now: Instant) {
        self.refill(now);
        // The cloud would throttle the remaining burst, too.
        self.tokens = self.tokens.min(0.0);
        self.halved_until = Some(now + HALVED_RATE_DURATION);
    }

    /// Adds the tokens for the time since the last update.
    fn refill(&mut self, now: Instant) {
        let mut seconds = now
            .saturating_duration_since(self.refilled_at)
            .as_secs_f64();
        // While the rate is halved, time counts only half.
        if let Some(halved_until) = self.halved_until {
            let halved = halved_until
                .min(now)
                .saturating_duration_since(self.refilled_at);
            seconds -= halved.as_secs_f64() / 2.0;
        }
        let new_tokens = seconds * self.rate.per_second;
        self.tokens = (self.tokens + new_tokens).min(f64::from(self.rate.burst));
        self.refilled_at = now;
    }

    fn current_rate(&self, now: Instant) -> f64 {
        match self.halved_until {
            Some(end) if end > now => self.rate.per_second / 2.0,
            _ => self.rate.per_second,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::write_gate::WriteGate;

    fn op() -> Op {
        Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
    }

    fn limiter(per_second: f64, burst: u32) -> RateLimiter {
        RateLimiter::new(Rate { per_second, burst })
    }

    /// Acquires a token for a new call. Returns the wait in hundredths of a second.
    async fn acquire(limiter: &RateLimiter) -> Result<u128, Duration> {
        let before = Instant::now();
        limiter.acquire(&op()).await?;
        Ok(before.elapsed().as_millis().div_ceil(10))
    }

    #[tokio::test(start_paused = true)]
    async fn the_burst_is_admitted_at_once_and_the_rest_at_the_rate() {
        let limiter = limiter(2.0, 3);
        for wait in [0, 0, 0, 50, 50] {
            assert_eq!(acquire(&limiter).await, Ok(wait));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_too_long_is_returned_and_takes_no_token() {
        let limiter = limiter(0.25, 1);
        assert_eq!(acquire(&limiter).await, Ok(0));
        for _ in 0..3 {
            assert_eq!(acquire(&limiter).await, Err(Duration::from_secs(4)));
        }
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(acquire(&limiter).await, Ok(0));
    }

    #[tokio::test(start_paused = true)]
    async fn one_call_waits_two_seconds_in_all() {
        let (limiter, call) = (limiter(1.0, 1), op());
        let before = Instant::now();
        for _ in 0..3 {
            assert_eq!(limiter.acquire(&call).await, Ok(()));
        }
        for _ in 0..3 {
            assert_eq!(limiter.acquire(&call).await, Err(Duration::from_secs(1)));
        }
        assert_eq!(before.elapsed(), Duration::from_secs(2));
        assert_eq!(acquire(&limiter).await, Ok(100), "a refused call took no token");
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_halved_for_half_a_minute() {
        let limiter = limiter(2.0, 20);
        limiter.halve_rate();
        assert_eq!(acquire(&limiter).await, Ok(100));
        assert_eq!(acquire(&limiter).await, Ok(100));
        tokio::time::advance(Duration::from_secs(31)).await;
        for _ in 0..20 {
            assert_eq!(acquire(&limiter).await, Ok(0));
        }
        assert_eq!(acquire(&limiter).await, Ok(50));
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_can_be_reserved_far_in_advance() {
        let limiter = limiter(2.0, 3);
        let reserve = || limiter.reserve(Duration::MAX).unwrap().as_millis();
        let waits: Vec<_> = (0..6).map(|_| reserve()).collect();
        assert_eq!(waits, [0, 0, 0, 500, 1000, 1500]);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(reserve(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_caller_is_admitted_after_the_returned_delay() {
        // The delays of these rates are no whole nanoseconds.
        for per_second in [0.3, 3.0, 7.0, 333.0, 123_456.7] {
            let limiter = limiter(per_second, 1);
            for _ in 0..100 {
                if let Err(wait) = limiter.reserve(Duration::ZERO) {
                    tokio::time::advance(wait).await;
                    assert_eq!(limiter.reserve(Duration::ZERO), Ok(Duration::ZERO));
                }
            }
        }
    }
}
