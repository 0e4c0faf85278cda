//! Brings one Service's balancer in line: look, plan, carry out.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc, time::Duration};

use ccm_core::{
    k8s::{LbStatus, ServiceView},
    provider::{BackendSet, CloudError, Depth, Digest, ErrorKind, LbOutcome, Op, PlannedChange, Progress},
};
use tokio::time::Instant;

use super::{
    apply::{Applier, Halt},
    backing::{Backing, RECHECK},
    effect::Picture,
    interpret::STICKY,
    members::spare,
    memory::{Known, Memory},
    model::{ListenerKey, SubnetChoice, Targets, Wanted, WantedListener},
    names,
    observe::{Observer, Question, names_of},
    plan::{self, Resolved},
    pods::Ground,
    security::Exposure,
    seen::Observed,
    status,
    surroundings::Surroundings,
};
use crate::{
    api::{InstanceId, SecurityGroupId, Tags},
    clock::ago,
    cluster::SERVICE_TAG,
    instances::InstanceStore,
    scope::Scope,
};

/// How long something that was broken off, with a picture that holds, is taken up without reading everything again.
const TAKEN_UP: Duration = Duration::from_secs(600);
/// How often a plan is made anew when the picture turned out not to be complete.
const ROUNDS: usize = 5;

/// Everything that works on load balancers.
pub(super) struct Core {
    pub(super) scope: Scope,
    pub(super) observer: Observer,
    pub(super) surroundings: Surroundings,
    pub(super) memory: Memory,
}

/// What a Service wants, with the backends that it gets.
pub(super) struct Order<'a> {
    pub(super) wanted: &'a Wanted,
    pub(super) service: &'a ServiceView,
    pub(super) backends: &'a BackendSet,
    /// Whether no rule may be changed along with the targets.
    pub(super) targets_only: bool,
}

impl Core {
    pub(super) fn new(scope: Scope, store: Arc<InstanceStore>) -> Self {
        let observer = Observer::new(scope.clone());
        let surroundings = Surroundings::new(&scope, store, observer.sweeps.clone());
        Self { observer, scope, surroundings, memory: Memory::default() }
    }

    /// Makes everything as wanted.
    pub(super) async fn ensure(&self, op: &Op, order: &Order<'_>, depth: Depth) -> LbOutcome {
        let uid = &order.wanted.owner.uid;
        let mut known = self.memory.take(uid);
        known.revive();
        let result = self.bring(op, order, depth, &mut known).await;
        let status = known.observed.as_ref().and_then(|seen| Some(status::of(&seen.balancer.as_ref()?.balancer)));
        self.memory.put(uid, known);
        outcome(status, result)
    }

    async fn bring(&self, op: &Op, order: &Order<'_>, depth: Depth, known: &mut Known) -> Result<Progress, CloudError> {
        let wanted = order.wanted;
        let max_age = if depth == Depth::Trust { self.scope.settings.drift_check_interval } else { RECHECK };
        let backing = self.backing(op, wanted, order.backends, max_age).await?;
        let applied = known.applied.as_ref().filter(|_| known.observed.is_some());
        if depth == Depth::Trust && applied.is_some_and(|(w, targets)| **w == *wanted && *targets == backing.targets) {
            return Ok(Progress::Done);
        }
        if let Some((after, why)) = self.still_waits(op, wanted, &backing, known) {
            return Ok(Progress::Pending { after, why });
        }
        let observed = match self.look(op, order, depth, known).await {
            Ok(observed) => observed,
            Err(error) => {
                // What has to wait for its turn says nothing about what there is.
                if error.kind() != ErrorKind::Throttled {
                    known.doubt();
                }
                return Err(error);
            }
        };
        known.applied = None;
        known.answers.clear();
        let existing = observed.balancer.as_ref().map(|seen| seen.balancer.security_groups.clone());
        known.observed = Some(observed.clone());
        // Whatever is changed from here on, a shared look that was made before now does not show it.
        known.changed = Some(Instant::now());
        let groups = self.surroundings.security.front(op, wanted, existing.as_deref()).await.map_err(unsettled)?;
        let resolved = self.resolve(op, wanted, &observed, &backing, groups).await?;
        let result = self.carry_out(op, wanted, &resolved, &backing, observed, known).await;
        known.changed = Some(Instant::now());
        result
    }

    /// Tells whether the only thing to be done is still to wait for stopped instances, as it was when everything was last
    /// brought in line. They may stay stopped for months: meanwhile nothing is read but what they do, once for all Services,
    /// and everything when the comparison is due.
    fn still_waits(&self, op: &Op, wanted: &Wanted, backing: &Backing, known: &Known) -> Option<(Duration, Box<str>)> {
        let recent = known.read_at.is_some_and(|at| at > ago(self.scope.settings.drift_check_interval));
        let applied = known.applied.as_ref().is_some_and(|(applied, _)| **applied == *wanted);
        if op.pending_for().is_zero() || !recent || !applied || !known.ground.covers(&backing.ground) {
            return None;
        }
        let mut steps = plan::membership(wanted, &backing.targets, known.observed.as_ref()?);
        spare(op, &mut steps, &backing.stopped).filter(|_| steps.is_empty())
    }

    /// Finds out what there is, as far as it is not known.
    async fn look(&self, op: &Op, order: &Order<'_>, depth: Depth, known: &mut Known) -> Result<Observed, CloudError> {
        let recent = known.read_at.is_some_and(|at| at > ago(TAKEN_UP));
        let unfinished = known.applied.as_ref().is_none_or(|(_, targets)| targets.is_empty());
        let taken_up = unfinished && recent && op.pending_for() > Duration::ZERO;
        let holds = depth == Depth::Trust || taken_up;
        if holds && let Some(mut observed) = known.take_observed() {
            if !observed.is_full()
                && let Err(error) = self.observer.complete(op, &order.wanted.owner, &mut observed).await
            {
                // Unless it is in doubt now, the rest of it can be read later.
                known.observed = Some(observed);
                return Err(error);
            }
            return Ok(observed);
        }
        let mut observed = self.read(op, order, known, true).await?;
        self.carry_over(op, order.wanted, known, &mut observed).await?;
        Ok(observed)
    }

    /// Adds to what was read what cannot be read of the balancer: what is to be given up.
    async fn carry_over(
        &self,
        op: &Op,
        wanted: &Wanted,
        known: &mut Known,
        observed: &mut Observed,
    ) -> Result<(), CloudError> {
        drop(known.take_observed());
        known.hand_over(observed);
        if let Some(seen) = &observed.balancer {
            let used = &seen.balancer.security_groups;
            let left = self.surroundings.security.left_over(op, &wanted.owner, used).await.map_err(unsettled)?;
            observed.detached.extend(left);
            observed.detached.retain(|group| !used.contains(group));
        }
        Ok(())
    }

    pub(super) async fn read(
        &self,
        op: &Op,
        order: &Order<'_>,
        known: &mut Known,
        all: bool,
    ) -> Result<Observed, CloudError> {
        let names = names(order);
        let observer = self.observer.recalling(&known.answers);
        let observed = known.answers.end(observer.read(op, &question(order, &names, known), all).await)?;
        known.read_at = Some(Instant::now());
        Ok(observed)
    }

    /// Works out what depends on the VPC and the cluster.
    async fn resolve(
        &self,
        op: &Op,
        wanted: &Wanted,
        observed: &Observed,
        backing: &Backing,
        groups: Vec<SecurityGroupId>,
    ) -> Result<Resolved, CloudError> {
        let named = matches!(wanted.subnets, SubnetChoice::Named(_));
        let subnets = match observed.balancer.is_none() || named {
            true => Some(self.surroundings.vpc.choose(op, wanted).await.map_err(unsettled)?),
            false => None,
        };
        Ok(Resolved {
            vpc: self.scope.vpc.clone(),
            tags: self.tags(wanted),
            subnets,
            groups,
            targets: backing.targets.clone(),
            exposure: exposure(wanted, &backing.ground),
        })
    }

    fn tags(&self, wanted: &Wanted) -> Tags {
        let mut tags = wanted.extra_tags.clone();
        tags.extend(self.scope.cluster.tags());
        tags.insert(SERVICE_TAG.into(), wanted.owner.key().into());
        tags
    }

    /// Plans and carries out, again when the picture was not complete.
    async fn carry_out(
        &self,
        op: &Op,
        wanted: &Wanted,
        resolved: &Resolved,
        backing: &Backing,
        observed: Observed,
        known: &mut Known,
    ) -> Result<Progress, CloudError> {
        let instances: Vec<_> = backing.instances.iter().cloned().collect();
        let mut picture = Picture::new(observed);
        let asked = unstuck(wanted, &known.sticky);
        for _ in 0..ROUNDS {
            let mut steps = plan::plan(&asked, resolved, &picture.observed)?;
            let waits = spare(op, &mut steps, &backing.stopped);
            picture = Picture::new(picture.observed);
            let mut applier = self.applier(op, wanted, &instances, backing, &mut picture);
            let stopped = waits.is_some();
            applier.left.extend(waits.into_iter().chain(backing.waits.clone()));
            let ended = applier.apply(&steps).await;
            let (left, no_room) = (applier.left, applier.no_room);
            match ended {
                Ok(()) => {
                    picture.observed.exposure = Some(resolved.exposure);
                    known.observed = Some(picture.observed);
                    self.tell_left_alone(op, wanted, backing, known);
                    if no_room.is_none() && left.len() == usize::from(stopped) {
                        note_applied(known, wanted, backing, stopped);
                    }
                    return no_room.map_or_else(|| Ok(pending(left)), Err);
                }
                Err(Halt::Replan) => {}
                Err(Halt::Later(after, why)) => {
                    known.observed = Some(picture.observed);
                    return Ok(Progress::Pending { after, why });
                }
                Err(Halt::Failed(error)) => {
                    known.observed = Some(picture.observed);
                    // What was refused before it was sent has changed nothing.
                    if !matches!(error.kind(), ErrorKind::NotLeader | ErrorKind::Throttled) {
                        known.doubt();
                    }
                    return Err(error);
                }
            }
        }
        known.observed = Some(picture.observed);
        known.doubt();
        Err(CloudError::transient(format!("load balancer {} changes while it is brought in line", wanted.name)))
    }

    pub(super) fn applier<'a>(
        &'a self,
        op: &'a Op,
        wanted: &'a Wanted,
        instances: &'a [InstanceId],
        backing: &'a Backing,
        picture: &'a mut Picture,
    ) -> Applier<'a> {
        Applier {
            scope: &self.scope,
            observer: &self.observer,
            surroundings: &self.surroundings,
            op,
            wanted,
            instances,
            pods: &backing.ground.pods,
            picture,
            left: Vec::new(),
            no_room: None,
        }
    }

    /// Says what [`ensure`](Self::ensure) would change. The first look reads what is shared and what is only the Service's;
    /// what is known already is read again as a whole.
    pub(super) async fn plan(&self, op: &Op, order: &Order<'_>) -> Result<Vec<PlannedChange>, CloudError> {
        let uid = &order.wanted.owner.uid;
        let mut known = self.memory.take(uid);
        let before = known.changed;
        let result = self.compare(op, order, &mut known).await;
        known.changed = before;
        self.memory.put(uid, known);
        result
    }

    async fn compare(&self, op: &Op, order: &Order<'_>, known: &mut Known) -> Result<Vec<PlannedChange>, CloudError> {
        let wanted = order.wanted;
        let backing = self.backing(op, wanted, order.backends, self.scope.settings.drift_check_interval).await?;
        let mut observed = if known.take_observed().is_none() {
            let names = names(order);
            let observer = self.observer.recalling(&known.answers);
            let look = observer.first_look(op, &question(order, &names, known)).await;
            let observed = known.answers.end(look)?;
            known.read_at = Some(Instant::now());
            observed
        } else {
            self.read(op, order, known, true).await?
        };
        self.carry_over(op, wanted, known, &mut observed).await?;
        let existing = observed.balancer.as_ref().map(|seen| &*seen.balancer.security_groups);
        let front = self.surroundings.security.front_plan(op, wanted, existing).await?;
        let groups = if front.complete { front.groups } else { Vec::new() };
        let resolved = self.resolve(op, wanted, &observed, &backing, groups).await?;
        let steps = plan::plan(wanted, &resolved, &observed)?;
        let mut changes = front.changes;
        changes.extend(steps.iter().filter_map(|step| step.describe(&wanted.name)));
        changes.extend(self.compare_rules(op, wanted, &observed, &backing).await?);
        let left = observed.detached.iter().filter(|group| !resolved.groups.contains(group));
        changes.extend(left.map(|group| PlannedChange {
            operation: "DeleteSecurityGroup".into(),
            object: (&**group).into(),
            reason: "it is not on the load balancer any more".into(),
        }));
        changes.extend(unpublished(order.service, &observed)?);
        if changes.is_empty() {
            observed.exposure = Some(resolved.exposure);
            known.observed = Some(observed);
            note_applied(known, wanted, &backing, false);
        } else {
            (known.observed, known.applied) = (Some(observed), None);
        }
        Ok(changes)
    }

    async fn compare_rules(
        &self,
        op: &Op,
        wanted: &Wanted,
        observed: &Observed,
        backing: &Backing,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let Some(seen) = &observed.balancer else { return Ok(Vec::new()) };
        let zones: Vec<_> = seen.balancer.zones.iter().filter_map(|zone| zone.subnet.clone()).collect();
        let subnets = self.surroundings.subnets(op, &zones).await?;
        let instances: Vec<_> = backing.instances.iter().cloned().collect();
        let exposure = Exposure {
            wanted,
            lb_name: &seen.balancer.name,
            lb_groups: &seen.balancer.security_groups,
            subnets: &subnets,
            instances: &instances,
            pods: &backing.ground.pods,
        };
        self.surroundings.security.plan(op, &exposure).await
    }
}

/// Notes that everything is as wanted; but for the targets, if some wait.
fn note_applied(known: &mut Known, wanted: &Wanted, backing: &Backing, some_wait: bool) {
    if let Some(observed) = &mut known.observed {
        observed.recorded_tags = wanted.extra_tags.keys().cloned().collect();
        observed.frozen.clear();
    }
    let targets = if some_wait { Targets::new() } else { backing.targets.clone() };
    known.applied = Some((Arc::new(wanted.clone()), targets));
    (known.instances, known.ground) = (backing.instances.clone(), backing.ground.clone());
    known.sticky = wanted.listeners.iter().filter(|listener| sticks(listener)).map(WantedListener::key).collect();
}

fn sticks(listener: &WantedListener) -> bool {
    listener.target_group.attributes.get(STICKY).is_some_and(|value| &**value == "true")
}

/// What is wanted, with an end to stickiness that the Service had before and says nothing of now: nobody else asked for it.
fn unstuck<'a>(wanted: &'a Wanted, sticky: &BTreeSet<ListenerKey>) -> Cow<'a, Wanted> {
    let stuck = |listener: &WantedListener| {
        sticky.contains(&listener.key()) && !listener.target_group.attributes.contains_key(STICKY)
    };
    if !wanted.listeners.iter().any(stuck) {
        return Cow::Borrowed(wanted);
    }
    let mut wanted = wanted.clone();
    for listener in wanted.listeners.iter_mut().filter(|listener| stuck(listener)) {
        listener.target_group.attributes.insert(STICKY.into(), "false".into());
    }
    Cow::Owned(wanted)
}

/// Returns the names under which a balancer may be found.
fn names(order: &Order<'_>) -> Vec<Box<str>> {
    names_of(order.wanted, &names::load_balancer(&order.wanted.owner.uid))
}

fn question<'a>(order: &'a Order<'_>, names: &'a [Box<str>], known: &Known) -> Question<'a> {
    let hostname = status::hostname(&order.service.status);
    Question {
        owner: &order.wanted.owner,
        names,
        hostname,
        may_exist: order.service.has_finalizer() || hostname.is_some() || known.changed.is_some(),
        changed: known.changed,
    }
}

/// What decides about rules of security groups.
pub(super) fn exposure(wanted: &Wanted, ground: &Ground) -> Digest {
    Digest::of(&(wanted, ground))
}

/// A Service that shows another host name than its balancer's.
fn unpublished(service: &ServiceView, observed: &Observed) -> Result<Option<PlannedChange>, CloudError> {
    let Some(seen) = &observed.balancer else { return Ok(None) };
    let Some(status) = status::of(&seen.balancer)? else { return Ok(None) };
    let same = service.status.ingress.len() == status.ingress.len()
        && status::hostname(&service.status) == status::hostname(&status);
    Ok((!same).then(|| PlannedChange {
        operation: "publish_status".into(),
        object: seen.balancer.name.clone(),
        reason: format!("the service does not show {}", seen.balancer.dns_name).into(),
    }))
}

/// Waits for what could not be done.
pub(super) fn pending(left: Vec<(Duration, Box<str>)>) -> Progress {
    let after = left.iter().map(|(after, _)| *after).min();
    match after {
        None => Progress::Done,
        Some(after) => {
            let why: Vec<_> = left.into_iter().map(|(_, why)| why).collect();
            Progress::Pending { after, why: why.join("; ").into() }
        }
    }
}

/// An answer that something is not there says nothing about the balancer as a whole, and is not the end of everything.
pub(super) fn unsettled(error: CloudError) -> CloudError {
    match error.kind() {
        ErrorKind::NotFound => CloudError::transient(error.to_string()).with_source(error),
        _ => error,
    }
}

pub(super) fn outcome(
    status: Option<Result<Option<LbStatus>, CloudError>>,
    result: Result<Progress, CloudError>,
) -> LbOutcome {
    let (status, failed) = match status {
        Some(Ok(status)) => (status, None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let result = match failed {
        Some(error) => result.and(Err(error)),
        None => result,
    };
    LbOutcome { status, annotations: std::collections::BTreeMap::new(), result }
}
