//! Dry run: returns what would be changed, without changing anything.

use std::net::IpAddr;

use ccm_core::{
    k8s::LbStatus,
    provider::{CloudError, Op, PlannedChange, Progress, ReadMode},
};
use openstack_api::octavia::ProvisioningStatus;

use super::{
    floating_ip_sync::FloatingIpDiff,
    plan::PlannedAction,
    reconcile::{LoadBalancerReconciler, PlanScope, ReconcileStop, as_transient},
    reconcile_input::ReconcileInput,
    security_groups::SecurityGroupTask,
    status,
    sync_state::{LastApplied, LoadBalancerSyncState},
};
use crate::{client::Call, lb::observed::ObservedLoadBalancer};

impl LoadBalancerReconciler {
    /// Returns what [`ensure`](Self::ensure) would change. Children are not read again if the load
    /// balancer shows that they are unchanged.
    pub(super) async fn plan(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let uid = &input.desired.owner.uid;
        let mut state = self.sync_states.take(uid);
        let result = self.diff(op, input, &mut state).await;
        if matches!(result, Err(ReconcileStop::Failed(_))) {
            state.invalidate();
            state.mark_changed(self.sync_states.rounds.now());
        }
        self.sync_states.put(uid, state);
        result.map_err(|stop| match stop {
            ReconcileStop::Failed(error) => as_transient(error),
            ReconcileStop::Pending(Progress::Pending { after, why }) => {
                CloudError::transient(why).with_retry_after(after)
            }
            ReconcileStop::Pending(Progress::Done) => CloudError::transient("it is not known yet"),
        })
    }

    async fn diff(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Vec<PlannedChange>, ReconcileStop> {
        state.unfinished = false;
        state.last_applied = None;
        self.observe(op, input, ReadMode::Fresh, state).await?;
        self.read_children(op, input, state).await?;
        let Some(observed) = state.observed.take() else {
            return Ok(vec![planned(
                Call::LoadBalancerCreate.name(),
                &input.desired.name,
                "there is none",
            )]);
        };
        let changes = self.differences(op, input, state, &observed).await;
        state.observed = Some(observed);
        if changes.as_ref().is_ok_and(Vec::is_empty) {
            state.last_applied = Some(LastApplied::new(input.desired, &input.backends));
        }
        changes
    }

    async fn differences(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
        observed: &ObservedLoadBalancer,
    ) -> Result<Vec<PlannedChange>, ReconcileStop> {
        let actions = self.plan_actions(input, observed, state, PlanScope::All)?;
        let mut changes: Vec<_> = actions.iter().map(PlannedAction::describe).collect();
        match &observed.load_balancer.provisioning_status {
            ProvisioningStatus::Active => {}
            ProvisioningStatus::Error => {
                changes.push(planned(
                    Call::LoadBalancerFailover.name(),
                    &observed.load_balancer.id,
                    "it is in error",
                ));
            }
            pending => changes.push(planned("wait", &observed.load_balancer.id, pending.as_str())),
        }
        if let Some(group) = &input.desired.security_group {
            let task = SecurityGroupTask::new(group, input, observed)?;
            changes.extend(self.security_group_changes(op, task, state).await?);
        }
        if observed.load_balancer.provisioning_status == ProvisioningStatus::Active {
            let ownership = self.service_ownership(input, &observed.load_balancer);
            let floating_ip = self
                .floating_ip_sync(op, input, &ownership)
                .diff(state, observed)
                .await?;
            match floating_ip {
                FloatingIpDiff::Change(change) => changes.push(change),
                FloatingIpDiff::InSync(address) => {
                    changes.extend(status_difference(input, address));
                }
            }
        }
        Ok(changes)
    }

    async fn security_group_changes(
        &self,
        op: &Op,
        task: SecurityGroupTask<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let mut changes = Vec::new();
        if !self
            .listing_shows_in_sync(op, task, &mut state.security_group)
            .await?
        {
            changes = self
                .security_groups
                .plan_changes(self.api(op), task)
                .await?;
        }
        state.security_group.last_applied = if changes.is_empty() {
            Some(task.digest())
        } else {
            None
        };
        Ok(changes)
    }
}

fn planned(operation: &str, object: &str, reason: &str) -> PlannedChange {
    PlannedChange {
        operation: operation.into(),
        object: object.into(),
        reason: reason.into(),
    }
}

/// Returns a change if the Service's status shows something else.
fn status_difference(input: &ReconcileInput<'_>, address: IpAddr) -> Option<PlannedChange> {
    let desired = status::build(address, &input.desired.status_format);
    if shows_same_addresses(&input.service.status, &desired) {
        return None;
    }
    Some(planned(
        "publish_status",
        &input.desired.name,
        &format!("the service does not show {address}"),
    ))
}

/// Returns whether two statuses have the same IP addresses and host names, in this order.
fn shows_same_addresses(a: &LbStatus, b: &LbStatus) -> bool {
    a.ingress.len() == b.ingress.len()
        && a.ingress
            .iter()
            .zip(&b.ingress)
            .all(|(a, b)| a.ip == b.ip && a.hostname == b.hostname)
}
