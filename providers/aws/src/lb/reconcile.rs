//! Brings one Service's balancer in line: look, plan, carry out.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc, time::Duration};

use ccm_core::{
    k8s::{LbStatus, ServiceView},
    provider::{Backends, CloudError, Digest, ErrorKind, LbOutcome, Op, PlannedChange, Progress, ReadMode},
};
use tokio::time::Instant;

use super::{
    apply::{Applier, ApplyStop},
    backing::{ResolvedTargets, STOPPED_RECHECK_INTERVAL},
    deps::LoadBalancerDeps,
    effect::WorkingState,
    members::defer_stopped_instances,
    model::{DesiredListener, DesiredLoadBalancer, ListenerKey, SubnetChoice, Targets},
    names,
    observe::{LoadBalancerQuery, Observer, names_of},
    plan::{self, ResolvedInput},
    pods::RuleInputs,
    security_groups::RuleRequest,
    seen::ObservedState,
    spec::STICKY,
    status,
    sync_state::{LoadBalancerSyncState, SyncStateStore},
};
use crate::{
    api::{InstanceId, SecurityGroupId, Tags},
    clock::ago,
    cluster::SERVICE_TAG,
    instances::InstanceCache,
    scope::Scope,
};

/// How long something that was broken off, with a picture that holds, is taken up without reading everything again.
const RESUME_WINDOW: Duration = Duration::from_secs(600);
/// How often a plan is made anew when the picture turned out not to be complete.
const MAX_REPLANS: usize = 5;

/// Everything that works on load balancers.
pub(super) struct LoadBalancerReconciler {
    pub(super) scope: Scope,
    pub(super) observer: Observer,
    pub(super) deps: LoadBalancerDeps,
    pub(super) sync_states: SyncStateStore,
}

/// What a Service wants, with the backends that it gets.
pub(super) struct ReconcileInput<'a> {
    pub(super) desired: &'a DesiredLoadBalancer,
    pub(super) service: &'a ServiceView,
    pub(super) backends: &'a Backends,
    /// Whether no rule may be changed along with the targets.
    pub(super) targets_only: bool,
}

impl LoadBalancerReconciler {
    pub(super) fn new(scope: Scope, store: Arc<InstanceCache>) -> Self {
        let observer = Observer::new(scope.clone());
        let deps = LoadBalancerDeps::new(&scope, store, observer.listings.clone());
        Self { observer, scope, deps, sync_states: SyncStateStore::default() }
    }

    /// Makes everything as wanted.
    pub(super) async fn ensure(&self, op: &Op, order: &ReconcileInput<'_>, depth: ReadMode) -> LbOutcome {
        let uid = &order.desired.owner.uid;
        let mut known = self.sync_states.take(uid);
        known.cancel_deletion();
        let result = self.reconcile(op, order, depth, &mut known).await;
        let status =
            known.observed.as_ref().and_then(|seen| Some(status::of(&seen.load_balancer.as_ref()?.load_balancer)));
        self.sync_states.put(uid, known);
        outcome(status, result)
    }

    async fn reconcile(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        depth: ReadMode,
        known: &mut LoadBalancerSyncState,
    ) -> Result<Progress, CloudError> {
        let wanted = order.desired;
        let max_age =
            if depth == ReadMode::Cached { self.scope.settings.drift_check_interval } else { STOPPED_RECHECK_INTERVAL };
        let backing = self.resolve_targets(op, wanted, order.backends, max_age).await?;
        let applied = known.last_applied.as_ref().filter(|_| known.observed.is_some());
        if depth == ReadMode::Cached
            && applied.is_some_and(|(w, targets)| **w == *wanted && *targets == backing.targets)
        {
            return Ok(Progress::Done);
        }
        if let Some((after, why)) = self.only_stopped_instances_pending(op, wanted, &backing, known) {
            return Ok(Progress::Pending { after, why });
        }
        let observed = match self.observe(op, order, depth, known).await {
            Ok(observed) => observed,
            Err(error) => {
                // What has to wait for its turn says nothing about what there is.
                if error.kind() != ErrorKind::Throttled {
                    known.invalidate();
                }
                return Err(error);
            }
        };
        known.last_applied = None;
        known.responses.clear();
        let existing = observed.load_balancer.as_ref().map(|seen| seen.load_balancer.security_groups.clone());
        known.observed = Some(observed.clone());
        // Whatever is changed from here on, a shared look that was made before now does not show it.
        known.changed_at = Some(Instant::now());
        let groups = self
            .deps
            .security_groups
            .ensure_frontend_groups(op, wanted, existing.as_deref())
            .await
            .map_err(as_transient)?;
        let resolved = self.resolve(op, wanted, &observed, &backing, groups).await?;
        let result = self.plan_and_apply(op, wanted, &resolved, &backing, observed, known).await;
        known.changed_at = Some(Instant::now());
        result
    }

    /// Tells whether the only thing to be done is still to wait for stopped instances, as it was when everything was last
    /// brought in line. They may stay stopped for months: meanwhile nothing is read but what they do, once for all Services,
    /// and everything when the comparison is due.
    fn only_stopped_instances_pending(
        &self,
        op: &Op,
        wanted: &DesiredLoadBalancer,
        backing: &ResolvedTargets,
        known: &LoadBalancerSyncState,
    ) -> Option<(Duration, Box<str>)> {
        let recent = known.read_at.is_some_and(|at| at > ago(self.scope.settings.drift_check_interval));
        let applied = known.last_applied.as_ref().is_some_and(|(applied, _)| **applied == *wanted);
        if op.pending_for().is_zero() || !recent || !applied || !known.rule_inputs.covers(&backing.rule_inputs) {
            return None;
        }
        let mut steps = plan::plan_targets_only(wanted, &backing.targets, known.observed.as_ref()?);
        defer_stopped_instances(op, &mut steps, &backing.stopped).filter(|_| steps.is_empty())
    }

    /// Finds out what there is, as far as it is not known.
    async fn observe(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        depth: ReadMode,
        known: &mut LoadBalancerSyncState,
    ) -> Result<ObservedState, CloudError> {
        let recent = known.read_at.is_some_and(|at| at > ago(RESUME_WINDOW));
        let unfinished = known.last_applied.as_ref().is_none_or(|(_, targets)| targets.is_empty());
        let taken_up = unfinished && recent && op.pending_for() > Duration::ZERO;
        let holds = depth == ReadMode::Cached || taken_up;
        if holds && let Some(mut observed) = known.take_observed() {
            if !observed.is_complete()
                && let Err(error) = self.observer.read_missing(op, &order.desired.owner, &mut observed).await
            {
                // Unless it is in doubt now, the rest of it can be read later.
                known.observed = Some(observed);
                return Err(error);
            }
            return Ok(observed);
        }
        let mut observed = self.read_from_aws(op, order, known, true).await?;
        self.restore_unreadable(op, order.desired, known, &mut observed).await?;
        Ok(observed)
    }

    /// Adds to what was read what cannot be read of the balancer: what is to be given up.
    async fn restore_unreadable(
        &self,
        op: &Op,
        wanted: &DesiredLoadBalancer,
        known: &mut LoadBalancerSyncState,
        observed: &mut ObservedState,
    ) -> Result<(), CloudError> {
        drop(known.take_observed());
        known.restore_unreadable(observed);
        if let Some(seen) = &observed.load_balancer {
            let used = &seen.load_balancer.security_groups;
            let left =
                self.deps.security_groups.find_leftover_group(op, &wanted.owner, used).await.map_err(as_transient)?;
            observed.detached_security_groups.extend(left);
            observed.detached_security_groups.retain(|group| !used.contains(group));
        }
        Ok(())
    }

    pub(super) async fn read_from_aws(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        known: &mut LoadBalancerSyncState,
        all: bool,
    ) -> Result<ObservedState, CloudError> {
        let names = load_balancer_names(order);
        let observer = self.observer.with_response_cache(&known.responses);
        let observed = known.responses.finish(observer.observe(op, &query(order, &names, known), all).await)?;
        known.read_at = Some(Instant::now());
        Ok(observed)
    }

    /// Works out what depends on the VPC and the cluster.
    async fn resolve(
        &self,
        op: &Op,
        wanted: &DesiredLoadBalancer,
        observed: &ObservedState,
        backing: &ResolvedTargets,
        groups: Vec<SecurityGroupId>,
    ) -> Result<ResolvedInput, CloudError> {
        let named = matches!(wanted.subnets, SubnetChoice::Named(_));
        let subnets = match observed.load_balancer.is_none() || named {
            true => Some(self.deps.vpc.choose(op, wanted).await.map_err(as_transient)?),
            false => None,
        };
        Ok(ResolvedInput {
            vpc: self.scope.vpc.clone(),
            tags: self.tags(wanted),
            subnets,
            groups,
            targets: backing.targets.clone(),
            rules_digest: rules_digest(wanted, &backing.rule_inputs),
        })
    }

    fn tags(&self, wanted: &DesiredLoadBalancer) -> Tags {
        let mut tags = wanted.extra_tags.clone();
        tags.extend(self.scope.cluster.tags());
        tags.insert(SERVICE_TAG.into(), wanted.owner.key().into());
        tags
    }

    /// Plans and carries out, again when the picture was not complete.
    async fn plan_and_apply(
        &self,
        op: &Op,
        wanted: &DesiredLoadBalancer,
        resolved: &ResolvedInput,
        backing: &ResolvedTargets,
        observed: ObservedState,
        known: &mut LoadBalancerSyncState,
    ) -> Result<Progress, CloudError> {
        let instances: Vec<_> = backing.instances.iter().cloned().collect();
        let mut picture = WorkingState::new(observed);
        let asked = with_stickiness_off(wanted, &known.sticky_listeners);
        for _ in 0..MAX_REPLANS {
            let mut steps = plan::plan(&asked, resolved, &picture.observed)?;
            let waits = defer_stopped_instances(op, &mut steps, &backing.stopped);
            picture = WorkingState::new(picture.observed);
            let mut applier = self.applier(op, wanted, &instances, backing, &mut picture);
            let stopped = waits.is_some();
            applier.deferred.extend(waits.into_iter().chain(backing.pending.clone()));
            let ended = applier.apply(&steps).await;
            let (left, no_room) = (applier.deferred, applier.target_group_full);
            match ended {
                Ok(()) => {
                    picture.observed.rules_digest = Some(resolved.rules_digest);
                    known.observed = Some(picture.observed);
                    self.report_unmanaged_groups(op, wanted, backing, known);
                    if no_room.is_none() && left.len() == usize::from(stopped) {
                        record_in_sync(known, wanted, backing, stopped);
                    }
                    return no_room.map_or_else(|| Ok(earliest_pending(left)), Err);
                }
                Err(ApplyStop::Replan) => {}
                Err(ApplyStop::RetryAfter(after, why)) => {
                    known.observed = Some(picture.observed);
                    return Ok(Progress::Pending { after, why });
                }
                Err(ApplyStop::Failed(error)) => {
                    known.observed = Some(picture.observed);
                    // What was refused before it was sent has changed nothing.
                    if !matches!(error.kind(), ErrorKind::NotLeader | ErrorKind::Throttled) {
                        known.invalidate();
                    }
                    return Err(error);
                }
            }
        }
        known.observed = Some(picture.observed);
        known.invalidate();
        Err(CloudError::transient(format!("load balancer {} changes while it is brought in line", wanted.name)))
    }

    pub(super) fn applier<'a>(
        &'a self,
        op: &'a Op,
        wanted: &'a DesiredLoadBalancer,
        instances: &'a [InstanceId],
        backing: &'a ResolvedTargets,
        picture: &'a mut WorkingState,
    ) -> Applier<'a> {
        Applier {
            scope: &self.scope,
            observer: &self.observer,
            deps: &self.deps,
            op,
            desired: wanted,
            instances,
            pods: &backing.rule_inputs.pods,
            working: picture,
            deferred: Vec::new(),
            target_group_full: None,
        }
    }

    /// Says what [`ensure`](Self::ensure) would change. The first look reads what is shared and what is only the Service's;
    /// what is known already is read again as a whole.
    pub(super) async fn plan(&self, op: &Op, order: &ReconcileInput<'_>) -> Result<Vec<PlannedChange>, CloudError> {
        let uid = &order.desired.owner.uid;
        let mut known = self.sync_states.take(uid);
        let before = known.changed_at;
        let result = self.diff(op, order, &mut known).await;
        known.changed_at = before;
        self.sync_states.put(uid, known);
        result
    }

    async fn diff(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        known: &mut LoadBalancerSyncState,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let wanted = order.desired;
        let backing =
            self.resolve_targets(op, wanted, order.backends, self.scope.settings.drift_check_interval).await?;
        let mut observed = if known.take_observed().is_none() {
            let names = load_balancer_names(order);
            let observer = self.observer.with_response_cache(&known.responses);
            let look = observer.observe_from_listing(op, &query(order, &names, known)).await;
            let observed = known.responses.finish(look)?;
            known.read_at = Some(Instant::now());
            observed
        } else {
            self.read_from_aws(op, order, known, true).await?
        };
        self.restore_unreadable(op, wanted, known, &mut observed).await?;
        let existing = observed.load_balancer.as_ref().map(|seen| &*seen.load_balancer.security_groups);
        let front = self.deps.security_groups.plan_frontend_groups(op, wanted, existing).await?;
        let groups = if front.complete { front.groups } else { Vec::new() };
        let resolved = self.resolve(op, wanted, &observed, &backing, groups).await?;
        let steps = plan::plan(wanted, &resolved, &observed)?;
        let mut changes = front.changes;
        changes.extend(steps.iter().filter_map(|step| step.describe(&wanted.name)));
        changes.extend(self.diff_security_group_rules(op, wanted, &observed, &backing).await?);
        let left = observed.detached_security_groups.iter().filter(|group| !resolved.groups.contains(group));
        changes.extend(left.map(|group| PlannedChange {
            operation: "DeleteSecurityGroup".into(),
            object: (&**group).into(),
            reason: "it is not on the load balancer any more".into(),
        }));
        changes.extend(status_difference(order.service, &observed)?);
        if changes.is_empty() {
            observed.rules_digest = Some(resolved.rules_digest);
            known.observed = Some(observed);
            record_in_sync(known, wanted, &backing, false);
        } else {
            (known.observed, known.last_applied) = (Some(observed), None);
        }
        Ok(changes)
    }

    async fn diff_security_group_rules(
        &self,
        op: &Op,
        wanted: &DesiredLoadBalancer,
        observed: &ObservedState,
        backing: &ResolvedTargets,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let Some(seen) = &observed.load_balancer else { return Ok(Vec::new()) };
        let zones: Vec<_> = seen.load_balancer.zones.iter().filter_map(|zone| zone.subnet.clone()).collect();
        let subnets = self.deps.subnets(op, &zones).await?;
        let instances: Vec<_> = backing.instances.iter().cloned().collect();
        let exposure = RuleRequest {
            desired: wanted,
            lb_name: &seen.load_balancer.name,
            lb_groups: &seen.load_balancer.security_groups,
            subnets: &subnets,
            instances: &instances,
            pods: &backing.rule_inputs.pods,
        };
        self.deps.security_groups.plan(op, &exposure).await
    }
}

/// Notes that everything is as wanted; but for the targets, if some wait.
fn record_in_sync(
    known: &mut LoadBalancerSyncState,
    wanted: &DesiredLoadBalancer,
    backing: &ResolvedTargets,
    some_wait: bool,
) {
    if let Some(observed) = &mut known.observed {
        observed.removable_tag_keys = wanted.extra_tags.keys().cloned().collect();
        observed.unmodifiable_groups.clear();
    }
    let targets = if some_wait { Targets::new() } else { backing.targets.clone() };
    known.last_applied = Some((Arc::new(wanted.clone()), targets));
    (known.instances, known.rule_inputs) = (backing.instances.clone(), backing.rule_inputs.clone());
    known.sticky_listeners =
        wanted.listeners.iter().filter(|listener| has_stickiness(listener)).map(DesiredListener::key).collect();
}

fn has_stickiness(listener: &DesiredListener) -> bool {
    listener.target_group.attributes.get(STICKY).is_some_and(|value| &**value == "true")
}

/// What is wanted, with an end to stickiness that the Service had before and says nothing of now: nobody else asked for it.
fn with_stickiness_off<'a>(
    wanted: &'a DesiredLoadBalancer,
    sticky: &BTreeSet<ListenerKey>,
) -> Cow<'a, DesiredLoadBalancer> {
    let stuck = |listener: &DesiredListener| {
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
fn load_balancer_names(order: &ReconcileInput<'_>) -> Vec<Box<str>> {
    names_of(order.desired, &names::load_balancer(&order.desired.owner.uid))
}

fn query<'a>(
    order: &'a ReconcileInput<'_>,
    names: &'a [Box<str>],
    known: &LoadBalancerSyncState,
) -> LoadBalancerQuery<'a> {
    let hostname = status::hostname(&order.service.status);
    LoadBalancerQuery {
        owner: &order.desired.owner,
        names,
        hostname,
        may_exist: order.service.has_finalizer() || hostname.is_some() || known.changed_at.is_some(),
        changed_at: known.changed_at,
    }
}

/// What decides about rules of security groups.
pub(super) fn rules_digest(wanted: &DesiredLoadBalancer, ground: &RuleInputs) -> Digest {
    Digest::of(&(wanted, ground))
}

/// A Service that shows another host name than its balancer's.
fn status_difference(service: &ServiceView, observed: &ObservedState) -> Result<Option<PlannedChange>, CloudError> {
    let Some(seen) = &observed.load_balancer else { return Ok(None) };
    let Some(status) = status::of(&seen.load_balancer)? else { return Ok(None) };
    let same = service.status.ingress.len() == status.ingress.len()
        && status::hostname(&service.status) == status::hostname(&status);
    Ok((!same).then(|| PlannedChange {
        operation: "publish_status".into(),
        object: seen.load_balancer.name.clone(),
        reason: format!("the service does not show {}", seen.load_balancer.dns_name).into(),
    }))
}

/// Waits for what could not be done.
pub(super) fn earliest_pending(left: Vec<(Duration, Box<str>)>) -> Progress {
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
pub(super) fn as_transient(error: CloudError) -> CloudError {
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
