//! Reconciles the load balancer of one Service: reads the observed state, plans the differences and
//! applies the plan.

mod activation;
mod adopt;
pub(in crate::lb) mod delete;
mod recent_changes;
pub(in crate::lb) mod resolved_targets;
mod retain;
mod stickiness;
pub(in crate::lb) mod update_targets;

use std::{
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
    api::{Action, InstanceId, SecurityGroupId, Tags},
    instances::InstanceCache,
    lb::{
        apply::{Applier, ApplyStop, working_state::WorkingState},
        deps::LoadBalancerDeps,
        model::{
            DesiredListener, DesiredLoadBalancer, ServiceKey, SubnetChoice, Targets, UpdateScope,
        },
        names,
        observe::{
            LoadBalancerQuery, Observer, ReadScope, names_of,
            observed::{ObservedLoadBalancer, ObservedState},
        },
        plan::{self, ActionKind, PlanInput},
        reconcile::{
            recent_changes::RecentlyLetGo,
            resolved_targets::{ResolvedTargets, STOPPED_RECHECK_INTERVAL},
            stickiness::{disable_unrequested_stickiness, enables_stickiness},
            update_targets::defer_stopped_instances,
        },
        retry_delay::{self, Deferred, MissingObjectRetries},
        security_groups::RuleRequest,
        status,
        sync_state::{LastApplied, LoadBalancerSyncState, SyncStateStore},
        targets::pods::RuleInputs,
    },
    ownership_tags::SERVICE_TAG,
    scope::Scope,
};

/// Maximum age of the last read from which an interrupted sync continues. An older working state is
/// read again.
const RESUME_WINDOW: Duration = Duration::from_secs(600);
/// Maximum number of plans in one sync. Planning is repeated when an action finds an object that
/// the working state did not show.
const MAX_REPLANS: usize = 5;

/// Reconciles the Network Load Balancers of all Services.
pub(in crate::lb) struct LoadBalancerReconciler {
    pub(in crate::lb) scope: Scope,
    pub(in crate::lb) observer: Observer,
    pub(in crate::lb) deps: LoadBalancerDeps,
    pub(in crate::lb) sync_states: SyncStateStore,
    /// Load balancers that this process let go of a moment ago, which reads may not show yet.
    let_go: RecentlyLetGo,
}

/// The desired state of one Service, with its backends.
pub(in crate::lb) struct ReconcileInput<'a> {
    pub(in crate::lb) desired: &'a DesiredLoadBalancer,
    pub(in crate::lb) service: &'a ServiceView,
    pub(in crate::lb) backends: &'a Backends,
    /// True if only targets may change, and no security group rules.
    pub(in crate::lb) targets_only: bool,
    /// The desired state as upstream reads the Service, if more than that is requested.
    pub(in crate::lb) as_upstream: Option<&'a DesiredLoadBalancer>,
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
            let_go: RecentlyLetGo::default(),
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
        to_outcome(status, result)
    }

    /// Runs one sync, and records in `state` what is known afterwards.
    async fn reconcile(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        read_mode: ReadMode,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Progress, CloudError> {
        let desired = input.desired;
        let max_age = if read_mode == ReadMode::Cached {
            self.scope.settings.drift_check_interval
        } else {
            STOPPED_RECHECK_INTERVAL
        };
        let resolved_targets = self
            .resolve_targets(op, desired, input.backends, max_age)
            .await?;
        if read_mode == ReadMode::Cached && state.is_in_sync(desired, &resolved_targets.targets) {
            return Ok(Progress::Done);
        }
        if let Some(deferred) =
            self.defer_until_instances_start(op, desired, &resolved_targets, state)
        {
            return Ok(deferred.into());
        }

        let observed = self.observe(op, input, read_mode, state).await;
        let observed = match observed.and_then(|observed| self.check_certain(observed)) {
            Ok(observed) => observed,
            Err(error) => {
                // If our own rate limit delayed the read, the known state is still valid.
                if error.kind() != ErrorKind::Throttled {
                    state.invalidate();
                }
                return Err(error);
            }
        };
        state.last_applied = None;
        state.responses.clear();
        state.observed = Some(observed.clone());
        // From here on objects may change, which an older listing does not show.
        state.changed_at = Some(Instant::now());

        let observed = self
            .adopt(op, input, observed, &resolved_targets, state)
            .await?;
        if let Some(waits) = adopt::waits_for_backends(op, desired, &observed, &resolved_targets) {
            return Ok(waits.into());
        }
        check_creation(desired, &observed)?;
        self.announce_activation(op, input, &observed, &resolved_targets, state)
            .await?;

        // The load balancer's own security groups must exist before it refers to them.
        let existing_groups = observed
            .load_balancer
            .as_ref()
            .map(|load_balancer| &*load_balancer.resource.security_groups);
        let groups = self
            .deps
            .security_groups
            .ensure_frontend_groups(op, desired, existing_groups)
            .await
            .map_err(as_transient)?;
        let plan_input = self
            .build_plan_input(op, desired, &observed, &resolved_targets, groups)
            .await?;
        let result = self
            .plan_and_apply(op, desired, plan_input, &resolved_targets, observed, state)
            .await;
        state.changed_at = Some(Instant::now());
        result
    }

    /// Returns the observed state if its load balancer was not let go of so recently that its tags may be
    /// outdated.
    fn check_certain(&self, observed: ObservedState) -> Result<ObservedState, CloudError> {
        if let Some(load_balancer) = &observed.load_balancer {
            self.let_go.check(&load_balancer.resource.arn)?;
        }
        Ok(observed)
    }

    /// Returns when to try again if only registrations of stopped instances are pending since
    /// everything else was applied.
    ///
    /// Instances may stay stopped for months. Until the next drift check, each try therefore reads
    /// only the state of the instances, once for all Services, and not the load balancer.
    fn defer_until_instances_start(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        resolved_targets: &ResolvedTargets,
        state: &LoadBalancerSyncState,
    ) -> Option<Deferred> {
        let is_retry = !op.pending_for().is_zero();
        let was_read_recently = state.was_read_within(self.scope.settings.drift_check_interval);
        let has_rules = state.rule_inputs.covers(&resolved_targets.rule_inputs);
        if !is_retry || !was_read_recently || !state.was_applied(desired) || !has_rules {
            return None;
        }
        let observed = state.observed.as_ref()?;
        let mut actions = plan::plan_targets_only(desired, &resolved_targets.targets, observed);
        let stopped_pending = defer_stopped_instances(op, &mut actions, &resolved_targets.stopped);
        // The remaining actions are not about stopped instances and can be applied now.
        if actions.is_empty() {
            stopped_pending
        } else {
            None
        }
    }

    /// Returns the observed state, from the sync state if that may be used, or read from AWS.
    async fn observe(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        read_mode: ReadMode,
        state: &mut LoadBalancerSyncState,
    ) -> Result<ObservedState, CloudError> {
        let was_interrupted = state
            .last_applied
            .as_ref()
            .is_none_or(|applied| applied.targets.is_empty());
        let is_retry = op.pending_for() > Duration::ZERO;
        let can_resume = was_interrupted && is_retry && state.was_read_within(RESUME_WINDOW);
        let can_reuse = read_mode == ReadMode::Cached || can_resume;
        if can_reuse && let Some(observed) = state.take_observed() {
            return self
                .complete_observed(op, input.desired, observed, state)
                .await;
        }
        let mut observed = self
            .read_from_aws(op, input, state, ReadScope::Full)
            .await?;
        self.add_objects_to_clean_up(op, input.desired, state, &mut observed)
            .await?;
        Ok(observed)
    }

    /// Reads the parts that a known observed state lacks. If that fails, the state keeps what is
    /// known: the caller decides by the error whether it is still valid.
    async fn complete_observed(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        mut observed: ObservedState,
        state: &mut LoadBalancerSyncState,
    ) -> Result<ObservedState, CloudError> {
        let result = self.observer.read_details(op, desired, &mut observed).await;
        match result {
            Ok(()) => Ok(observed),
            Err(error) => {
                state.observed = Some(observed);
                Err(error)
            }
        }
    }

    /// Adds the tags and security groups that must be removed to a newly read state. They are not
    /// visible on the load balancer itself.
    async fn add_objects_to_clean_up(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        state: &mut LoadBalancerSyncState,
        observed: &mut ObservedState,
    ) -> Result<(), CloudError> {
        drop(state.take_observed());
        state.copy_cleanup_to(observed);
        if let Some(load_balancer) = &observed.load_balancer {
            let used = &load_balancer.resource.security_groups;
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

    /// Reads the observed state, and reuses the responses of a read that a rate limit interrupted.
    async fn read_from_aws(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
        read_scope: ReadScope,
    ) -> Result<ObservedState, CloudError> {
        let names = load_balancer_names(input);
        let observer = self.observer.with_response_cache(&state.responses);
        let query = load_balancer_query(input, &names, state);
        let mut result = observer.observe(op, &query, read_scope).await;
        if read_scope == ReadScope::Full {
            result = observer.with_capacity(op, input.desired, result).await;
        }
        let observed = state.responses.finish(result)?;
        state.read_at = Some(Instant::now());
        Ok(observed)
    }

    /// Collects the parts of the desired state that depend on the VPC and the cluster. Subnets are
    /// chosen only for a new load balancer, or if the Service names them and may change them.
    async fn build_plan_input(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        observed: &ObservedState,
        resolved_targets: &ResolvedTargets,
        groups: Vec<SecurityGroupId>,
    ) -> Result<PlanInput, CloudError> {
        let may_change = desired.updates == UpdateScope::All
            && matches!(desired.subnets, SubnetChoice::Named(_));
        let subnets = if observed.load_balancer.is_none() || may_change {
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
        Ok(PlanInput {
            vpc: self.scope.vpc.clone(),
            tags: self.all_tags(desired),
            subnets,
            groups,
            targets: resolved_targets.targets.clone(),
            rules_digest: rules_digest(desired, &resolved_targets.rule_inputs),
            keeps_targets: false,
        })
    }

    /// Returns the tags of all objects of a Service, including the ownership tags.
    fn all_tags(&self, desired: &DesiredLoadBalancer) -> Tags {
        let mut tags = desired.extra_tags.clone();
        tags.extend(self.ownership_tags(&desired.owner));
        tags
    }

    /// Returns the tags that name cluster and Service as the owner.
    fn ownership_tags(&self, owner: &ServiceKey) -> Tags {
        let mut tags = self.scope.cluster.tags();
        tags.insert(SERVICE_TAG.into(), owner.key().into());
        tags
    }

    /// Plans the differences and applies the plan. If an action finds that the working state was
    /// incomplete, plans again from the updated working state. An adoption needs a second plan, to
    /// finish it.
    // length: one arm for each way in which a plan ends
    async fn plan_and_apply(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        mut plan_input: PlanInput,
        resolved_targets: &ResolvedTargets,
        mut observed: ObservedState,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Progress, CloudError> {
        let instances: Vec<_> = resolved_targets.instances.iter().cloned().collect();
        let planned_desired = disable_unrequested_stickiness(desired, &state.sticky_listeners);
        plan_input.keeps_targets = adopt::is_adoption_unfinished(desired, &observed);
        state.forget_old_rejection(desired);
        for _ in 0..MAX_REPLANS {
            let mut actions = plan::plan(&planned_desired, &plan_input, &observed)?;
            if state.rejected_capacity.is_some() {
                actions.retain(|it| !matches!(it.action, ActionKind::ReserveCapacity(_)));
            }
            let stopped_pending =
                defer_stopped_instances(op, &mut actions, &resolved_targets.stopped);

            let mut working_state = WorkingState::new(observed);
            let mut applier =
                self.new_applier(op, desired, &instances, resolved_targets, &mut working_state);
            applier.deferred.extend(resolved_targets.pending.clone());
            let result = applier.apply(&actions).await;
            let other_pending = applier.deferred;
            let target_group_full = applier.target_group_full;
            state.rejected_capacity = applier.rejected_capacity.or(state.rejected_capacity);
            observed = working_state.observed;

            match result {
                // The load balancer serves for the Service, too: the adoption is finished.
                // Without targets of the former Service, more of this one may fit.
                Ok(()) if plan_input.keeps_targets => {
                    plan_input.keeps_targets = false;
                    let progress = self
                        .adoption_progress(op, desired, &mut observed, resolved_targets, state)
                        .await?;
                    if progress != Progress::Done {
                        return match target_group_full {
                            Some(error) => Err(error),
                            None => Ok(progress),
                        };
                    }
                }
                Ok(()) => {
                    state.adopting = None;
                    observed.rules_digest = Some(plan_input.rules_digest);
                    state.observed = Some(observed);
                    self.report_unmanaged_groups(op, desired, resolved_targets, state);
                    if let Some(error) = target_group_full {
                        return Err(error);
                    }
                    if other_pending.is_empty() {
                        let targets = match stopped_pending {
                            Some(_) => Targets::new(),
                            None => resolved_targets.targets.clone(),
                        };
                        record_applied(state, desired, resolved_targets, targets);
                    }
                    let deferred = stopped_pending.into_iter().chain(other_pending);
                    return Ok(retry_delay::earliest(deferred.collect()));
                }
                Err(ApplyStop::Replan) => {}
                Err(ApplyStop::RetryLater(deferred)) => {
                    state.observed = Some(observed);
                    return Ok(deferred.into());
                }
                Err(ApplyStop::ObjectMissing(error)) => {
                    state.observed = Some(observed);
                    state.invalidate();
                    return Err(state.missing_object.shorten_delay(desired, error));
                }
                Err(ApplyStop::Failed(error)) => {
                    state.observed = Some(observed);
                    // If the request was not sent, the working state is still valid.
                    if !matches!(error.kind(), ErrorKind::NotLeader | ErrorKind::Throttled) {
                        state.invalidate();
                    }
                    return Err(error);
                }
            }
        }
        state.observed = Some(observed);
        state.invalidate();
        let message = format!("load balancer {} changes while it is reconciled", desired.name);
        Err(CloudError::transient(message))
    }

    pub(in crate::lb) fn new_applier<'a>(
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
            working_state,
            deferred: Vec::new(),
            target_group_full: None,
            rejected_capacity: None,
        }
    }

    /// Returns the changes that [`ensure`](Self::ensure) would make, without making them. The first
    /// call for a Service reads the shared listing and the Service's own objects. Later calls read
    /// everything of the Service again.
    pub(in crate::lb) async fn dry_run(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let uid = &input.desired.owner.uid;
        let mut state = self.sync_states.take(uid);
        let changed_at = state.changed_at;
        let result = self.plan_changes(op, input, &mut state).await;
        state.changed_at = changed_at;
        self.sync_states.put(uid, state);
        result
    }

    /// Plans everything that a sync would do: actions, security groups and rules, and the status.
    async fn plan_changes(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let desired = input.desired;
        let resolved_targets = self
            .resolve_targets(op, desired, input.backends, self.scope.settings.drift_check_interval)
            .await?;
        let is_first_read = state.take_observed().is_none();
        let mut observed = if is_first_read {
            self.read_from_listing(op, input, state).await?
        } else {
            self.read_from_aws(op, input, state, ReadScope::Full)
                .await?
        };
        self.add_objects_to_clean_up(op, desired, state, &mut observed)
            .await?;

        let mut observed = self.check_certain(observed)?;
        self.complete_for_shadow(op, desired, &mut observed).await?;
        let adoption = self
            .plan_adoption(op, desired, &observed, &resolved_targets)
            .await?;
        if let Some((mut changes, adopted)) = adoption {
            changes.extend(status_difference(input.service, &adopted)?);
            state.last_applied = None;
            return Ok(changes);
        }
        check_creation(desired, &observed)?;

        let mut changes = self
            .planned_changes(op, desired, &observed, &resolved_targets, false)
            .await?;
        if state.is_capacity_rejected(desired) {
            let operation = Action::ModifyCapacityReservation.name();
            changes.retain(|change| &*change.operation != operation);
        }
        changes.extend(status_difference(input.service, &observed)?);

        if changes.is_empty() {
            observed.rules_digest = Some(rules_digest(desired, &resolved_targets.rule_inputs));
            state.observed = Some(observed);
            let targets = resolved_targets.targets.clone();
            record_applied(state, desired, &resolved_targets, targets);
        } else {
            state.observed = Some(observed);
            state.last_applied = None;
        }
        Ok(changes)
    }

    /// Plans all changes in AWS: actions, security groups and their rules. For a comparison, the
    /// rules that the load balancer is known to need stay as they are.
    async fn planned_changes(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        observed: &ObservedState,
        resolved_targets: &ResolvedTargets,
        is_comparison: bool,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let existing_groups = observed
            .load_balancer
            .as_ref()
            .map(|load_balancer| &*load_balancer.resource.security_groups);
        let frontend = self
            .deps
            .security_groups
            .plan_frontend_groups(op, desired, existing_groups)
            .await?;
        // While a desired group is missing, the load balancer's groups are not compared.
        let groups = if frontend.is_complete {
            frontend.groups
        } else {
            Vec::new()
        };
        let plan_input = self
            .build_plan_input(op, desired, observed, resolved_targets, groups)
            .await?;
        let actions = plan::plan(desired, &plan_input, observed)?;
        let mut changes = frontend.changes;
        changes.extend(
            actions
                .iter()
                .filter_map(|action| action.describe(&desired.name)),
        );
        changes.extend(
            self.plan_rule_changes(op, desired, observed, resolved_targets, is_comparison)
                .await?,
        );
        changes.extend(security_group_deletions(observed, &plan_input.groups));
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
        let query = load_balancer_query(input, &names, state);
        let result = observer.observe_from_listing(op, &query).await;
        // It is changed last, so that nothing else tells that a process died before.
        let result = observer.with_capacity(op, input.desired, result).await;
        let observed = state.responses.finish(result)?;
        state.read_at = Some(Instant::now());
        Ok(observed)
    }

    /// Reads attributes, certificates and tags of listeners in shadow mode. It compares a Service
    /// once, and must not miss what the first drift check of an active process would change. The
    /// comparison after a restart leaves them to that check, because each takes a request.
    async fn complete_for_shadow(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        observed: &mut ObservedState,
    ) -> Result<(), CloudError> {
        // The write gate never opens in shadow mode.
        if op.may_write().is_ok() {
            return Ok(());
        }
        self.observer
            .read_missing(op, &desired.owner, observed)
            .await
    }

    /// Plans the security group rules of an existing load balancer.
    async fn plan_rule_changes(
        &self,
        op: &Op,
        desired: &DesiredLoadBalancer,
        observed: &ObservedState,
        resolved_targets: &ResolvedTargets,
        is_comparison: bool,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let Some(ObservedLoadBalancer { resource: load_balancer, .. }) = &observed.load_balancer
        else {
            return Ok(Vec::new());
        };
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
            is_comparison,
        };
        self.deps
            .security_groups
            .plan_rules(op, &rule_request)
            .await
    }
}

/// Records that the desired state was applied with these targets; empty if some are still pending.
fn record_applied(
    state: &mut LoadBalancerSyncState,
    desired: &DesiredLoadBalancer,
    resolved_targets: &ResolvedTargets,
    targets: Targets,
) {
    if let Some(observed) = &mut state.observed {
        observed.removable_tag_keys = match desired.updates {
            UpdateScope::All => desired.extra_tags.keys().cloned().collect(),
            UpdateScope::AsCloudProviderAws => BTreeSet::new(),
        };
        observed.unmodifiable_groups.clear();
    }
    state.missing_object = MissingObjectRetries::default();
    state.last_applied = Some(LastApplied { desired: Arc::new(desired.clone()), targets });
    state.instances.clone_from(&resolved_targets.instances);
    state.rule_inputs.clone_from(&resolved_targets.rule_inputs);
    state.sticky_listeners = desired
        .listeners
        .iter()
        .filter(|listener| enables_stickiness(listener))
        .map(DesiredListener::key)
        .collect();
}

/// Returns the errors in settings of a new load balancer, if there is none yet.
fn check_creation(
    desired: &DesiredLoadBalancer,
    observed: &ObservedState,
) -> Result<(), CloudError> {
    if observed.load_balancer.is_some() || desired.creation_errors.is_empty() {
        return Ok(());
    }
    Err(CloudError::invalid_input(desired.creation_errors.join("; ")))
}

/// Returns the names that the load balancer may have.
fn load_balancer_names(input: &ReconcileInput<'_>) -> Vec<Box<str>> {
    names_of(input.desired, &names::load_balancer(&input.desired.owner.uid))
}

fn load_balancer_query<'a>(
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
        adopts: input.desired.adopts.as_deref(),
    }
}

/// Returns the digest of all inputs of the security group rules.
pub(in crate::lb) fn rules_digest(
    desired: &DesiredLoadBalancer,
    rule_inputs: &RuleInputs,
) -> Digest {
    Digest::of(&(desired, rule_inputs))
}

/// Returns the deletions of detached security groups that the load balancer does not get back.
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
                reason: "it is no longer on the load balancer".into(),
            });
        }
    }
    deletions
}

/// Returns the change of the Service's status; `None` if it shows the load balancer's host name.
fn status_difference(
    service: &ServiceView,
    observed: &ObservedState,
) -> Result<Option<PlannedChange>, CloudError> {
    let Some(ObservedLoadBalancer { resource: load_balancer, .. }) = &observed.load_balancer else {
        return Ok(None);
    };
    let Some(status) = status::from_load_balancer(load_balancer)? else {
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
        reason: format!("the status of the Service does not show {}", load_balancer.dns_name)
            .into(),
    }))
}

/// Turns NotFound into a transient error. Parts of a load balancer may be missing for a moment, and
/// the caller must not conclude that the load balancer itself does not exist.
pub(in crate::lb) fn as_transient(error: CloudError) -> CloudError {
    match error.kind() {
        ErrorKind::NotFound => CloudError::transient(error.to_string()).with_source(error),
        _ => error,
    }
}

/// Combines the result of a sync with the status to publish. An error of the sync takes precedence
/// over an error of the status.
pub(in crate::lb) fn to_outcome(
    status: Result<Option<LbStatus>, CloudError>,
    result: Result<Progress, CloudError>,
) -> LbOutcome {
    let annotations = BTreeMap::new();
    match status {
        Ok(status) => LbOutcome { status, annotations, result },
        Err(error) => LbOutcome { status: None, annotations, result: result.and(Err(error)) },
    }
}

/// Returns the status of the observed load balancer; `None` if no load balancer was observed.
fn observed_status(state: &LoadBalancerSyncState) -> Result<Option<LbStatus>, CloudError> {
    match state.load_balancer() {
        Some(load_balancer) => status::from_load_balancer(load_balancer),
        None => Ok(None),
    }
}
