//! Rate limiters for each kind of request, so that this process does not use up the limits that AWS
//! sets for the whole account.

use std::time::Duration;

use ccm_core::provider::{Op, RateLimiter};

use crate::{
    api::{Action, RequestClass, Service},
    config::Limits,
};

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
            // STS is asked once, by the subcommand `check`.
            (Service::Ec2, RequestClass::Read) | (Service::Sts, _) => Self::Ec2Read,
            (Service::Ec2, RequestClass::Write) => Self::Ec2Write,
            (Service::Elb | Service::Classic, RequestClass::Read) => Self::ElbRead,
            (Service::Elb | Service::Classic, RequestClass::Write) => Self::ElbWrite,
        }
    }
}

/// One rate limiter for each kind of request.
#[derive(Debug)]
pub(super) struct RateLimiters([RateLimiter; 6]);

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
        Self(rates.map(|rate| RateLimiter::new(*rate)))
    }

    /// Waits for a token for a request, as [`RateLimiter::acquire`].
    pub(super) async fn acquire(&self, op: &Op, action: Action) -> Result<(), Duration> {
        self.limiter(action).acquire(op).await
    }

    /// Halves the rate of this kind of request for a while.
    pub(super) fn halve_rate(&self, action: Action) {
        self.limiter(action).halve_rate();
    }

    fn limiter(&self, action: Action) -> &RateLimiter {
        &self.0[RequestKind::of_action(action) as usize]
    }
}

#[cfg(test)]
mod tests {
    use ccm_core::{provider::Rate, write_gate::WriteGate};
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn op() -> Op {
        Op::new("kubernetes", CancellationToken::new(), WriteGate::always_open())
    }

    #[tokio::test(start_paused = true)]
    async fn kinds_do_not_take_from_each_other() {
        let limits = Limits {
            elb_write: Rate { per_second: 0.1, burst: 1 },
            ..Limits::default()
        };
        let limiters = RateLimiters::new(&limits);
        assert_eq!(limiters.acquire(&op(), Action::CreateListener).await, Ok(()));
        for action in Action::ALL
            .iter()
            .filter(|action| RequestKind::of_action(**action) != RequestKind::ElbWrite)
        {
            if *action != Action::DescribeInstanceTopology {
                assert_eq!(limiters.acquire(&op(), *action).await, Ok(()), "{action:?}");
            }
        }
        assert!(
            limiters
                .acquire(&op(), Action::DeleteListener)
                .await
                .is_err()
        );
    }
}
