//! Synchronizes the targets of existing target groups, without a full reconcile.

use std::{collections::BTreeSet, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind, LbOutcome, Op, Progress};
use ipnet::IpNet;
use tokio::time::Instant;

use crate::{
    api::{InstanceId, elb::IpAddressType},
    lb::{
        apply::{ApplyStop, working_state::WorkingState},
        model::DesiredLoadBalancer,
        observe::{ReadScope, observed::ObservedState},
        plan::{self, ActionKind, PlannedAction},
        reconcile::{
            LoadBalancerReconciler, ReconcileInput, adopt::is_adoption_unfinished,
            resolved_targets::ResolvedTargets, rules_digest, to_outcome,
        },
        retry_delay::{self, Deferred},
        sync_state::LoadBalancerSyncState,
    },
};

impl LoadBalancerReconciler {
    /// Registers and deregisters targets, and adds the security group rules that new targets need.
    /// Takes the observed state from the sync state if possible, without a request.
    pub(in crate::lb) async fn update_backends(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
    ) -> LbOutcome {
        let uid = &input.desired.owner.uid;
        let mut state = self.sync_states.take(uid);
        state.cancel_deletion();
        let changed_at = state.changed_at;
        let result = self.sync_backends(op, input, &mut state).await;
        // A sync that only read must not make listings outdated.
        if state.changed_at != changed_at {
            state.changed_at = Some(Instant::now());
        }
        self.sync_states.put(uid, state);
        to_outcome(Ok(None), result)
    }

    async fn sync_backends(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Progress, CloudError> {
        let desired = input.desired;
        let resolved_targets = self
            .resolve_targets(op, desired, input.backends, self.scope.settings.drift_check_interval)
            .await?;
        let observed = self.observe_targets(op, input, state).await?;
        state.responses.clear();
        state.changed_at = Some(Instant::now());
        if observed.load_balancer.is_none() {
            return Err(not_found(desired));
        }

        // Until it is adopted completely, the load balancer also serves for its former Service.
        if is_adoption_unfinished(desired, &observed) {
            state.observed = Some(observed);
            return Ok(Progress::Done);
        }
        let mut actions = plan::plan_targets_only(desired, &resolved_targets.targets, &observed);
        let stopped_pending = defer_stopped_instances(op, &mut actions, &resolved_targets.stopped);
        // New nodes may have another security group, and new pods another port.
        let needs_rules =
            !input.targets_only && !state.rule_inputs.covers(&resolved_targets.rule_inputs);
        let last_desired = match &state.last_applied {
            Some(applied) => &*applied.desired,
            None => desired,
        };
        let served = limit_to_observed(last_desired, &observed);
        let instances: Vec<_> = resolved_targets.instances.iter().cloned().collect();
        let mut working_state = WorkingState::new(observed);
        let mut applier =
            self.new_applier(op, &served, &instances, &resolved_targets, &mut working_state);
        applier.deferred.extend(stopped_pending);
        applier.deferred.extend(resolved_targets.pending.clone());
        let result = applier.apply_targets(&actions, needs_rules).await;
        let deferred = applier.deferred;
        let target_group_full = applier.target_group_full;
        let observed = working_state.observed;

        match result {
            Ok(None) => {
                let all_applied = deferred.is_empty() && target_group_full.is_none();
                self.record_targets(op, input, resolved_targets, observed, all_applied, state);
                match target_group_full {
                    Some(error) => Err(error),
                    None => Ok(retry_delay::earliest(deferred)),
                }
            }
            Ok(Some(rejection)) => {
                state.observed = Some(observed);
                state.instances = resolved_targets.instances;
                Err(rejection)
            }
            Err(ApplyStop::RetryLater(deferred)) => {
                state.observed = Some(observed);
                Ok(deferred.into())
            }
            Err(ApplyStop::Replan) => {
                state.invalidate();
                Ok(Progress::Pending {
                    after: Duration::from_secs(1),
                    reason: "the load balancer changed during the sync".into(),
                })
            }
            Err(ApplyStop::Failed(error) | ApplyStop::ObjectMissing(error)) => {
                match error.kind() {
                    ErrorKind::Throttled => state.observed = Some(observed),
                    _ => state.invalidate(),
                }
                Err(error)
            }
        }
    }

    /// Returns the observed state with the targets of all target groups, and reads only what the
    /// sync state lacks.
    async fn observe_targets(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<ObservedState, CloudError> {
        let mut observed = match state.take_observed() {
            Some(observed) => observed,
            None => {
                let mut observed = self
                    .read_from_aws(op, input, state, ReadScope::Targets)
                    .await?;
                state.copy_cleanup_to(&mut observed);
                self.check_certain(observed)?
            }
        };
        if !lacks_targets(&observed) {
            return Ok(observed);
        }
        let result = self
            .observer
            .read_missing(op, &input.desired.owner, &mut observed)
            .await;
        match result {
            Ok(()) => Ok(observed),
            Err(error) => {
                // If our own rate limit delayed the read, what is known is still valid.
                if error.kind() == ErrorKind::Throttled {
                    state.observed = Some(observed);
                }
                Err(error)
            }
        }
    }

    /// Records the state after all targets were applied, or all that AWS accepted.
    fn record_targets(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        resolved_targets: ResolvedTargets,
        mut observed: ObservedState,
        all_applied: bool,
        state: &mut LoadBalancerSyncState,
    ) {
        let desired = input.desired;
        // If the rules belong to another desired state, the next full reconcile must compare them.
        let are_rules_current =
            observed.rules_digest == Some(rules_digest(desired, &state.rule_inputs));
        // Rules on groups that no node has any more are removed by the next full reconcile.
        if !input.targets_only {
            state.rule_inputs.extend(&resolved_targets.rule_inputs);
        }
        observed.rules_digest = if are_rules_current {
            Some(rules_digest(desired, &state.rule_inputs))
        } else {
            None
        };
        state.observed = Some(observed);
        self.report_unmanaged_groups(op, desired, &resolved_targets, state);
        if all_applied && let Some(applied) = &mut state.last_applied {
            applied.targets = resolved_targets.targets;
        }
        state.instances = resolved_targets.instances;
    }
}

/// Removes registrations of stopped instances from a plan, because AWS rejects them. Returns when
/// to try again, or `None` if no instance was removed.
pub(in crate::lb) fn defer_stopped_instances(
    op: &Op,
    actions: &mut Vec<PlannedAction>,
    stopped: &BTreeSet<InstanceId>,
) -> Option<Deferred> {
    let mut deferred_instances = BTreeSet::new();
    actions.retain_mut(|planned| {
        let ActionKind::RegisterTargets(_, targets) = &mut planned.action else {
            return true;
        };
        targets.retain(|target| match stopped.get(&InstanceId::from(&*target.id)) {
            Some(id) => {
                deferred_instances.insert(id);
                false
            }
            None => true,
        });
        !targets.is_empty()
    });
    if deferred_instances.is_empty() {
        return None;
    }
    let reason = format!("{} stopped instances are not registered yet", deferred_instances.len());
    Some(Deferred {
        after: retry_delay::rejected_targets(op),
        reason: reason.into(),
    })
}

fn not_found(desired: &DesiredLoadBalancer) -> CloudError {
    let message = format!("load balancer {} does not exist", desired.name);
    CloudError::new(ErrorKind::NotFound, message)
}

/// Returns true if the targets of any target group were not read.
fn lacks_targets(observed: &ObservedState) -> bool {
    observed
        .target_groups
        .iter()
        .any(|group| group.targets.is_none())
}

/// Returns the desired state, limited to the observed listeners and address families. The rules for
/// new targets are added for what the load balancer serves now, because other changes of the
/// Service are not applied together with its targets.
fn limit_to_observed(
    desired: &DesiredLoadBalancer,
    observed: &ObservedState,
) -> DesiredLoadBalancer {
    let mut served = desired.clone();
    served
        .listeners
        .retain(|listener| observed.listener(listener.key()).is_some());
    let current_type = observed
        .load_balancer
        .as_ref()
        .and_then(|observed| observed.resource.ip_address_type);
    if let Some(current_type) = current_type {
        served.ip_address_type = current_type;
    }
    // A load balancer without IPv6 addresses has no IPv6 clients.
    if served.ip_address_type == IpAddressType::Ipv4 {
        served
            .sources
            .retain(|network| matches!(network, IpNet::V4(_)));
    }
    served
}
