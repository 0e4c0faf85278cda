//! Rate limits of provider calls.

use std::time::Duration;

use ccm_core::provider::{Rate, RateLimiter};

use super::Capability;
use crate::cloud::config::{RateLimit, RateLimits};

/// The rate limiters of the parts of the cloud; `None` for a part without a limit.
#[derive(Debug)]
pub(super) struct Limits {
    instances: Option<RateLimiter>,
    routes: Option<RateLimiter>,
    load_balancers: Option<RateLimiter>,
}

impl Limits {
    pub(super) fn new(limits: &RateLimits) -> Self {
        let limiter = |limit: &Option<RateLimit>| {
            limit.as_ref().map(|limit| {
                RateLimiter::new(Rate { per_second: limit.per_second, burst: limit.burst() })
            })
        };
        Self {
            instances: limiter(&limits.instances),
            routes: limiter(&limits.routes),
            load_balancers: limiter(&limits.load_balancers),
        }
    }

    /// Takes a token for a call, or returns the delay after which the call is allowed.
    pub(super) fn take(&self, capability: Capability) -> Result<(), Duration> {
        let limiter = match capability {
            Capability::Instances => &self.instances,
            Capability::Routes => &self.routes,
            Capability::LoadBalancers => &self.load_balancers,
        };
        match limiter {
            Some(limiter) => limiter.reserve(Duration::ZERO).map(drop),
            None => Ok(()),
        }
    }
}
