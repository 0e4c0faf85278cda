//! Deletes what exists for a Service: the whole load balancer, or only its part of a shared one.

use ccm_core::{
    k8s::ServiceView,
    provider::{CloudError, EventType, Op, Progress},
};
use openstack_api::{
    neutron::SecurityGroup,
    octavia::{LoadBalancer, ProvisioningStatus},
};

use super::{
    annotations, floating_ip,
    model::ServiceKey,
    names,
    observe::{self, LoadBalancerQuery},
    ownership::{ServiceOwnership, is_made_for_services, service_ownership},
    plan,
    reconcile::{LoadBalancerReconciler, ReconcileStop},
    sync_state::LoadBalancerSyncState,
};
use crate::{client::OpenStackError, lb::observed::ObservedLoadBalancer};

/// What to delete.
pub(super) struct DeleteInput<'a> {
    pub(super) owner: &'a ServiceKey,
    /// The Service as it was last observed.
    pub(super) service: &'a ServiceView,
    /// True when the floating IP stays allocated.
    pub(super) keep_floating_ip: bool,
}

impl LoadBalancerReconciler {
    /// Deletes everything of a Service. If nothing exists, that is success.
    pub(super) async fn delete(&self, op: &Op, doomed: &DeleteInput<'_>) -> Result<Progress, CloudError> {
        let uid = &doomed.owner.uid;
        let mut known = self.sync_states.take(uid);
        let result = match self.delete_all(op, doomed, &mut known).await {
            Ok(()) => Ok(Progress::Done),
            Err(ReconcileStop::Pending(progress)) => Ok(progress),
            Err(ReconcileStop::Failed(error)) => Err(error),
        };
        match &result {
            Ok(Progress::Done) => self.sync_states.forget(uid),
            Ok(Progress::Pending { .. }) => {
                known.listings_stale_until = Some(self.sync_states.rounds.now());
                self.sync_states.put(uid, known);
            }
            Err(_) => {
                let failed_over = known.failed_over;
                let deleting = known.deleting_id.take();
                let mut left =
                    LoadBalancerSyncState { failed_over, deleting_id: deleting, ..LoadBalancerSyncState::default() };
                left.mark_changed(self.sync_states.rounds.now());
                self.sync_states.put(uid, left);
            }
        }
        result
    }

    async fn delete_all(
        &self,
        op: &Op,
        doomed: &DeleteInput<'_>,
        known: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let api = self.api(op);
        let owner = doomed.owner;
        let mut ours = false;
        if let Some(id) = known.deleting_id.clone() {
            ours = true;
            self.wait_until_deleted(op, doomed, known, &id).await?;
        } else {
            match self.find(op, doomed).await? {
                Some(balancer) => ours = self.delete_from_load_balancer(op, doomed, known, balancer).await?,
                // Only if this Service had a load balancer: an address that an earlier Service of this name kept has
                // the same description.
                None if !doomed.keep_floating_ip && had_load_balancer(doomed.service) => {
                    let description = names::floating_ip_description(&self.cluster, &owner.namespace, &owner.name);
                    floating_ip::release_leftover(api, &description).await?;
                }
                None => {}
            }
        }
        let group = names::security_group(&owner.uid, &owner.namespace, &owner.name);
        let of_cluster = |group: &SecurityGroup| {
            let cluster = names::of_security_group(&group.standard.description).map(|(_, cluster)| cluster);
            ours || cluster.is_none_or(|cluster| *cluster == *self.cluster)
        };
        match self.security_groups.remove(api, &group, of_cluster).await? {
            Progress::Done => Ok(()),
            pending @ Progress::Pending { .. } => Err(ReconcileStop::Pending(pending)),
        }
    }

    async fn find(&self, op: &Op, doomed: &DeleteInput<'_>) -> Result<Option<LoadBalancer>, ReconcileStop> {
        let question = LoadBalancerQuery::of(&self.cluster, doomed.owner, doomed.service);
        // With `served`, an ID that is out of date is no error.
        Ok(observe::find_load_balancer(self.api(op), &LoadBalancerQuery { served: true, ..question }).await?)
    }

    /// Deletes this Service's part of a load balancer, which may be all of it. Returns whether it had one.
    async fn delete_from_load_balancer(
        &self,
        op: &Op,
        doomed: &DeleteInput<'_>,
        known: &mut LoadBalancerSyncState,
        balancer: LoadBalancer,
    ) -> Result<bool, ReconcileStop> {
        let id = balancer.id.clone();
        // First, leave load balancers of other clusters alone. A Service that was copied with its annotations names the
        // load balancer of the other cluster. So does a Service whose cluster was renamed, but its load balancer was
        // synced under the new name since.
        let standing = service_ownership(&self.cluster, doomed.owner, false, &balancer);
        let listed = balancer.tags.iter().any(|tag| standing.is_own_tag(tag));
        let other = names::cluster_of(&balancer.name);
        if !standing.owner && !listed && !other.is_empty() && other != &*self.cluster {
            let note = format!("load balancer {id} bears the name of cluster {other} and stays");
            op.event(EventType::Warning, "LoadBalancerOfOtherCluster", &note);
            return Ok(false);
        }
        // Then wait until it can be changed.
        match &balancer.provisioning_status {
            ProvisioningStatus::Active => known.waiting_since = None,
            // It can be deleted as a whole.
            ProvisioningStatus::Error => {}
            ProvisioningStatus::PendingDelete => {
                known.deleting_id = Some(id.clone().into());
                return Err(self.pending(op, known, &format!("load balancer {id} is being deleted")));
            }
            other => {
                let why = format!("load balancer {id} is {other}");
                return Err(self.pending(op, known, &why));
            }
        }
        // Finally, delete all of it if nobody else uses it, or only this Service's part.
        let made_for_services = is_made_for_services(&balancer, doomed.owner);
        let shared = standing.other_service_tags(&balancer).next().is_some();
        let mut seen = ObservedLoadBalancer::new(balancer);
        if made_for_services && !shared && self.is_sole_user(op, &standing, &mut seen).await? {
            self.delete_load_balancer(op, doomed, known, seen).await?;
            return Ok(true);
        }
        if seen.listeners.is_empty() {
            observe::read_children(self.api(op), &mut seen, &standing).await?;
        }
        known.observed = Some(seen);
        self.remove_from_shared(op, known, &standing).await?;
        Ok(true)
    }

    /// Returns whether nobody else has anything on a load balancer. Its tags alone do not prove that: when two Services
    /// write them at the same time, one removes the other's.
    async fn is_sole_user(
        &self,
        op: &Op,
        standing: &ServiceOwnership,
        seen: &mut ObservedLoadBalancer,
    ) -> Result<bool, ReconcileStop> {
        if standing.owner {
            return Ok(!self.has_other_services(op, standing, &seen.load_balancer.id).await?);
        }
        if !self.features.tags {
            return Ok(false);
        }
        observe::read_children(self.api(op), seen, standing).await?;
        Ok(seen.listeners.iter().all(|listener| standing.owns_listener(listener)))
    }

    /// Returns whether other Services have listeners on a load balancer.
    pub(super) async fn has_other_services(
        &self,
        op: &Op,
        standing: &ServiceOwnership,
        id: &str,
    ) -> Result<bool, OpenStackError> {
        let tags = self.features.tags;
        Ok(tags && self.api(op).listeners(id).await?.iter().any(|listener| standing.is_other_services(listener)))
    }

    /// Deletes a whole load balancer: its floating IP first, while its port says which one that is.
    async fn delete_load_balancer(
        &self,
        op: &Op,
        doomed: &DeleteInput<'_>,
        known: &mut LoadBalancerSyncState,
        mut seen: ObservedLoadBalancer,
    ) -> Result<(), ReconcileStop> {
        let api = self.api(op);
        let why = "its Service is gone";
        if let (Some(port), false) = (seen.load_balancer.vip_port_id.as_deref(), doomed.keep_floating_ip) {
            floating_ip::release(api, port).await?;
        }
        let id = seen.load_balancer.id.clone();
        // Nothing can be removed from a load balancer in ERROR.
        let cascade =
            self.settings.cascade_delete || seen.load_balancer.provisioning_status == ProvisioningStatus::Error;
        if !cascade {
            if seen.listeners.is_empty() && seen.pools.is_empty() {
                seen.listeners = api.listeners(&id).await?;
                seen.pools = api.pools(&id).await?;
            }
            if let Some(step) = plan::plan_clear(&seen).into_iter().next() {
                known.observed = Some(seen);
                self.apply_action(op, known, &step).await?;
                return Err(self.pending(op, known, &format!("load balancer {id} is taken apart")));
            }
        }
        match api.delete_load_balancer(&id, cascade, why).await {
            Ok(()) => {}
            Err(error) if error.is_immutable() => {
                return Err(self.pending(op, known, &format!("load balancer {id} is busy")));
            }
            Err(error) => return Err(error.into()),
        }
        known.deleting_id = Some(id.clone().into());
        known.mark_changed(self.sync_states.rounds.now());
        self.wait_until_deleted(op, doomed, known, &id).await
    }

    async fn wait_until_deleted(
        &self,
        op: &Op,
        doomed: &DeleteInput<'_>,
        known: &mut LoadBalancerSyncState,
        id: &str,
    ) -> Result<(), ReconcileStop> {
        let name = names::load_balancer(&self.cluster, &doomed.owner.namespace, &doomed.owner.name);
        match self.refresh_status(op, known, id, &name).await? {
            None => {}
            Some(found) if found.provisioning_status == ProvisioningStatus::Deleted => {}
            Some(found) if found.provisioning_status == ProvisioningStatus::PendingDelete => {
                return Err(self.pending(op, known, &format!("load balancer {id} is being deleted")));
            }
            Some(found) => {
                // The deletion failed or never began: the next call starts again.
                known.deleting_id = None;
                let status = &found.provisioning_status;
                op.event(EventType::Warning, "LoadBalancerDeleteFailed", &format!("load balancer {id} is {status}"));
                return Err(self.pending(op, known, &format!("load balancer {id} is not deleted, but {status}")));
            }
        }
        known.deleting_id = None;
        known.waiting_since = None;
        Ok(())
    }

    /// Removes this Service's listeners, pools and tag from a load balancer that stays.
    async fn remove_from_shared(
        &self,
        op: &Op,
        known: &mut LoadBalancerSyncState,
        standing: &ServiceOwnership,
    ) -> Result<(), ReconcileStop> {
        loop {
            let Some(seen) = &known.observed else { return Ok(()) };
            let id = seen.load_balancer.id.clone();
            if seen.load_balancer.provisioning_status.is_pending() {
                match self.api(op).load_balancer(&id).await? {
                    None => return Ok(()),
                    Some(found) if found.provisioning_status.is_pending() => {
                        return Err(self.pending(op, known, &format!("load balancer {id} is busy")));
                    }
                    Some(found) => {
                        if let Some(seen) = &mut known.observed {
                            seen.load_balancer = found;
                        }
                    }
                }
                continue;
            }
            let Some(step) = plan::plan_removal_from_shared(seen, standing, self.features.tags).into_iter().next()
            else {
                return Ok(());
            };
            if seen.load_balancer.provisioning_status == ProvisioningStatus::Error {
                return Err(self.fail_over(op, known, &id).await);
            }
            self.apply_action(op, known, &step).await?;
        }
    }
}

/// Returns whether a Service had a load balancer, according to its status and annotations.
fn had_load_balancer(service: &ServiceView) -> bool {
    observe::was_served(service) || service.annotations.contains_key(&*annotations::LOAD_BALANCER_ID.key())
}
