//! Limits the rate of requests, and their number in flight, so that this program does not overload a
//! cloud.

use std::time::Duration;

use ccm_core::provider::{Op, RateLimiter};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use super::{Class, Service};
use crate::config::Limits;

/// Delay that is reported when too many requests are in flight.
const MAX_IN_FLIGHT_WAIT: Duration = Duration::from_secs(2);

/// Rate limiters for each service, and the number of requests in flight.
pub(super) struct RateLimiters {
    /// For reads and for changes of each service.
    limiters: [[RateLimiter; 2]; Service::ALL.len()],
    in_flight: Semaphore,
}

impl RateLimiters {
    pub(super) fn new(limits: &Limits) -> Self {
        let service = |_| [limits.read, limits.write].map(RateLimiter::new);
        let permits = usize::try_from(limits.in_flight.max(1)).unwrap_or(Semaphore::MAX_PERMITS);
        Self {
            limiters: Service::ALL.map(service),
            in_flight: Semaphore::new(permits),
        }
    }

    /// Waits until a request may be sent, as long as the operation that it belongs to may sleep.
    ///
    /// # Errors
    /// Returns the delay if it is longer than the operation may sleep. Then no token was taken.
    pub(super) async fn acquire(
        &self,
        op: &Op,
        service: Service,
        class: Class,
    ) -> Result<SemaphorePermit<'_>, Duration> {
        self.limiter(service, class).acquire(op).await?;
        let permit = self.in_flight.acquire();
        let began = Instant::now();
        let permit = tokio::time::timeout(op.remaining_sleep(), permit).await;
        // This wait counts as sleep of the operation.
        op.charge_sleep(began.elapsed());
        match permit {
            Ok(Ok(permit)) => Ok(permit),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(MAX_IN_FLIGHT_WAIT),
        }
    }

    /// Halves the rate of these requests for a while.
    pub(super) fn halve_rate(&self, service: Service, class: Class) {
        self.limiter(service, class).halve_rate();
    }

    fn limiter(&self, service: Service, class: Class) -> &RateLimiter {
        &self.limiters[service as usize][class as usize]
    }
}
