//! Reconciles the load balancer of one Service: read, plan, apply.

pub(in crate::lb) mod delete;
pub(in crate::lb) mod resolved_targets;
pub(in crate::lb) mod update_targets;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ccm_core::{
    k8s::{LbStatus, ServiceView},
    provider::{
        Backends, CloudError, Digest, ErrorKind, LbOutcome, Op, PlannedChange, Progress, ReadMode,
    },
};
use tokio::time::Instant;

use crate::{
    api::{InstanceId, SecurityGroupId, Tags},
    clock::ago,
    instances::InstanceCache,
    lb::{
        apply::{Applier, ApplyStop, working_state::WorkingState},
        deps::LoadBalancerDeps,
        model::{DesiredListener, DesiredLoadBalancer, ListenerKey, SubnetChoice, Targets},
        names,
        observe::{LoadBalancerQuery, Observer, ReadScope, names_of, observed::ObservedState},
        plan::{self, ResolvedInput},
        reconcile::{
            resolved_targets::{ResolvedTargets, STOPPED_RECHECK_INTERVAL},
            update_targets::defer_stopped_instances,
        },
        retry_delay::{self, Deferred},
        security_groups::RuleRequest,
        spec::STICKY,
        status,
        sync_state::{LastApplied, LoadBalancerSyncState, SyncStateStore},
        targets::pods::RuleInputs,
    },
    ownership_tags::SERVICE_TAG,
    scope::Scope,
};

/// How long after the last read an interrupted sync may be continued from its working state,
/// without reading everything again.
const RESUME_WINDOW: Duration = Duration::from_secs(600);
/// How often a sync plans again because the working state turned out to be incomplete.
const MAX_REPLANS: usize = 5;

/// Reconciles load balancers.
pub(in crate::lb) struct LoadBalancerReconciler {
    pub(in crate::lb) scope: Scope,
    pub(in crate::lb) observer: Observer,
    pub(in crate::lb) deps: LoadBalancerDeps,
    pub(in crate::lb) sync_states: SyncStateStore,
}

/// The desired state of a Service, with its backends.
pub(in crate::lb) struct ReconcileInput<'a> {
    pub(in crate::lb) desired: &'a DesiredLoadBalancer,
    pub(in crate::lb) service: &'a ServiceView,
    pub(in crate::lb) backends: &'a Backends,
    /// Whether only targets may change, and no security group rules.
    pub(in crate::lb) targets_only: bool,
}

impl LoadBalancerReconciler {
    pub(in crate::lb) fn new(scope: Scope, instances: Arc<InstanceCache>) -> Self {
        let observer = Observer::new(scope.clone());
        let deps = LoadBalancerDeps::new(&scope, instances, observer.listings.clone());
        Self {
            observer,
            scope,
            deps,
            sync_states: SyncStateStore::default(),
        }
    }

    /// Creates or updates the load balancer and everything that belongs to it.
    pub(in crate::lb) async fn ensure(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        read_mode: ReadMode,
    ) -> LbOutcome {
        let uid = &input.desired.owner.uid;
        let mut state = self.sync_states.take(uid);
        state.cancel_deletion();
        let result = self.reconcile(op, input, read_mode, &mut state).await;
        let status = observed_status(&state);
        self.sync_states.put(uid, state);
        outcome(status, result)
    }

    async fn reconcile(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        read_mode: ReadMode,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Progress, CloudError> {
        // First, resolve the targets, and stop if the Service is known to be in sync.
        let desired = input.desired;
        let max_age = if read_mode == ReadMode::Cached {
            self.scope.settings.drift_check_interval
        } else {
            STOPPED_RECHECK_INTERVAL
        };
        let resolved_targets = self
            .resolve_targets(op, desired, input.backends, max_age)
            .await?;
        if read_mode == ReadMode::Cached
            && state.observed.is_some()
            && let Some(applied) = &state.last_applied
            && *applied.desired == *desired
            && applied.targets == resolved_targets.targets
        {
            return Ok(Progress::Done);
        }
        if let Some(deferred) =
            self.only_stopped_instances_pending(op, desired, &resolved_targets, state)
        {
            return Ok(deferred.into());
        }
        // Then read the observed state as far as needed.
        let observed = match self.observe(op, input, read_mode, state).await {
            Ok(observed) => observed,
            Err(error) => {
                // The known state stays valid if a rate limit only delayed the read.
                if error.kind() != ErrorKind::Throttled {
                    state.invalidate();
                }
                return Err(error);
            }
        };
        state.last_applied = None;
        state.responses.clear();
        let existing = observed
            .load_balancer
            .as_ref()
            .map(|observed| observed.load_balancer.security_groups.clone());
        state.observed = Some(observed.clone());
        // From here on objects may change, which a listing from before now does not show.
        state.changed_at = Some(Instant::now());
        // Finally, ensure the load balancer's own security groups, plan the rest and apply it.
        let groups = self
            .deps
            .security_groups
            .ensure_frontend_groups(op, desired, existing.as_deref())
            .await
            .map_err(as_transient)?;
        let resolved = self
            .resolve(op, desired, &observed, &resolved_targets, groups)
            .await?;
        let result = self
            .plan_and_apply(op, desired, &resolved, &resolved_targets, observed, state)
            .await;
        state.changed_at = Some(Instant::now());
        result
    }

    /// Returns the delay if, since everything was last applied, only registrations of stopped
    /// instances are pending. Instances may stay stopped for months: until the next drift check
    /// only their state is read, once for all Services.
    fn only_stopped_instances_pending(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        resolved_targets: &ResolvedTargets,
        state: &LoadBalancerSyncState,
    ) -> Option<Deferred> {
        let read_recently = state
            .read_at
            .is_some_and(|at| at > ago(self.scope.settings.drift_check_interval));
        let is_applied = state
            .last_applied
            .as_ref()
            .is_some_and(|applied| *applied.desired == *desired);
        let has_rules = state.rule_inputs.covers(&resolved_targets.rule_inputs);
        if op.pending_for().is_zero() || !read_recently || !is_applied || !has_rules {
            return None;
        }
        let mut actions =
            plan::plan_targets_only(desired, &resolved_targets.targets, state.observed.as_ref()?);
        let stopped_pending = defer_stopped_instances(op, &mut actions, &resolved_targets.stopped);
        // The actions that remain are not about stopped instances.
        if actions.is_empty() {
            stopped_pending
        } else {
            None
        }
    }

    /// Returns the observed state, read from AWS unless it is known.
    async fn observe(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        read_mode: ReadMode,
        state: &mut LoadBalancerSyncState,
    ) -> Result<ObservedState, CloudError> {
        let read_recently = state.read_at.is_some_and(|at| at > ago(RESUME_WINDOW));
        let was_interrupted = state
            .last_applied
            .as_ref()
            .is_none_or(|applied| applied.targets.is_empty());
        let may_resume = was_interrupted && read_recently && op.pending_for() > Duration::ZERO;
        let may_reuse = read_mode == ReadMode::Cached || may_resume;
        if may_reuse && let Some(mut observed) = state.take_observed() {
            if !observed.is_complete()
                && let Err(error) = self
                    .observer
                    .read_missing(op, &input.desired.owner, &mut observed)
                    .await
            {
                // The caller decides by the error whether this is still valid; if so, the rest is
                // read later.
                state.observed = Some(observed);
                return Err(error);
            }
            return Ok(observed);
        }
        let mut observed = self
            .read_from_aws(op, input, state, ReadScope::Full)
            .await?;
        self.restore_unreadable(op, input.desired, state, &mut observed)
            .await?;
        Ok(observed)
    }

    /// Adds to the observed state what cannot be read from the load balancer: tags and security
    /// groups that are to be removed.
    async fn restore_unreadable(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        state: &mut LoadBalancerSyncState,
        observed: &mut ObservedState,
    ) -> Result<(), CloudError> {
        drop(state.take_observed());
        state.restore_unreadable(observed);
        if let Some(load_balancer) = &observed.load_balancer {
            let used = &load_balancer.load_balancer.security_groups;
            let leftover = self
                .deps
                .security_groups
                .find_leftover_group(op, &desired.owner, used)
                .await
                .map_err(as_transient)?;
            observed.detached_security_groups.extend(leftover);
            observed
                .detached_security_groups
                .retain(|group| !used.contains(group));
        }
        Ok(())
    }

    async fn read_from_aws(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
        read_scope: ReadScope,
    ) -> Result<ObservedState, CloudError> {
        let names = load_balancer_names(input);
        let observer = self.observer.with_response_cache(&state.responses);
        let observed = state.responses.finish(
            observer
                .observe(op, &query(input, &names, state), read_scope)
                .await,
        )?;
        state.read_at = Some(Instant::now());
        Ok(observed)
    }

    /// Resolves what depends on the VPC and the cluster.
    async fn resolve(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        observed: &ObservedState,
        resolved_targets: &ResolvedTargets,
        groups: Vec<SecurityGroupId>,
    ) -> Result<ResolvedInput, CloudError> {
        let named = matches!(desired.subnets, SubnetChoice::Named(_));
        let subnets = if observed.load_balancer.is_none() || named {
            let Scope { cluster, settings, .. } = &self.scope;
            let chosen = self
                .deps
                .vpc
                .choose(op, |vpc| plan::subnets::choose(vpc, cluster, settings, desired))
                .await
                .map_err(as_transient)?;
            Some(chosen)
        } else {
            None
        };
        Ok(ResolvedInput {
            vpc: self.scope.vpc.clone(),
            tags: self.tags(desired),
            subnets,
            groups,
            targets: resolved_targets.targets.clone(),
            rules_digest: rules_digest(desired, &resolved_targets.rule_inputs),
        })
    }

    fn tags(&self, desired: &DesiredLoadBalancer) -> Tags {
        let mut tags = desired.extra_tags.clone();
        tags.extend(self.scope.cluster.tags());
        tags.insert(SERVICE_TAG.into(), desired.owner.key().into());
        tags
    }

    /// Plans and applies, and repeats that if the working state was incomplete.
    async fn plan_and_apply(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        resolved: &ResolvedInput,
        resolved_targets: &ResolvedTargets,
        observed: ObservedState,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Progress, CloudError> {
        let instances: Vec<_> = resolved_targets.instances.iter().cloned().collect();
        let mut working_state = WorkingState::new(observed);
        let desired_without_stickiness = with_stickiness_off(desired, &state.sticky_listeners);
        for _ in 0..MAX_REPLANS {
            // First, plan, and leave out registrations of stopped instances.
            let mut actions =
                plan::plan(&desired_without_stickiness, resolved, &working_state.observed)?;
            let stopped_pending =
                defer_stopped_instances(op, &mut actions, &resolved_targets.stopped);
            let some_are_stopped = stopped_pending.is_some();
            working_state = WorkingState::new(working_state.observed);
            // Then apply the plan.
            let mut applier =
                self.applier(op, desired, &instances, resolved_targets, &mut working_state);
            applier.deferred.extend(stopped_pending);
            applier.deferred.extend(resolved_targets.pending.clone());
            let result = applier.apply(&actions).await;
            let deferred = applier.deferred;
            let target_group_full = applier.target_group_full;
            // Finally, keep the working state, as far as it is still valid.
            match result {
                Ok(()) => {
                    working_state.observed.rules_digest = Some(resolved.rules_digest);
                    state.observed = Some(working_state.observed);
                    self.report_unmanaged_groups(op, desired, resolved_targets, state);
                    if let Some(error) = target_group_full {
                        return Err(error);
                    }
                    let only_stopped_are_pending = deferred.len() == usize::from(some_are_stopped);
                    if only_stopped_are_pending {
                        let targets = if some_are_stopped {
                            Targets::new()
                        } else {
                            resolved_targets.targets.clone()
                        };
                        record_in_sync(state, desired, resolved_targets, targets);
                    }
                    return Ok(retry_delay::earliest(deferred));
                }
                Err(ApplyStop::Replan) => {}
                Err(ApplyStop::RetryLater(deferred)) => {
                    state.observed = Some(working_state.observed);
                    return Ok(deferred.into());
                }
                Err(ApplyStop::Failed(error)) => {
                    state.observed = Some(working_state.observed);
                    // The request was not carried out: the working state is still valid.
                    if !matches!(error.kind(), ErrorKind::NotLeader | ErrorKind::Throttled) {
                        state.invalidate();
                    }
                    return Err(error);
                }
            }
        }
        state.observed = Some(working_state.observed);
        state.invalidate();
        Err(CloudError::transient(format!(
            "load balancer {} changes while it is reconciled",
            desired.name
        )))
    }

    pub(in crate::lb) fn applier<'a>(
        &'a self,
        op: &'a Op,
        desired: &'a DesiredLoadBalancer,
        instances: &'a [InstanceId],
        resolved_targets: &'a ResolvedTargets,
        working_state: &'a mut WorkingState,
    ) -> Applier<'a> {
        Applier {
            scope: &self.scope,
            observer: &self.observer,
            deps: &self.deps,
            op,
            desired,
            instances,
            pods: &resolved_targets.rule_inputs.pods,
            working: working_state,
            deferred: Vec::new(),
            target_group_full: None,
        }
    }

    /// Returns what [`ensure`](Self::ensure) would change. The first call for a Service reads the
    /// shared listing and the Service's own objects; later calls read everything of the Service
    /// again.
    pub(in crate::lb) async fn plan(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let uid = &input.desired.owner.uid;
        let mut state = self.sync_states.take(uid);
        let before = state.changed_at;
        let result = self.diff(op, input, &mut state).await;
        state.changed_at = before;
        self.sync_states.put(uid, state);
        result
    }

    async fn diff(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let desired = input.desired;
        let resolved_targets = self
            .resolve_targets(op, desired, input.backends, self.scope.settings.drift_check_interval)
            .await?;
        // First, read the observed state.
        let mut observed = if state.take_observed().is_none() {
            self.read_from_listing(op, input, state).await?
        } else {
            self.read_from_aws(op, input, state, ReadScope::Full)
                .await?
        };
        self.restore_unreadable(op, desired, state, &mut observed)
            .await?;
        // Then plan everything that `ensure` would do, without applying it.
        let existing_groups = observed
            .load_balancer
            .as_ref()
            .map(|observed| &*observed.load_balancer.security_groups);
        let frontend = self
            .deps
            .security_groups
            .plan_frontend_groups(op, desired, existing_groups)
            .await?;
        let groups = if frontend.complete {
            frontend.groups
        } else {
            Vec::new()
        };
        let resolved = self
            .resolve(op, desired, &observed, &resolved_targets, groups)
            .await?;
        let actions = plan::plan(desired, &resolved, &observed)?;
        let mut changes = frontend.changes;
        changes.extend(
            actions
                .iter()
                .filter_map(|action| action.describe(&desired.name)),
        );
        changes.extend(
            self.diff_security_group_rules(op, desired, &observed, &resolved_targets)
                .await?,
        );
        changes.extend(security_group_deletions(&observed, &resolved.groups));
        changes.extend(status_difference(input.service, &observed)?);
        // Finally, remember the observed state, and whether it is in sync.
        if changes.is_empty() {
            observed.rules_digest = Some(resolved.rules_digest);
            state.observed = Some(observed);
            let targets = resolved_targets.targets.clone();
            record_in_sync(state, desired, &resolved_targets, targets);
        } else {
            state.observed = Some(observed);
            state.last_applied = None;
        }
        Ok(changes)
    }

    /// Reads the observed state from the shared listing, for the first dry run of a Service.
    async fn read_from_listing(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<ObservedState, CloudError> {
        let names = load_balancer_names(input);
        let observer = self.observer.with_response_cache(&state.responses);
        let result = observer
            .observe_from_listing(op, &query(input, &names, state))
            .await;
        let observed = state.responses.finish(result)?;
        state.read_at = Some(Instant::now());
        Ok(observed)
    }

    async fn diff_security_group_rules(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        observed: &ObservedState,
        resolved_targets: &ResolvedTargets,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let Some(observed) = &observed.load_balancer else {
            return Ok(Vec::new());
        };
        let load_balancer = &observed.load_balancer;
        let subnet_ids: Vec<_> = load_balancer
            .zones
            .iter()
            .filter_map(|zone| zone.subnet.clone())
            .collect();
        let subnets = self.deps.subnets(op, &subnet_ids).await?;
        let instances: Vec<_> = resolved_targets.instances.iter().cloned().collect();
        let rule_request = RuleRequest {
            desired,
            lb_name: &load_balancer.name,
            lb_groups: &load_balancer.security_groups,
            subnets: &subnets,
            instances: &instances,
            pods: &resolved_targets.rule_inputs.pods,
        };
        self.deps.security_groups.plan(op, &rule_request).await
    }
}

/// Records that everything is applied, with these targets: none if some are pending.
fn record_in_sync(
    state: &mut LoadBalancerSyncState,
    desired: &DesiredLoadBalancer,
    resolved_targets: &ResolvedTargets,
    targets: Targets,
) {
    if let Some(observed) = &mut state.observed {
        observed.removable_tag_keys = desired.extra_tags.keys().cloned().collect();
        observed.unmodifiable_groups.clear();
    }
    state.last_applied = Some(LastApplied { desired: Arc::new(desired.clone()), targets });
    state.instances.clone_from(&resolved_targets.instances);
    state.rule_inputs.clone_from(&resolved_targets.rule_inputs);
    state.sticky_listeners = desired
        .listeners
        .iter()
        .filter(|listener| has_stickiness(listener))
        .map(DesiredListener::key)
        .collect();
}

fn has_stickiness(listener: &DesiredListener) -> bool {
    listener
        .target_group
        .attributes
        .get(STICKY)
        .is_some_and(|value| &**value == "true")
}

/// Returns the desired state, with stickiness switched off where we switched it on and the Service
/// no longer requests it.
fn with_stickiness_off<'a>(
    desired: &'a DesiredLoadBalancer,
    sticky: &BTreeSet<ListenerKey>,
) -> Cow<'a, DesiredLoadBalancer> {
    let mut desired = Cow::Borrowed(desired);
    for index in 0..desired.listeners.len() {
        let listener = &desired.listeners[index];
        let requests_stickiness = listener.target_group.attributes.contains_key(STICKY);
        if sticky.contains(&listener.key()) && !requests_stickiness {
            desired.to_mut().listeners[index]
                .target_group
                .attributes
                .insert(STICKY.into(), "false".into());
        }
    }
    desired
}

/// Returns the names that the load balancer may have.
fn load_balancer_names(input: &ReconcileInput<'_>) -> Vec<Box<str>> {
    names_of(input.desired, &names::load_balancer(&input.desired.owner.uid))
}

fn query<'a>(
    input: &'a ReconcileInput<'_>,
    names: &'a [Box<str>],
    state: &LoadBalancerSyncState,
) -> LoadBalancerQuery<'a> {
    let hostname = status::hostname(&input.service.status);
    LoadBalancerQuery {
        owner: &input.desired.owner,
        names,
        hostname,
        may_exist: input.service.has_finalizer()
            || hostname.is_some()
            || state.changed_at.is_some(),
        changed_at: state.changed_at,
    }
}

/// Digest of all inputs of the security group rules.
pub(in crate::lb) fn rules_digest(
    desired: &DesiredLoadBalancer,
    rule_inputs: &RuleInputs,
) -> Digest {
    Digest::of(&(desired, rule_inputs))
}

/// Returns the deletions of detached security groups, except those that the load balancer gets
/// back.
fn security_group_deletions(
    observed: &ObservedState,
    desired: &[SecurityGroupId],
) -> Vec<PlannedChange> {
    let mut deletions = Vec::new();
    for group in &observed.detached_security_groups {
        if !desired.contains(group) {
            deletions.push(PlannedChange {
                operation: "DeleteSecurityGroup".into(),
                object: (&**group).into(),
                reason: "it is not on the load balancer any more".into(),
            });
        }
    }
    deletions
}

/// Returns the change of a status whose host name is not the load balancer's.
fn status_difference(
    service: &ServiceView,
    observed: &ObservedState,
) -> Result<Option<PlannedChange>, CloudError> {
    let Some(observed) = &observed.load_balancer else {
        return Ok(None);
    };
    let load_balancer = &observed.load_balancer;
    let Some(status) = status::of(load_balancer)? else {
        return Ok(None);
    };
    let is_published = service.status.ingress.len() == status.ingress.len()
        && status::hostname(&service.status) == status::hostname(&status);
    if is_published {
        return Ok(None);
    }
    Ok(Some(PlannedChange {
        operation: "publish_status".into(),
        object: load_balancer.name.clone(),
        reason: format!("the service does not show {}", load_balancer.dns_name).into(),
    }))
}

/// Makes NotFound of a part transient: it does not mean that the load balancer does not exist.
pub(in crate::lb) fn as_transient(error: CloudError) -> CloudError {
    match error.kind() {
        ErrorKind::NotFound => CloudError::transient(error.to_string()).with_source(error),
        _ => error,
    }
}

pub(in crate::lb) fn outcome(
    status: Result<Option<LbStatus>, CloudError>,
    result: Result<Progress, CloudError>,
) -> LbOutcome {
    let annotations = BTreeMap::new();
    match status {
        Ok(status) => LbOutcome { status, annotations, result },
        // An error of the reconcile itself comes first.
        Err(error) => LbOutcome { status: None, annotations, result: result.and(Err(error)) },
    }
}

/// Returns the status of the Service, as far as the observed state has a load balancer.
fn observed_status(state: &LoadBalancerSyncState) -> Result<Option<LbStatus>, CloudError> {
    match state.load_balancer() {
        Some(load_balancer) => status::of(load_balancer),
        None => Ok(None),
    }
}
