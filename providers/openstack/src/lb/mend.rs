//! Waits for a balancer that is busy, and mends one in error.

use std::time::Duration;

use ccm_core::provider::{CloudError, EventKind, Op, Progress};
use openstack_api::octavia::{LoadBalancer, ProvisioningStatus};
use tokio::time::Instant;

use super::{
    bring::{Core, Halt, Order, gone},
    floating,
    memory::Known,
    observe,
    ownership::standing,
    polls::Poll,
};

/// How often a balancer is failed over at most: what one failover does not mend another seldom does.
const FAILOVERS: Duration = Duration::from_secs(1800);

impl Core {
    /// Waits until the balancer takes changes, and mends one in error.
    pub(super) async fn ready(&self, op: &Op, order: &Order<'_>, known: &mut Known) -> Result<(), Halt> {
        self.poll(op, order, known).await?;
        let Some(seen) = &known.seen else { return Err(gone().into()) };
        let balancer = seen.balancer.clone();
        match &balancer.provisioning_status {
            ProvisioningStatus::Active => {
                known.waiting = None;
                Ok(())
            }
            ProvisioningStatus::Error => Err(self.mend(op, order, &balancer, known).await),
            pending => Err(self.pending(op, known, &format!("load balancer {} is {pending}", balancer.id))),
        }
    }

    /// Looks whether a busy balancer is still busy.
    async fn poll(&self, op: &Op, order: &Order<'_>, known: &mut Known) -> Result<(), Halt> {
        let busy = known.seen.as_ref().filter(|seen| seen.balancer.provisioning_status.is_pending());
        let Some(id) = busy.map(|seen| seen.balancer.id.clone()) else { return Ok(()) };
        match (self.watch(op, known, &id, &order.wanted.name).await?, &mut known.seen) {
            (Some(balancer), Some(seen)) => seen.balancer = balancer,
            _ => {
                known.doubt();
                return Err(gone().into());
            }
        }
        Ok(())
    }

    /// Looks at a balancer that is busy; nothing if it is not there. `name`: of the Service's balancers, its tag. Where many
    /// are waited for, a change just made is not looked at by itself: the next look at all of them shows it.
    pub(super) async fn watch(
        &self,
        op: &Op,
        known: &mut Known,
        id: &str,
        name: &str,
    ) -> Result<Option<LoadBalancer>, Halt> {
        let tag = self.features.tags.then_some(name);
        self.polls.expect(id, tag.unwrap_or_default());
        if known.waiting.is_none() && self.polls.is_crowded() {
            return Err(self.pending(op, known, &format!("load balancer {id} is busy, like others")));
        }
        let poll = Poll { id, tag, after: known.as_of, age: known.look_age() };
        let (found, round) = self.polls.look(self.api(op), &self.memory.rounds, poll).await?;
        known.as_of = round;
        Ok(found)
    }

    pub(super) fn pending(&self, op: &Op, known: &mut Known, why: &str) -> Halt {
        let after = known.pause();
        if known.has_become_long(self.settings.patience) {
            let note = format!("{why} for more than {} s", self.settings.patience.as_secs());
            op.event(EventKind::Warning, "LoadBalancerPendingLong", &note);
        }
        known.unfinished = true;
        Halt::Wait(Progress::Pending { after, why: why.into() })
    }

    /// Mends a balancer in error: one that never served is made anew, one that did is failed over, and what is not this
    /// Service's is left to its owner, or failed over if that is gone.
    async fn mend(&self, op: &Op, order: &Order<'_>, balancer: &LoadBalancer, known: &mut Known) -> Halt {
        let served = observe::is_served(order.service);
        let standing = standing(&self.cluster, &order.wanted.owner, observe::is_shown(order.service), balancer);
        if !standing.owner && !standing.is_left(balancer) {
            return in_error(&balancer.id, ", and another Service's");
        }
        let api = self.api(op);
        if standing.owner && !served && standing.others(balancer).next().is_none() {
            match self.has_others(op, &standing, &balancer.id).await {
                Ok(false) => {}
                Ok(true) => return self.fail_over(op, known, &balancer.id).await,
                Err(error) => return error.into(),
            }
            let why = "it could not be made";
            op.event(EventKind::Warning, "LoadBalancerCreateFailed", &format!("load balancer {} {why}", balancer.id));
            known.doubt();
            if let (Some(port), false) = (balancer.vip_port_id.as_deref(), order.wanted.floating.keep)
                && let Err(error) = floating::release(api, port).await
            {
                return error.into();
            }
            return match api.delete_balancer(&balancer.id, true, why).await {
                Ok(()) => {
                    known.given_up = true;
                    in_error(&balancer.id, ": it is deleted and made anew")
                }
                Err(error) => error.into(),
            };
        }
        self.fail_over(op, known, &balancer.id).await
    }

    /// Has a balancer in error failed over, which is the one change of it that Octavia takes but its deletion.
    pub(super) async fn fail_over(&self, op: &Op, known: &mut Known, id: &str) -> Halt {
        let lately = known.failed_over.is_some_and(|at| at.elapsed() < FAILOVERS);
        if !self.features.failover || lately {
            return in_error(id, "");
        }
        match self.api(op).fail_over(id, "it is in error").await {
            Ok(()) => {
                // One that was never sent, or refused, is tried again.
                known.failed_over = Some(Instant::now());
                op.event(EventKind::Warning, "LoadBalancerFailover", &format!("load balancer {id} was in error"));
                if let Some(seen) = &mut known.seen {
                    seen.balancer.provisioning_status = ProvisioningStatus::PendingUpdate;
                }
                known.waiting = None;
                known.touch(self.memory.rounds.now());
                self.pending(op, known, &format!("load balancer {id} is failed over"))
            }
            Err(error) => error.into(),
        }
    }
}

fn in_error(id: &str, more: &str) -> Halt {
    Halt::Failed(CloudError::transient(format!("load balancer {id} is in error{more}")))
}
