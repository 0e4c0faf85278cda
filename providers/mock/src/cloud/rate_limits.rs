use std::time::Duration;

use tokio::time::Instant;

use super::Capability;
use crate::config::{RateLimit, RateLimits};

/// A token bucket: `burst` calls at once, then so many per second.
#[derive(Debug)]
struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled: Instant,
}

impl TokenBucket {
    fn new(limit: &RateLimit, now: Instant) -> Self {
        let burst = f64::from(limit.burst());
        Self { per_second: limit.per_second, burst, tokens: burst, filled: now }
    }

    /// Takes a token, or says after which time there will be one.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + elapsed * self.per_second).min(self.burst);
        self.filled = now;
        // Sums of fractions miss the whole number by a little, and a caller who waited as told must be let in.
        if self.tokens + 1e-6 >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        let missing = (1.0 - self.tokens) / self.per_second;
        // Beyond what a duration holds only for rates of one call in many thousand years.
        Err(Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX))
    }
}

/// The rate limits in force, one per part of the cloud.
#[derive(Debug)]
pub(super) struct Limits {
    instances: Option<TokenBucket>,
    routes: Option<TokenBucket>,
    load_balancers: Option<TokenBucket>,
}

impl Limits {
    pub(super) fn new(limits: &RateLimits) -> Self {
        let now = Instant::now();
        let bucket = |limit: &Option<RateLimit>| limit.as_ref().map(|limit| TokenBucket::new(limit, now));
        Self {
            instances: bucket(&limits.instances),
            routes: bucket(&limits.routes),
            load_balancers: bucket(&limits.load_balancers),
        }
    }

    /// Lets a call through, or says after which time one will be.
    pub(super) fn take(&mut self, capability: Capability) -> Result<(), Duration> {
        let bucket = match capability {
            Capability::Instances => &mut self.instances,
            Capability::Routes => &mut self.routes,
            Capability::LoadBalancers => &mut self.load_balancers,
        };
        bucket.as_mut().map_or(Ok(()), |bucket| bucket.take(Instant::now()))
    }
}
