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
        reconcile::{LoadBalancerReconciler, ReconcileInput, outcome, rules_digest},
        retry_delay::{self, Deferred},
        sync_state::LoadBalancerSyncState,
    },
};

impl LoadBalancerReconciler {
    /// Registers and deregisters targets, and adds security group rules that new ones need. The
    /// observed state comes from the sync state if possible, without a request.
    pub(in crate::lb) async fn update_backends(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
    ) -> LbOutcome {
        let uid = &input.desired.owner.uid;
        let mut state = self.sync_states.take(uid);
        state.cancel_deletion();
        let before = state.changed_at;
        let result = self.sync_backends(op, input, &mut state).await;
        // A call that only read has changed nothing.
        if state.changed_at != before {
            state.changed_at = Some(Instant::now());
        }
        self.sync_states.put(uid, state);
        outcome(Ok(None), result)
    }

    // length: one arm for each outcome, with the state that is known afterwards
    async fn sync_backends(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Progress, CloudError> {
        // First, resolve the targets, and read what is missing in the observed state.
        let desired = input.desired;
        let resolved_targets = self
            .resolve_targets(op, desired, input.backends, self.scope.settings.drift_check_interval)
            .await?;
        let mut observed = match state.take_observed() {
            Some(observed) => observed,
            None => {
                let mut observed = self
                    .read_from_aws(op, input, state, ReadScope::Targets)
                    .await?;
                state.restore_unreadable(&mut observed);
                observed
            }
        };
        if lacks_targets(&observed)
            && let Err(error) = self
                .observer
                .read_missing(op, &desired.owner, &mut observed)
                .await
        {
            // It stays valid if a rate limit only delayed the read.
            if error.kind() == ErrorKind::Throttled {
                state.observed = Some(observed);
            }
            return Err(error);
        }
        state.responses.clear();
        state.changed_at = Some(Instant::now());
        if observed.load_balancer.is_none() {
            let message = format!("load balancer {} is not there", desired.name);
            return Err(CloudError::new(ErrorKind::NotFound, message));
        }
        // Then plan and apply registrations and deregistrations.
        let mut actions = plan::plan_targets_only(desired, &resolved_targets.targets, &observed);
        let stopped_pending = defer_stopped_instances(op, &mut actions, &resolved_targets.stopped);
        // New nodes may have another security group, and new pods another port.
        let needs_rules =
            !input.targets_only && !state.rule_inputs.covers(&resolved_targets.rule_inputs);
        let instances: Vec<_> = resolved_targets.instances.iter().cloned().collect();
        let mut working_state = WorkingState::new(observed);
        let last_desired = match &state.last_applied {
            Some(applied) => &*applied.desired,
            None => desired,
        };
        let served = served_spec(last_desired, &working_state.observed);
        let mut applier =
            self.applier(op, &served, &instances, &resolved_targets, &mut working_state);
        applier.deferred.extend(stopped_pending);
        applier.deferred.extend(resolved_targets.pending.clone());
        let result = applier.apply_targets(&actions, needs_rules).await;
        let deferred = applier.deferred;
        let target_group_full = applier.target_group_full;
        // Finally, record what is known afterwards.
        match result {
            Ok(Some(rejection)) => {
                state.observed = Some(working_state.observed);
                state.instances = resolved_targets.instances;
                Err(rejection)
            }
            Ok(None) => {
                // If the rules were applied for another desired state, their digest becomes
                // unknown.
                let rules_were_current = Some(rules_digest(desired, &state.rule_inputs))
                    == working_state.observed.rules_digest;
                // Rules on groups that no node has any more are removed by the next full reconcile.
                if !input.targets_only {
                    state.rule_inputs.extend(&resolved_targets.rule_inputs);
                }
                working_state.observed.rules_digest = if rules_were_current {
                    Some(rules_digest(desired, &state.rule_inputs))
                } else {
                    None
                };
                state.observed = Some(working_state.observed);
                self.report_unmanaged_groups(op, desired, &resolved_targets, state);
                if deferred.is_empty()
                    && target_group_full.is_none()
                    && let Some(applied) = &mut state.last_applied
                {
                    applied.targets = resolved_targets.targets;
                }
                state.instances = resolved_targets.instances;
                match target_group_full {
                    Some(error) => Err(error),
                    None => Ok(retry_delay::earliest(deferred)),
                }
            }
            Err(ApplyStop::RetryLater(deferred)) => {
                state.observed = Some(working_state.observed);
                Ok(deferred.into())
            }
            Err(ApplyStop::Replan) => {
                state.invalidate();
                Ok(Progress::Pending {
                    after: Duration::from_secs(1),
                    why: "it changed meanwhile".into(),
                })
            }
            Err(ApplyStop::Failed(error)) => {
                match error.kind() {
                    ErrorKind::Throttled => state.observed = Some(working_state.observed),
                    _ => state.invalidate(),
                }
                Err(error)
            }
        }
    }
}

/// Removes registrations of stopped instances from a plan, because AWS rejects them; returns what
/// is pending because of that.
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
    let why = format!("{} instances are stopped and no targets yet", deferred_instances.len());
    Some(Deferred { after: retry_delay::rejected_targets(op), why: why.into() })
}

/// Tells whether the targets of a target group were not read.
fn lacks_targets(observed: &ObservedState) -> bool {
    observed
        .target_groups
        .iter()
        .any(|group| group.targets.is_none())
}

/// Returns the desired state, limited to existing listeners and to the current address families: a
/// change of the Service is not applied together with its targets.
fn served_spec(desired: &DesiredLoadBalancer, observed: &ObservedState) -> DesiredLoadBalancer {
    let mut served = desired.clone();
    served
        .listeners
        .retain(|listener| observed.listener(listener.key()).is_some());
    let current_type = observed
        .load_balancer
        .as_ref()
        .and_then(|observed| observed.load_balancer.ip_address_type);
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
