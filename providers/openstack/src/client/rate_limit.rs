//! Limits the rate of requests, and their number in flight, so that this program does not overload a
//! cloud.

use std::time::Duration;

use ccm_core::provider::Op;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use super::{Class, Service};
use crate::config::{Limits, Rate};

/// Time for which a rate is halved after the cloud throttled requests.
const HALVED_FOR: Duration = Duration::from_secs(30);
/// Delay that is reported when too many requests are in flight.
const MAX_IN_FLIGHT_WAIT: Duration = Duration::from_secs(2);

/// Token buckets for each service, and the number of requests in flight.
pub(super) struct RateLimiters {
    /// For reads and for changes of each service.
    buckets: [[Mutex<TokenBucket>; 2]; Service::ALL.len()],
    in_flight: Semaphore,
}

impl RateLimiters {
    pub(super) fn new(limits: &Limits) -> Self {
        let service =
            |_| [limits.read, limits.write].map(|rate| Mutex::new(TokenBucket::full(rate)));
        let permits = usize::try_from(limits.in_flight.max(1)).unwrap_or(Semaphore::MAX_PERMITS);
        Self {
            buckets: Service::ALL.map(service),
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
        let wait = self
            .bucket(service, class)
            .lock()
            .take(Instant::now(), op.remaining_sleep())?;
        if !op.sleep(wait).await {
            return Err(wait);
        }
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

    /// Halves the rate of these requests for [`HALVED_FOR`].
    pub(super) fn halve_rate(&self, service: Service, class: Class) {
        self.bucket(service, class).lock().halve(Instant::now());
    }

    fn bucket(&self, service: Service, class: Class) -> &Mutex<TokenBucket> {
        &self.buckets[service as usize][class as usize]
    }
}

#[derive(Debug)]
struct TokenBucket {
    rate: Rate,
    /// Negative when tokens were promised that are not due yet.
    tokens: f64,
    /// When `tokens` was computed; `None` before the first request.
    at: Option<Instant>,
    halved_until: Option<Instant>,
}

impl TokenBucket {
    fn full(rate: Rate) -> Self {
        Self {
            rate,
            tokens: f64::from(rate.burst),
            at: None,
            halved_until: None,
        }
    }

    fn take(&mut self, now: Instant, longest: Duration) -> Result<Duration, Duration> {
        self.fill(now);
        let missing = 1.0 - self.tokens;
        let wait = if missing <= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(missing / self.speed(now))
        };
        if wait > longest {
            return Err(wait);
        }
        self.tokens -= 1.0;
        Ok(wait)
    }

    fn halve(&mut self, now: Instant) {
        self.fill(now);
        // What is left of the burst would only be throttled too.
        self.tokens = self.tokens.min(0.0);
        self.halved_until = Some(now + HALVED_FOR);
    }

    fn fill(&mut self, now: Instant) {
        let Some(at) = self.at.replace(now) else {
            return;
        };
        // Time before the end of the halving counts half.
        let elapsed = now.saturating_duration_since(at).as_secs_f64();
        let slow = self
            .halved_until
            .map_or(0.0, |end| end.min(now).saturating_duration_since(at).as_secs_f64());
        let gained = (elapsed - slow / 2.0) * self.rate.per_second;
        self.tokens = (self.tokens + gained).min(f64::from(self.rate.burst));
    }

    fn speed(&self, now: Instant) -> f64 {
        match self.halved_until {
            Some(end) if end > now => self.rate.per_second / 2.0,
            _ => self.rate.per_second,
        }
    }
}
