//! Takes away what there is of a Service: the whole balancer, or only its part of a shared one.

use ccm_core::{
    k8s::ServiceView,
    provider::{CloudError, EventKind, Op, Progress},
};
use openstack_api::{
    neutron::SecurityGroup,
    octavia::{LoadBalancer, ProvisioningStatus},
};

use super::{
    annotations,
    bring::{Core, Halt},
    floating,
    memory::Known,
    model::OwnerName,
    names,
    observe::{self, Question},
    ownership::{Standing, is_made_for_services, standing},
    plan,
    seen::Seen,
};
use crate::client::OsError;

/// What is to go.
pub(super) struct Doomed<'a> {
    pub(super) owner: &'a OwnerName,
    /// What is left of the Service.
    pub(super) service: &'a ServiceView,
    /// Whether the floating IP stays allocated.
    pub(super) keep: bool,
}

impl Core {
    /// Deletes everything of a Service. Nothing is success.
    pub(super) async fn delete(&self, op: &Op, doomed: &Doomed<'_>) -> Result<Progress, CloudError> {
        let uid = &doomed.owner.uid;
        let mut known = self.memory.take(uid);
        let result = match self.take_away(op, doomed, &mut known).await {
            Ok(()) => Ok(Progress::Done),
            Err(Halt::Wait(progress)) => Ok(progress),
            Err(Halt::Failed(error)) => Err(error),
        };
        match &result {
            Ok(Progress::Done) => self.memory.forget(uid),
            Ok(Progress::Pending { .. }) => {
                known.touched = Some(self.memory.rounds.now());
                self.memory.put(uid, known);
            }
            Err(_) => {
                let (failed_over, deleting) = (known.failed_over, known.deleting.take());
                let mut left = Known { failed_over, deleting, ..Known::default() };
                left.touch(self.memory.rounds.now());
                self.memory.put(uid, left);
            }
        }
        result
    }

    async fn take_away(&self, op: &Op, doomed: &Doomed<'_>, known: &mut Known) -> Result<(), Halt> {
        let api = self.api(op);
        let owner = doomed.owner;
        let mut ours = false;
        if let Some(id) = known.deleting.clone() {
            ours = true;
            self.until_gone(op, doomed, known, &id).await?;
        } else {
            match self.find(op, doomed).await? {
                Some(balancer) => ours = self.take_away_from(op, doomed, known, balancer).await?,
                // An address that an earlier Service of this name kept looks the same.
                None if !doomed.keep && had_balancer(doomed.service) => {
                    let description = names::floating_ip_description(&self.cluster, &owner.namespace, &owner.name);
                    floating::release_left(api, &description).await?;
                }
                None => {}
            }
        }
        let group = names::security_group(&owner.uid, &owner.namespace, &owner.name);
        let of_cluster = |group: &SecurityGroup| {
            let cluster = names::of_security_group(&group.standard.description).map(|(_, cluster)| cluster);
            ours || cluster.is_none_or(|cluster| *cluster == *self.cluster)
        };
        match self.groups.remove(api, &group, of_cluster).await? {
            Progress::Done => Ok(()),
            pending @ Progress::Pending { .. } => Err(Halt::Wait(pending)),
        }
    }

    async fn find(&self, op: &Op, doomed: &Doomed<'_>) -> Result<Option<LoadBalancer>, Halt> {
        let question = Question::of(&self.cluster, doomed.owner, doomed.service);
        // That the ID is out of date is no mistake any more.
        Ok(observe::locate(self.api(op), &Question { served: true, ..question }).await?)
    }

    /// Takes this Service's part of a balancer away, which may be all of it. Tells whether it had one.
    async fn take_away_from(
        &self,
        op: &Op,
        doomed: &Doomed<'_>,
        known: &mut Known,
        balancer: LoadBalancer,
    ) -> Result<bool, Halt> {
        let id = balancer.id.clone();
        // A Service that was copied with its annotations names the balancer of the other cluster, as one does whose cluster
        // was renamed: but that one was served under the new name since.
        let standing = standing(&self.cluster, doomed.owner, false, &balancer);
        let listed = balancer.tags.iter().any(|tag| standing.is_own_tag(tag));
        let other = names::cluster_of(&balancer.name);
        if !standing.owner && !listed && !other.is_empty() && other != &*self.cluster {
            let note = format!("load balancer {id} bears the name of cluster {other} and stays");
            op.event(EventKind::Warning, "LoadBalancerOfOtherCluster", &note);
            return Ok(false);
        }
        match &balancer.provisioning_status {
            ProvisioningStatus::Active => known.waiting = None,
            // It can be deleted as a whole.
            ProvisioningStatus::Error => {}
            ProvisioningStatus::PendingDelete => {
                known.deleting = Some(id.clone().into());
                return Err(self.pending(op, known, &format!("load balancer {id} is being deleted")));
            }
            other => {
                let why = format!("load balancer {id} is {other}");
                return Err(self.pending(op, known, &why));
            }
        }
        let made_for_services = is_made_for_services(&balancer, doomed.owner);
        let shared = standing.others(&balancer).next().is_some();
        let mut seen = Seen::bare(balancer);
        if made_for_services && !shared && self.is_all_mine(op, &standing, &mut seen).await? {
            self.delete_whole(op, doomed, known, seen).await?;
            return Ok(true);
        }
        if seen.listeners.is_empty() {
            observe::children(self.api(op), &mut seen, &standing).await?;
        }
        known.seen = Some(seen);
        self.withdraw(op, known, &standing).await?;
        Ok(true)
    }

    /// Tells whether nobody else has anything on a balancer. Its tags alone do not say: of two Services that write them at the
    /// same time one takes the other's off.
    async fn is_all_mine(&self, op: &Op, standing: &Standing, seen: &mut Seen) -> Result<bool, Halt> {
        if standing.owner {
            return Ok(!self.has_others(op, standing, &seen.balancer.id).await?);
        }
        if !self.features.tags {
            return Ok(false);
        }
        observe::children(self.api(op), seen, standing).await?;
        Ok(seen.listeners.iter().all(|listener| standing.is_mine(listener)))
    }

    /// Tells whether other Services have listeners on a balancer.
    pub(super) async fn has_others(&self, op: &Op, standing: &Standing, id: &str) -> Result<bool, OsError> {
        let tags = self.features.tags;
        Ok(tags && self.api(op).listeners(id).await?.iter().any(|listener| standing.is_anothers(listener)))
    }

    /// Deletes a whole balancer: its floating IP first, while its port says which one that is.
    async fn delete_whole(&self, op: &Op, doomed: &Doomed<'_>, known: &mut Known, mut seen: Seen) -> Result<(), Halt> {
        let api = self.api(op);
        let why = "its Service is gone";
        if let (Some(port), false) = (seen.balancer.vip_port_id.as_deref(), doomed.keep) {
            floating::release(api, port).await?;
        }
        let id = seen.balancer.id.clone();
        // Of one in error nothing can be taken off.
        let cascade = self.settings.cascade_delete || seen.balancer.provisioning_status == ProvisioningStatus::Error;
        if !cascade {
            if seen.listeners.is_empty() && seen.pools.is_empty() {
                seen.listeners = api.listeners(&id).await?;
                seen.pools = api.pools(&id).await?;
            }
            if let Some(step) = plan::clearance(&seen).into_iter().next() {
                known.seen = Some(seen);
                self.step(op, known, &step).await?;
                return Err(self.pending(op, known, &format!("load balancer {id} is taken apart")));
            }
        }
        match api.delete_balancer(&id, cascade, why).await {
            Ok(()) => {}
            Err(error) if error.is_immutable() => {
                return Err(self.pending(op, known, &format!("load balancer {id} is busy")));
            }
            Err(error) => return Err(error.into()),
        }
        known.deleting = Some(id.clone().into());
        known.touch(self.memory.rounds.now());
        self.until_gone(op, doomed, known, &id).await
    }

    async fn until_gone(&self, op: &Op, doomed: &Doomed<'_>, known: &mut Known, id: &str) -> Result<(), Halt> {
        let name = names::load_balancer(&self.cluster, &doomed.owner.namespace, &doomed.owner.name);
        match self.watch(op, known, id, &name).await? {
            None => {}
            Some(found) if found.provisioning_status == ProvisioningStatus::Deleted => {}
            Some(found) if found.provisioning_status == ProvisioningStatus::PendingDelete => {
                return Err(self.pending(op, known, &format!("load balancer {id} is being deleted")));
            }
            Some(found) => {
                // The deletion failed, or never was: the next call begins anew.
                known.deleting = None;
                let status = &found.provisioning_status;
                op.event(EventKind::Warning, "LoadBalancerDeleteFailed", &format!("load balancer {id} is {status}"));
                return Err(self.pending(op, known, &format!("load balancer {id} is not deleted, but {status}")));
            }
        }
        known.deleting = None;
        known.waiting = None;
        Ok(())
    }

    /// Takes this Service's listeners, pools and tag off a balancer that stays.
    async fn withdraw(&self, op: &Op, known: &mut Known, standing: &Standing) -> Result<(), Halt> {
        loop {
            let Some(seen) = &known.seen else { return Ok(()) };
            let id = seen.balancer.id.clone();
            if seen.balancer.provisioning_status.is_pending() {
                match self.api(op).balancer(&id).await? {
                    None => return Ok(()),
                    Some(found) if found.provisioning_status.is_pending() => {
                        return Err(self.pending(op, known, &format!("load balancer {id} is busy")));
                    }
                    Some(found) => {
                        if let Some(seen) = &mut known.seen {
                            seen.balancer = found;
                        }
                    }
                }
                continue;
            }
            let Some(step) = plan::withdrawal(seen, standing, self.features.tags).into_iter().next() else {
                return Ok(());
            };
            if seen.balancer.provisioning_status == ProvisioningStatus::Error {
                return Err(self.fail_over(op, known, &id).await);
            }
            self.step(op, known, &step).await?;
        }
    }
}

/// Tells whether a Service had a balancer, by what was written down of it.
fn had_balancer(service: &ServiceView) -> bool {
    observe::is_served(service) || service.annotations.contains_key(&*annotations::LOAD_BALANCER_ID.key())
}
