//! Synchronizes the targets of existing target groups, without a full reconcile.

use std::{collections::BTreeSet, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind, LbOutcome, Op, Progress};
use ipnet::IpNet;
use tokio::time::Instant;

use crate::{
    api::{InstanceId, elb::IpAddressType},
    lb::{
        apply::{ApplyStop, REJECTED_TARGET_RETRY, working_state::WorkingState},
        model::{DesiredListener, DesiredLoadBalancer},
        observe::observed::ObservedState,
        plan::{self, ActionKind, PlannedAction},
        reconcile::{
            LoadBalancerReconciler, ReconcileInput, earliest_pending, outcome, rules_digest,
        },
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
        let unread = |observed: &ObservedState| {
            observed
                .target_groups
                .iter()
                .any(|group| group.targets.is_none())
        };
        let mut observed = match state.take_observed() {
            Some(observed) => observed,
            None => {
                let mut observed = self.read_from_aws(op, input, state, false).await?;
                state.restore_unreadable(&mut observed);
                observed
            }
        };
        if unread(&observed)
            && let Err(error) = self
                .observer
                .read_missing(op, &desired.owner, &mut observed)
                .await
        {
            state.observed = Some(observed).filter(|_| error.kind() == ErrorKind::Throttled);
            return Err(error);
        }
        state.responses.clear();
        state.changed_at = Some(Instant::now());
        if observed.load_balancer.is_none() {
            let error = CloudError::new(
                ErrorKind::NotFound,
                format!("load balancer {} is not there", desired.name),
            );
            return Err(error);
        }
        // Then plan and apply registrations and deregistrations.
        let mut steps = plan::plan_targets_only(desired, &resolved_targets.targets, &observed);
        let waits = defer_stopped_instances(op, &mut steps, &resolved_targets.stopped);
        // New nodes may have another security group, and new pods another port.
        let opens = !input.targets_only && !state.rule_inputs.covers(&resolved_targets.rule_inputs);
        let instances: Vec<_> = resolved_targets.instances.iter().cloned().collect();
        let mut working_state = WorkingState::new(observed);
        let served = served_spec(
            state
                .last_applied
                .as_ref()
                .map_or(desired, |applied| &*applied.desired),
            &working_state.observed,
        );
        let mut applier =
            self.applier(op, &served, &instances, &resolved_targets, &mut working_state);
        applier
            .deferred
            .extend(waits.into_iter().chain(resolved_targets.pending.clone()));
        let ended = applier.apply_targets(&steps, opens).await;
        let left = applier.deferred;
        let target_group_full = applier.target_group_full;
        // Finally, record what is known afterwards.
        match ended {
            Ok(Some(refused)) => {
                state.observed = Some(working_state.observed);
                state.instances = resolved_targets.instances;
                Err(refused)
            }
            Ok(None) => {
                // If the rules were applied for another desired state, their digest becomes
                // unknown.
                let exposed = Some(rules_digest(desired, &state.rule_inputs))
                    == working_state.observed.rules_digest;
                // Rules on groups that no node has any more are removed by the next full reconcile.
                if !input.targets_only {
                    state.rule_inputs.extend(&resolved_targets.rule_inputs);
                }
                working_state.observed.rules_digest =
                    exposed.then(|| rules_digest(desired, &state.rule_inputs));
                state.observed = Some(working_state.observed);
                self.report_unmanaged_groups(op, desired, &resolved_targets, state);
                if left.is_empty()
                    && target_group_full.is_none()
                    && let Some(applied) = &mut state.last_applied
                {
                    applied.targets = resolved_targets.targets;
                }
                state.instances = resolved_targets.instances;
                target_group_full.map_or_else(|| Ok(earliest_pending(left)), Err)
            }
            Err(ApplyStop::RetryAfter(after, why)) => {
                state.observed = Some(working_state.observed);
                Ok(Progress::Pending { after, why })
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
    steps: &mut Vec<PlannedAction>,
    stopped: &BTreeSet<InstanceId>,
) -> Option<(Duration, Box<str>)> {
    let mut spared = BTreeSet::new();
    steps.retain_mut(|step| {
        let ActionKind::RegisterTargets(_, targets) = &mut step.action else {
            return true;
        };
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
    (!spared.is_empty()).then(|| {
        (
            op.pending_for()
                .clamp(REJECTED_TARGET_RETRY.0, REJECTED_TARGET_RETRY.1),
            why().into(),
        )
    })
}

/// Returns the desired state, limited to existing listeners and to the current address families: a
/// change of the Service is not applied together with its targets.
fn served_spec(desired: &DesiredLoadBalancer, observed: &ObservedState) -> DesiredLoadBalancer {
    let there = |listener: &&DesiredListener| {
        let seen = observed
            .load_balancer
            .iter()
            .flat_map(|seen| &seen.listeners)
            .map(|seen| &seen.listener);
        let mut seen = seen.map(|seen| (seen.port, seen.protocol));
        seen.any(|seen| seen == (listener.port.get(), Some(listener.protocol)))
    };
    let family = observed
        .load_balancer
        .as_ref()
        .and_then(|seen| seen.load_balancer.ip_address_type);
    let ip_address_type = family.unwrap_or(desired.ip_address_type);
    // A load balancer without IPv6 addresses has no IPv6 clients.
    let reaches = |network: &&IpNet| {
        ip_address_type != IpAddressType::Ipv4 || matches!(network, IpNet::V4(_))
    };
    DesiredLoadBalancer {
        listeners: desired.listeners.iter().filter(there).cloned().collect(),
        sources: desired.sources.iter().filter(reaches).copied().collect(),
        ip_address_type,
        ..desired.clone()
    }
}
