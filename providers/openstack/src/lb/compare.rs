//! Says what would be changed, without changing anything.

use std::{net::IpAddr, sync::Arc};

use ccm_core::{
    k8s::LbStatus,
    provider::{CloudError, Depth, Op, PlannedChange, Progress},
};
use openstack_api::octavia::ProvisioningStatus;

use super::{
    bring::{Core, Halt, Order, is_refused, unsettled},
    memory::Known,
    plan::Step,
    seen::Seen,
    status,
};
use crate::client::Call;

impl Core {
    /// Says what [`ensure`](Self::ensure) would change. Nothing of the children is read where the balancer says that they
    /// were not changed.
    pub(super) async fn plan(&self, op: &Op, order: &Order<'_>) -> Result<Vec<PlannedChange>, CloudError> {
        let uid = &order.wanted.owner.uid;
        let mut known = self.memory.take(uid);
        let result = self.compare(op, order, &mut known).await;
        if matches!(result, Err(Halt::Failed(_))) {
            known.doubt();
            known.touch(self.memory.rounds.now());
        }
        self.memory.put(uid, known);
        result.map_err(|halt| match halt {
            Halt::Failed(error) => unsettled(error),
            Halt::Wait(Progress::Pending { after, why }) => CloudError::transient(why).with_retry_after(after),
            Halt::Wait(Progress::Done) => CloudError::transient("it is not known yet"),
        })
    }

    async fn compare(&self, op: &Op, order: &Order<'_>, known: &mut Known) -> Result<Vec<PlannedChange>, Halt> {
        known.unfinished = false;
        known.applied = None;
        self.look(op, order, Depth::Verify, known).await?;
        self.children(op, order, known).await?;
        let Some(seen) = known.seen.take() else {
            return Ok(vec![planned(Call::LoadBalancerCreate.name(), &order.wanted.name, "there is none")]);
        };
        let changes = self.differences(op, order, known, &seen).await;
        known.seen = Some(seen);
        if changes.as_ref().is_ok_and(Vec::is_empty) {
            known.applied = Some((Arc::new(order.wanted.clone()), order.backends.clone()));
        }
        changes
    }

    async fn differences(
        &self,
        op: &Op,
        order: &Order<'_>,
        known: &mut Known,
        seen: &Seen,
    ) -> Result<Vec<PlannedChange>, Halt> {
        let standing = self.standing(order, seen);
        let mut steps = self.everything(order, &self.side(order, seen, &standing))?;
        steps.retain(|step| !is_refused(known, step));
        let mut changes: Vec<_> = steps.iter().map(Step::describe).collect();
        match &seen.balancer.provisioning_status {
            ProvisioningStatus::Active => {}
            ProvisioningStatus::Error => {
                changes.push(planned(Call::LoadBalancerFailover.name(), &seen.balancer.id, "it is in error"));
            }
            pending => changes.push(planned("wait", &seen.balancer.id, pending.as_str())),
        }
        if let Some(group) = &order.wanted.group {
            let task = Self::task(group, order, seen)?;
            let found = match self.is_listed_in_line(op, task, &mut known.listed).await? {
                true => Vec::new(),
                false => self.groups.compare(self.api(op), task).await?,
            };
            known.group = found.is_empty().then(|| task.digest());
            changes.extend(found);
        }
        if seen.balancer.provisioning_status == ProvisioningStatus::Active {
            let (address, found) = self.matter(op, order, &standing).compare(known, seen).await?;
            changes.extend(found);
            changes.extend(address.and_then(|address| unpublished(order, address)));
        }
        Ok(changes)
    }
}

fn planned(operation: &str, object: &str, reason: &str) -> PlannedChange {
    PlannedChange { operation: operation.into(), object: object.into(), reason: reason.into() }
}

/// A Service that shows something else.
fn unpublished(order: &Order<'_>, address: IpAddr) -> Option<PlannedChange> {
    let status = status::of(address, &order.wanted.shown);
    let same = |a: &LbStatus, b: &LbStatus| {
        let key = |status: &LbStatus| status.ingress.iter().map(|i| (i.ip, i.hostname.clone())).collect::<Vec<_>>();
        key(a) == key(b)
    };
    (!same(&order.service.status, &status)).then(|| PlannedChange {
        operation: "publish_status".into(),
        object: order.wanted.name.clone(),
        reason: format!("the service does not show {address}").into(),
    })
}
