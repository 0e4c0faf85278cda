//! Dry run: finds what a sync would change, without changing anything.

use std::net::IpAddr;

use ccm_core::{
    k8s::LbStatus,
    provider::{CloudError, Op, PlannedChange, Progress, ReadMode},
};
use openstack_api::octavia::ProvisioningStatus;

use super::{
    adopt::reason_to_wait,
    floating_ip_sync::FloatingIpDiff,
    observed::ObservedLoadBalancer,
    outcome,
    plan::{PlannedAction, recovery::Recovery, retention},
    reconcile::{LoadBalancerReconciler, PlanScope, ReconcileStop, as_transient},
    reconcile_input::ReconcileInput,
    security_groups::SecurityGroupTask,
    status,
    sync_state::{LastApplied, LoadBalancerSyncState, SecurityGroupSyncState},
};
use crate::client::Call;

impl LoadBalancerReconciler {
    /// Returns the changes that [`ensure`](Self::ensure) would make. Does not read the children
    /// again if the load balancer shows that they are unchanged.
    pub(super) async fn dry_run(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let uid = &input.desired.owner.uid;
        let mut state = self.sync_states.take(uid);
        let result = self.observe_and_diff(op, input, &mut state).await;
        if matches!(result, Err(ReconcileStop::Failed(_))) {
            state.invalidate();
            state.mark_changed(self.sync_states.rounds.now());
        }
        self.sync_states.put(uid, state);
        result.map_err(|stop| match stop {
            ReconcileStop::Failed(error) => as_transient(error),
            ReconcileStop::Pending(Progress::Pending { after, reason }) => {
                CloudError::transient(reason).with_retry_after(after)
            }
            ReconcileStop::Pending(Progress::Done) => CloudError::transient("it is not known yet"),
        })
    }

    /// Reads the observed state and compares it. If nothing differs, the desired state is recorded
    /// as applied.
    async fn observe_and_diff(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Vec<PlannedChange>, ReconcileStop> {
        state.unfinished = false;
        state.last_applied = None;
        self.observe(op, input, ReadMode::Fresh, PlanScope::All, state)
            .await?;
        self.read_children(op, input, state).await?;
        let changes = self.diff_all(op, input, state).await?;
        if changes.is_empty() {
            state.last_applied = Some(LastApplied::new(input.desired, &input.backends));
        }
        Ok(changes)
    }

    /// Compares the load balancer, its security group, its floating IP and the Service's status
    /// with the desired state, and returns the changes to make.
    async fn diff_all(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<Vec<PlannedChange>, ReconcileStop> {
        let Some(observed) = &state.observed else {
            let operation = Call::LoadBalancerCreate.name();
            return Ok(vec![planned_change(operation, &input.desired.name, "there is none")]);
        };
        let actions = self.plan_actions(input, state, PlanScope::All)?;
        let load_balancer = &observed.load_balancer;
        if let Some(reason) = reason_to_wait(input, load_balancer) {
            return Ok(vec![planned_change("wait", &load_balancer.id, &reason)]);
        }
        let mut changes: Vec<_> = actions.iter().map(PlannedAction::describe).collect();
        match &load_balancer.provisioning_status {
            ProvisioningStatus::Active => {}
            ProvisioningStatus::Error => {
                let recovery = self.plan_recovery(op, input, load_balancer, state).await?;
                changes.push(recovery_change(recovery, &load_balancer.id));
            }
            pending => changes.push(planned_change("wait", &load_balancer.id, pending.as_str())),
        }
        if let Some(group) = &input.desired.security_group {
            let task = SecurityGroupTask::new(group, input, observed)?;
            let group_changes = self
                .diff_security_group(op, task, &mut state.security_group)
                .await?;
            changes.extend(group_changes);
        }
        // A load balancer that is not ready may have no address yet.
        if load_balancer.provisioning_status == ProvisioningStatus::Active {
            let ownership = self.service_ownership(input, load_balancer);
            let floating_ip = self
                .floating_ip_sync(op, input, observed, &ownership)
                .diff(&mut state.floating_ip)
                .await?;
            match floating_ip {
                FloatingIpDiff::Change(change) => changes.push(change),
                FloatingIpDiff::InSync(address) => {
                    changes.extend(diff_status(input, observed, address));
                }
            }
        }
        let completion = retention::plan_completion(load_balancer);
        changes.extend(completion.iter().map(PlannedAction::describe));
        Ok(changes)
    }

    async fn diff_security_group(
        &self,
        op: &Op,
        task: SecurityGroupTask<'_>,
        state: &mut SecurityGroupSyncState,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let mut changes = Vec::new();
        if !self.listing_shows_in_sync(op, task, state).await? {
            changes = self
                .security_groups
                .plan_changes(self.api(op), task)
                .await?;
        }
        state.last_applied = if changes.is_empty() {
            Some(task.digest())
        } else {
            None
        };
        Ok(changes)
    }
}

/// Describes what a sync does with a load balancer in ERROR.
fn recovery_change(recovery: Recovery, id: &str) -> PlannedChange {
    match recovery {
        Recovery::Replace => {
            planned_change(Call::LoadBalancerDelete.name(), id, "it could not be created")
        }
        Recovery::FailOver => {
            planned_change(Call::LoadBalancerFailover.name(), id, "it is in error")
        }
        Recovery::LeaveToOwner => {
            planned_change("wait", id, "it is in error, and another Service's")
        }
        Recovery::Keep(reason) => {
            planned_change("wait", id, &format!("it is in error: {}", reason.describe(id)))
        }
    }
}

fn planned_change(operation: &str, object: &str, reason: &str) -> PlannedChange {
    PlannedChange {
        operation: operation.into(),
        object: object.into(),
        reason: reason.into(),
    }
}

/// Returns the change that publishes an address, or `None` if the Service's status already shows
/// it.
fn diff_status(
    input: &ReconcileInput<'_>,
    observed: &ObservedLoadBalancer,
    address: IpAddr,
) -> Option<PlannedChange> {
    let second = outcome::second_address(input, observed);
    let desired = status::build(address, second, &input.desired.status_format);
    if shows_same_addresses(&input.service.status, &desired) {
        return None;
    }
    Some(planned_change(
        "publish_status",
        &input.desired.name,
        &format!("the service does not show {address}"),
    ))
}

/// Returns true if two statuses have the same IP addresses and host names in the same order.
fn shows_same_addresses(a: &LbStatus, b: &LbStatus) -> bool {
    a.ingress.len() == b.ingress.len()
        && a.ingress
            .iter()
            .zip(&b.ingress)
            .all(|(a, b)| a.ip == b.ip && a.hostname == b.hostname)
}
