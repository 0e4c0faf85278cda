//! Rate limits of provider calls.

use std::time::Duration;

use tokio::time::Instant;

use super::Capability;
use crate::cloud::config::{RateLimit, RateLimits};

/// A token bucket, which admits `burst` calls at once and then `per_second` calls per second.
#[derive(Debug)]
struct TokenBucket {
    per_second: f64,
    burst: f64,
    /// Number of available tokens.
    tokens: f64,
    /// Time of the last update of `tokens`.
    refilled_at: Instant,
}

impl TokenBucket {
    fn new(limit: &RateLimit, now: Instant) -> Self {
        let burst = f64::from(limit.burst());
        Self {
            per_second: limit.per_second,
            burst,
            tokens: burst,
            refilled_at: now,
        }
    }

    /// Takes a token, or returns the delay until one is available.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let elapsed = now
            .saturating_duration_since(self.refilled_at)
            .as_secs_f64();
        self.tokens = (self.tokens + elapsed * self.per_second).min(self.burst);
        self.refilled_at = now;
        // Tolerate rounding errors: a caller that waited for the returned delay must get a token.
        if self.tokens + 1e-6 >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        let missing = (1.0 - self.tokens) / self.per_second;
        // The conversion only fails for rates of one call in many thousand years.
        Err(Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX))
    }
}

/// The token buckets of the parts of the cloud; `None` for a part without a limit.
#[derive(Debug)]
pub(super) struct Limits {
    instances: Option<TokenBucket>,
    routes: Option<TokenBucket>,
    load_balancers: Option<TokenBucket>,
}

impl Limits {
    pub(super) fn new(limits: &RateLimits) -> Self {
        let now = Instant::now();
        let RateLimits { instances, routes, load_balancers } = limits;
        Self {
            instances: instances.as_ref().map(|limit| TokenBucket::new(limit, now)),
            routes: routes.as_ref().map(|limit| TokenBucket::new(limit, now)),
            load_balancers: load_balancers
                .as_ref()
                .map(|limit| TokenBucket::new(limit, now)),
        }
    }

    /// Takes a token for a call, or returns the delay after which the call is allowed.
    pub(super) fn take(&mut self, capability: Capability) -> Result<(), Duration> {
        let bucket = match capability {
            Capability::Instances => &mut self.instances,
            Capability::Routes => &mut self.routes,
            Capability::LoadBalancers => &mut self.load_balancers,
        };
        match bucket {
            Some(bucket) => bucket.take(Instant::now()),
            None => Ok(()),
        }
    }
}
