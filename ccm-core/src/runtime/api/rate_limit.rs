//! The client-side rate limit, a token bucket.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// A token bucket on tokio's clock, which serves waiters in order of arrival. Clones share the
/// bucket.
///
/// It stores only the time at which the bucket will be full again, so it needs neither a task nor
/// memory per waiter. A waiter that is dropped returns its token.
#[derive(Clone, Debug)]
pub struct RateLimit(Option<Arc<TokenBucket>>);

#[derive(Debug)]
struct TokenBucket {
    /// The time in which one token is gained.
    interval: Duration,
    /// The maximum of `full_at` minus the current time at which a token is still available.
    tolerance: Duration,
    /// The time at which the bucket will be full, if no more tokens are taken.
    full_at: Mutex<Instant>,
}

impl RateLimit {
    /// Creates a bucket of `burst` tokens (at least one) that gains `qps` tokens per second. As in
    /// Go's clients, a rate that is zero, negative or not a number means no limit. (client-go
    /// replaces zero with its default before it gets there.)
    pub fn new(qps: f64, burst: u32) -> Self {
        let interval = match Duration::try_from_secs_f64(1.0 / qps) {
            Ok(interval) if qps > 0.0 => interval,
            _ => return Self::unlimited(),
        };
        let tolerance = interval.saturating_mul(burst.max(1) - 1);
        Self(Some(Arc::new(TokenBucket {
            interval,
            tolerance,
            full_at: Mutex::new(Instant::now()),
        })))
    }

    /// Creates a bucket without a limit.
    pub fn unlimited() -> Self {
        Self(None)
    }

    /// Waits for a token and returns the time that this took.
    ///
    /// # Cancellation
    /// Dropping the future returns the token.
    pub async fn acquire(&self) -> Duration {
        let Some(bucket) = &self.0 else {
            return Duration::ZERO;
        };
        let wait = bucket.reserve();
        if !wait.is_zero() {
            let reservation = Reservation(Some(bucket));
            tokio::time::sleep(wait).await;
            reservation.use_token();
        }
        wait
    }
}

impl TokenBucket {
    /// Takes a token, and returns the delay after which it may be used.
    fn reserve(&self) -> Duration {
        let mut full_at = self.full_at.lock();
        let now = Instant::now();
        let start = (*full_at).max(now);
        *full_at = start + self.interval;
        (start - now).saturating_sub(self.tolerance)
    }
}

/// A token that was taken in advance. Dropping it returns the token, unless it was used.
struct Reservation<'a>(Option<&'a TokenBucket>);

impl Reservation<'_> {
    fn use_token(mut self) {
        self.0 = None;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Some(bucket) = self.0 {
            let mut full_at = bucket.full_at.lock();
            if let Some(earlier) = full_at.checked_sub(bucket.interval) {
                *full_at = earlier;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_burst_is_free_and_then_the_rate_holds() {
        let limit = RateLimit::new(20.0, 30);
        let start = Instant::now();
        for _ in 0..30 {
            limit.acquire().await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..40 {
            limit.acquire().await;
        }
        let elapsed = start.elapsed();
        assert!(
            (Duration::from_millis(1990)..Duration::from_millis(2100)).contains(&elapsed),
            "{elapsed:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_wait_returns_its_token() {
        let limit = RateLimit::new(1.0, 1);
        limit.acquire().await;
        for _ in 0..100 {
            let _ = tokio::time::timeout(Duration::ZERO, limit.acquire()).await;
        }
        let start = Instant::now();
        limit.acquire().await;
        assert!(start.elapsed() <= Duration::from_millis(1100), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn no_rate_means_no_limit() {
        for qps in [0.0, -1.0, f64::NAN] {
            let limit = RateLimit::new(qps, 0);
            for _ in 0..1000 {
                assert_eq!(limit.acquire().await, Duration::ZERO);
            }
        }
    }
}
