//! Rate limiters for each kind of request, so that this process does not use up the limits that AWS
//! sets for the whole account.

use std::time::Duration;

use ccm_core::provider::Op;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    api::{Action, RequestClass, Service},
    config::{Limits, Rate},
};

/// Time for which the rate is halved after AWS throttled a request.
const HALVED_RATE_DURATION: Duration = Duration::from_secs(30);

/// Kind of request for which AWS has a separate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Ec2Read,
    Ec2Write,
    Topology,
    ElbRead,
    ElbRegister,
    ElbWrite,
}

impl RequestKind {
    fn of_action(action: Action) -> Self {
        match action {
            Action::DescribeInstanceTopology => return Self::Topology,
            Action::RegisterTargets | Action::DeregisterTargets => return Self::ElbRegister,
            _ => {}
        }
        match (action.service(), action.class()) {
            (Service::Ec2, RequestClass::Read) => Self::Ec2Read,
            (Service::Ec2, RequestClass::Write) => Self::Ec2Write,
            (Service::Elb | Service::Classic, RequestClass::Read) => Self::ElbRead,
            (Service::Elb | Service::Classic, RequestClass::Write) => Self::ElbWrite,
        }
    }
}

/// One token bucket for each kind of request.
#[derive(Debug)]
pub(super) struct RateLimiters {
    buckets: [Mutex<TokenBucket>; 6],
}

impl RateLimiters {
    pub(super) fn new(limits: &Limits) -> Self {
        let Limits {
            ec2_read,
            ec2_write,
            topology,
            elb_read,
            elb_register,
            elb_write,
        } = limits;
        let rates = [ec2_read, ec2_write, topology, elb_read, elb_register, elb_write];
        Self {
            buckets: rates.map(|rate| Mutex::new(TokenBucket::new(*rate))),
        }
    }

    /// Waits for a token for a request.
    ///
    /// # Errors
    /// Returns the required wait if it is longer than the call may still sleep. No token is taken
    /// then.
    ///
    /// # Cancellation
    /// If the future is dropped while it waits, its token is lost.
    pub(super) async fn acquire(&self, op: &Op, action: Action) -> Result<(), Duration> {
        let wait = self
            .bucket(action)
            .lock()
            .take(Instant::now(), op.remaining_sleep())?;
        if op.sleep(wait).await {
            Ok(())
        } else {
            Err(wait)
        }
    }

    /// Halves the rate of this kind of request for [`HALVED_RATE_DURATION`].
    pub(super) fn halve_rate(&self, action: Action) {
        self.bucket(action).lock().halve(Instant::now());
    }

    fn bucket(&self, action: Action) -> &Mutex<TokenBucket> {
        &self.buckets[RequestKind::of_action(action) as usize]
    }
}

#[derive(Debug)]
struct TokenBucket {
    rate: Rate,
    /// Number of available tokens. Negative if tokens were taken in advance.
    tokens: f64,
    /// Time of the last update of `tokens`; `None` before the first request.
    refilled_at: Option<Instant>,
    halved_until: Option<Instant>,
}

impl TokenBucket {
    fn new(rate: Rate) -> Self {
        Self {
            rate,
            tokens: f64::from(rate.burst),
            refilled_at: None,
            halved_until: None,
        }
    }

    /// Takes a token, in advance if necessary, and returns the time until it is available.
    ///
    /// # Errors
    /// Returns this time if it is longer than `max_wait`. No token is taken then.
    fn take(&mut self, now: Instant, max_wait: Duration) -> Result<Duration, Duration> {
        self.refill(now);
        let missing = 1.0 - self.tokens;
        let wait = if missing <= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(missing / self.current_rate(now))
        };
        if wait > max_wait {
            return Err(wait);
        }
        self.tokens -= 1.0;
        Ok(wait)
    }

    fn halve(&mut self, now: Instant) {
        self.refill(now);
        // Drop the remaining burst, because AWS would throttle these requests, too.
        self.tokens = self.tokens.min(0.0);
        self.halved_until = Some(now + HALVED_RATE_DURATION);
    }

    /// Adds the tokens for the time since the last update.
    fn refill(&mut self, now: Instant) {
        let Some(refilled_at) = self.refilled_at.replace(now) else {
            return;
        };
        let mut seconds = now.saturating_duration_since(refilled_at).as_secs_f64();
        // While the rate is halved, time counts only half.
        if let Some(halved_until) = self.halved_until {
            let halved = halved_until.min(now).saturating_duration_since(refilled_at);
            seconds -= halved.as_secs_f64() / 2.0;
        }
        let new_tokens = seconds * self.rate.per_second;
        self.tokens = (self.tokens + new_tokens).min(f64::from(self.rate.burst));
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
    use ccm_core::write_gate::WriteGate;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn op() -> Op {
        Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
    }

    fn limits(per_second: f64, burst: u32) -> Limits {
        Limits { elb_write: Rate { per_second, burst }, ..Limits::default() }
    }

    async fn seconds(budgets: &RateLimiters) -> Result<u64, Duration> {
        let before = Instant::now();
        budgets.acquire(&op(), Action::CreateListener).await?;
        Ok(before
            .elapsed()
            .as_millis()
            .div_ceil(10)
            .try_into()
            .unwrap_or(u64::MAX))
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_at_its_rate() {
        let budgets = RateLimiters::new(&limits(2.0, 3));
        let waits = [0, 0, 0, 50, 50];
        for wait in waits {
            assert_eq!(seconds(&budgets).await, Ok(wait), "hundredths of a second");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_too_long_is_told_and_takes_no_turn() {
        let budgets = RateLimiters::new(&limits(0.25, 1));
        assert_eq!(seconds(&budgets).await, Ok(0));
        for _ in 0..3 {
            assert_eq!(seconds(&budgets).await, Err(Duration::from_secs(4)));
        }
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(seconds(&budgets).await, Ok(0));
    }

    #[tokio::test(start_paused = true)]
    async fn turns_of_one_call_are_waited_for_two_seconds_in_all() {
        let (budgets, call) = (RateLimiters::new(&limits(1.0, 1)), op());
        let before = Instant::now();
        for _ in 0..3 {
            assert_eq!(budgets.acquire(&call, Action::CreateListener).await, Ok(()));
        }
        for _ in 0..3 {
            assert_eq!(
                budgets.acquire(&call, Action::CreateListener).await,
                Err(Duration::from_secs(1))
            );
        }
        assert_eq!(before.elapsed(), Duration::from_secs(2));
        assert_eq!(seconds(&budgets).await, Ok(100), "who was refused took no turn");
    }

    #[tokio::test(start_paused = true)]
    async fn throttling_halves_the_rate_for_half_a_minute() {
        let budgets = RateLimiters::new(&limits(2.0, 20));
        budgets.halve_rate(Action::DeleteListener);
        assert_eq!(seconds(&budgets).await, Ok(100));
        assert_eq!(seconds(&budgets).await, Ok(100));
        tokio::time::advance(Duration::from_secs(31)).await;
        for _ in 0..20 {
            assert_eq!(seconds(&budgets).await, Ok(0));
        }
        assert_eq!(seconds(&budgets).await, Ok(50));
    }

    #[tokio::test(start_paused = true)]
    async fn kinds_do_not_take_from_each_other() {
        let budgets = RateLimiters::new(&limits(0.1, 1));
        assert_eq!(seconds(&budgets).await, Ok(0));
        for action in Action::ALL
            .iter()
            .filter(|action| RequestKind::of_action(**action) != RequestKind::ElbWrite)
        {
            if *action != Action::DescribeInstanceTopology {
                assert_eq!(budgets.acquire(&op(), *action).await, Ok(()), "{action:?}");
            }
        }
        assert!(seconds(&budgets).await.is_err());
    }
}
