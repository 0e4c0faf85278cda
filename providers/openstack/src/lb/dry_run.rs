//! Dry run: returns what would be changed, without changing anything.

use std::{net::IpAddr, sync::Arc};

use ccm_core::{
    k8s::LbStatus,
    provider::{CloudError, Op, PlannedChange, Progress, ReadMode},
};
use openstack_api::octavia::ProvisioningStatus;

use super::{
    plan::PlannedAction,
    reconcile::{LoadBalancerReconciler, ReconcileInput, ReconcileStop, as_transient, is_rejected_method},
    status,
    sync_state::LoadBalancerSyncState,
};
use crate::{client::Call, lb::observed::ObservedLoadBalancer};

impl LoadBalancerReconciler {
    /// Returns what [`ensure`](Self::ensure) would change. Children are not read again if the load balancer shows that
    /// they are unchanged.
    pub(super) async fn plan(&self, op: &Op, order: &ReconcileInput<'_>) -> Result<Vec<PlannedChange>, CloudError> {
        let uid = &order.desired.owner.uid;
        let mut known = self.sync_states.take(uid);
        let result = self.diff(op, order, &mut known).await;
        if matches!(result, Err(ReconcileStop::Failed(_))) {
            known.invalidate();
            known.mark_changed(self.sync_states.rounds.now());
        }
        self.sync_states.put(uid, known);
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
        order: &ReconcileInput<'_>,
        known: &mut LoadBalancerSyncState,
    ) -> Result<Vec<PlannedChange>, ReconcileStop> {
        known.unfinished = false;
        known.last_applied = None;
        self.observe(op, order, ReadMode::Fresh, known).await?;
        self.read_children(op, order, known).await?;
        let Some(seen) = known.observed.take() else {
            return Ok(vec![planned(Call::LoadBalancerCreate.name(), &order.desired.name, "there is none")]);
        };
        let changes = self.differences(op, order, known, &seen).await;
        known.observed = Some(seen);
        if changes.as_ref().is_ok_and(Vec::is_empty) {
            known.last_applied = Some((Arc::new(order.desired.clone()), order.backends.clone()));
        }
        changes
    }

    async fn differences(
        &self,
        op: &Op,
        order: &ReconcileInput<'_>,
        known: &mut LoadBalancerSyncState,
        seen: &ObservedLoadBalancer,
    ) -> Result<Vec<PlannedChange>, ReconcileStop> {
        let standing = self.service_ownership(order, seen);
        let mut steps = self.plan_all(order, &self.plan_input(order, seen, &standing))?;
        steps.retain(|step| !is_rejected_method(known, step));
        let mut changes: Vec<_> = steps.iter().map(PlannedAction::describe).collect();
        match &seen.load_balancer.provisioning_status {
            ProvisioningStatus::Active => {}
            ProvisioningStatus::Error => {
                changes.push(planned(Call::LoadBalancerFailover.name(), &seen.load_balancer.id, "it is in error"));
            }
            pending => changes.push(planned("wait", &seen.load_balancer.id, pending.as_str())),
        }
        if let Some(group) = &order.desired.security_group {
            let task = Self::security_group_spec(group, order, seen)?;
            let found = if self.listing_shows_in_sync(op, task, &mut known.listed_security_group).await? {
                Vec::new()
            } else {
                self.security_groups.plan_changes(self.api(op), task).await?
            };
            known.applied_security_group = found.is_empty().then(|| task.digest());
            changes.extend(found);
        }
        if seen.load_balancer.provisioning_status == ProvisioningStatus::Active {
            let (address, found) = self.floating_ip_sync(op, order, &standing).diff(known, seen).await?;
            changes.extend(found);
            changes.extend(address.and_then(|address| status_difference(order, address)));
        }
        Ok(changes)
    }
}

fn planned(operation: &str, object: &str, reason: &str) -> PlannedChange {
    PlannedChange { operation: operation.into(), object: object.into(), reason: reason.into() }
}

/// Returns a change if the Service's status shows something else.
fn status_difference(order: &ReconcileInput<'_>, address: IpAddr) -> Option<PlannedChange> {
    let status = status::of(address, &order.desired.status_format);
    let same = |a: &LbStatus, b: &LbStatus| {
        let key = |status: &LbStatus| status.ingress.iter().map(|i| (i.ip, i.hostname.clone())).collect::<Vec<_>>();
        key(a) == key(b)
    };
    (!same(&order.service.status, &status)).then(|| PlannedChange {
        operation: "publish_status".into(),
        object: order.desired.name.clone(),
        reason: format!("the service does not show {address}").into(),
    })
}
