//! Dry run: returns what would be changed, without changing anything.

use std::{net::IpAddr, sync::Arc};

use ccm_core::{
    k8s::LbStatus,
    provider::{CloudError, Op, PlannedChange, Progress, ReadMode},
};
use openstack_api::octavia::ProvisioningStatus;

use super::{
    plan::PlannedAction,
    reconcile::{
        LoadBalancerReconciler, ReconcileInput, ReconcileStop, as_transient, is_rejected_method,
    },
    status,
    sync_state::LoadBalancerSyncState,
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
        result.map_err(|halt| match halt {
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
        let Some(seen) = state.observed.take() else {
            return Ok(vec![planned(
                Call::LoadBalancerCreate.name(),
                &input.desired.name,
                "there is none",
            )]);
        };
        let changes = self.differences(op, input, state, &seen).await;
        state.observed = Some(seen);
        if changes.as_ref().is_ok_and(Vec::is_empty) {
            state.last_applied = Some((Arc::new(input.desired.clone()), input.backends.clone()));
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
        let ownership = self.service_ownership(input, observed);
        let mut steps = self.plan_all(input, &self.plan_input(input, observed, &ownership))?;
        steps.retain(|step| !is_rejected_method(state, step));
        let mut changes: Vec<_> = steps.iter().map(PlannedAction::describe).collect();
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
            let task = Self::security_group_spec(group, input, observed)?;
            let found = if self
                .listing_shows_in_sync(op, task, &mut state.listed_security_group)
                .await?
            {
                Vec::new()
            } else {
                self.security_groups
                    .plan_changes(self.api(op), task)
                    .await?
            };
            state.applied_security_group = found.is_empty().then(|| task.digest());
            changes.extend(found);
        }
        if observed.load_balancer.provisioning_status == ProvisioningStatus::Active {
            let (address, found) = self
                .floating_ip_sync(op, input, &ownership)
                .diff(state, observed)
                .await?;
            changes.extend(found);
            changes.extend(address.and_then(|address| status_difference(input, address)));
        }
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
    let status = status::of(address, &input.desired.status_format);
    let same = |a: &LbStatus, b: &LbStatus| {
        let key = |status: &LbStatus| {
            status
                .ingress
                .iter()
                .map(|i| (i.ip, i.hostname.clone()))
                .collect::<Vec<_>>()
        };
        key(a) == key(b)
    };
    (!same(&input.service.status, &status)).then(|| PlannedChange {
        operation: "publish_status".into(),
        object: input.desired.name.clone(),
        reason: format!("the service does not show {address}").into(),
    })
}
