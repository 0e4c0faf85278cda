//! Members of the target groups that there are: brought in line by themselves.

use std::{collections::BTreeSet, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind, LbOutcome, Op, Progress};
use ipnet::IpNet;
use tokio::time::Instant;

use super::{
    apply::{Halt, REFUSED},
    bring::{Core, Order, exposure, outcome, pending},
    effect::Picture,
    memory::Known,
    model::{Wanted, WantedListener},
    plan::{self, Action, Step},
    seen::Observed,
};
use crate::api::{InstanceId, elb::IpAddressType};

impl Core {
    /// Brings the targets in line and nothing else: of what is known, without asking.
    pub(super) async fn update_backends(&self, op: &Op, order: &Order<'_>) -> LbOutcome {
        let uid = &order.wanted.owner.uid;
        let mut known = self.memory.take(uid);
        known.revive();
        let before = known.changed;
        let result = self.bring_backends(op, order, &mut known).await;
        // Whoever got no further than to look has changed nothing.
        if known.changed != before {
            known.changed = Some(Instant::now());
        }
        self.memory.put(uid, known);
        outcome(None, result)
    }

    // length: the ends of one attempt, each with what is known afterwards
    async fn bring_backends(&self, op: &Op, order: &Order<'_>, known: &mut Known) -> Result<Progress, CloudError> {
        let wanted = order.wanted;
        let backing = self.backing(op, wanted, order.backends, self.scope.settings.drift_check_interval).await?;
        let unread = |observed: &Observed| observed.groups.iter().any(|group| group.targets.is_none());
        let mut observed = match known.take_observed() {
            Some(observed) => observed,
            None => {
                let mut observed = self.read(op, order, known, false).await?;
                known.hand_over(&mut observed);
                observed
            }
        };
        if unread(&observed)
            && let Err(error) = self.observer.complete(op, &wanted.owner, &mut observed).await
        {
            known.observed = Some(observed).filter(|_| error.kind() == ErrorKind::Throttled);
            return Err(error);
        }
        known.answers.clear();
        known.changed = Some(Instant::now());
        if observed.balancer.is_none() {
            let error = CloudError::new(ErrorKind::NotFound, format!("load balancer {} is not there", wanted.name));
            return Err(error);
        }
        let mut steps = plan::membership(wanted, &backing.targets, &observed);
        let waits = spare(op, &mut steps, &backing.stopped);
        // Nodes may bring another security group, and pods another port.
        let opens = !order.targets_only && !known.ground.covers(&backing.ground);
        let instances: Vec<_> = backing.instances.iter().cloned().collect();
        let mut picture = Picture::new(observed);
        let served = served(known.applied.as_ref().map_or(wanted, |(applied, _)| applied), &picture.observed);
        let mut applier = self.applier(op, &served, &instances, &backing, &mut picture);
        applier.left.extend(waits.into_iter().chain(backing.waits.clone()));
        let ended = applier.members(&steps, opens).await;
        let (left, no_room) = (applier.left, applier.no_room);
        match ended {
            Ok(Some(refused)) => {
                (known.observed, known.instances) = (Some(picture.observed), backing.instances);
                Err(refused)
            }
            Ok(None) => {
                // Of rules that serve something else than is wanted now nothing is known.
                let exposed = Some(exposure(wanted, &known.ground)) == picture.observed.exposure;
                // Rules for groups that no node has any more go when everything is compared.
                if !order.targets_only {
                    known.ground.extend(&backing.ground);
                }
                picture.observed.exposure = exposed.then(|| exposure(wanted, &known.ground));
                known.observed = Some(picture.observed);
                self.tell_left_alone(op, wanted, &backing, known);
                if let (Some((_, targets)), true) = (&mut known.applied, left.is_empty() && no_room.is_none()) {
                    *targets = backing.targets;
                }
                known.instances = backing.instances;
                no_room.map_or_else(|| Ok(pending(left)), Err)
            }
            Err(Halt::Later(after, why)) => {
                known.observed = Some(picture.observed);
                Ok(Progress::Pending { after, why })
            }
            Err(Halt::Replan) => {
                known.doubt();
                Ok(Progress::Pending { after: Duration::from_secs(1), why: "it changed meanwhile".into() })
            }
            Err(Halt::Failed(error)) => {
                match error.kind() {
                    ErrorKind::Throttled => known.observed = Some(picture.observed),
                    _ => known.doubt(),
                }
                Err(error)
            }
        }
    }
}

/// Takes registrations of stopped instances out of a plan, because AWS refuses them; says what is waited for then.
pub(super) fn spare(op: &Op, steps: &mut Vec<Step>, stopped: &BTreeSet<InstanceId>) -> Option<(Duration, Box<str>)> {
    let mut spared = BTreeSet::new();
    steps.retain_mut(|step| {
        let Action::RegisterTargets(_, targets) = &mut step.action else { return true };
        targets.retain(|target| match stopped.get(&InstanceId::from(&*target.id)) {
            Some(id) => {
                spared.insert(id);
                false
            }
            None => true,
        });
        !targets.is_empty()
    });
    let why = || format!("{} instances are stopped and no targets yet", spared.len());
    (!spared.is_empty()).then(|| (op.pending_for().clamp(REFUSED.0, REFUSED.1), why().into()))
}

/// What is wanted of the listeners that are there, and of the addresses: a change of the Service is not carried out along
/// with its members.
fn served(wanted: &Wanted, observed: &Observed) -> Wanted {
    let there = |listener: &&WantedListener| {
        let seen = observed.balancer.iter().flat_map(|seen| &seen.listeners).map(|seen| &seen.listener);
        let mut seen = seen.map(|seen| (seen.port, seen.protocol));
        seen.any(|seen| seen == (listener.port.get(), Some(listener.protocol)))
    };
    let family = observed.balancer.as_ref().and_then(|seen| seen.balancer.ip_address_type);
    let ip_address_type = family.unwrap_or(wanted.ip_address_type);
    // No client with an IPv6 address finds one that has none.
    let reaches = |network: &&IpNet| ip_address_type != IpAddressType::Ipv4 || matches!(network, IpNet::V4(_));
    Wanted {
        listeners: wanted.listeners.iter().filter(there).cloned().collect(),
        sources: wanted.sources.iter().filter(reaches).copied().collect(),
        ip_address_type,
        ..wanted.clone()
    }
}
