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
    annotations, floating_ip_sync,
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
    pub(super) async fn delete(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
    ) -> Result<Progress, CloudError> {
        let uid = &input.owner.uid;
        let mut state = self.sync_states.take(uid);
        let result = match self.delete_all(op, input, &mut state).await {
            Ok(()) => Ok(Progress::Done),
            Err(ReconcileStop::Pending(progress)) => Ok(progress),
            Err(ReconcileStop::Failed(error)) => Err(error),
        };
        match &result {
            Ok(Progress::Done) => self.sync_states.forget(uid),
            Ok(Progress::Pending { .. }) => {
                state.listings_stale_until = Some(self.sync_states.rounds.now());
                self.sync_states.put(uid, state);
            }
            Err(_) => {
                let mut retained = state.after_failed_deletion();
                retained.mark_changed(self.sync_states.rounds.now());
                self.sync_states.put(uid, retained);
            }
        }
        result
    }

    async fn delete_all(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let api = self.api(op);
        let owner = input.owner;
        let mut had_load_balancer = false;
        if let Some(id) = state.deleting_id.clone() {
            had_load_balancer = true;
            self.wait_until_deleted(op, input, state, &id).await?;
        } else {
            match self.find(op, input).await? {
                Some(load_balancer) => {
                    had_load_balancer = self
                        .delete_from_load_balancer(op, input, state, load_balancer)
                        .await?;
                }
                // Only if this Service had a load balancer: an address that an earlier Service of
                // this name kept has the same description.
                None if !input.keep_floating_ip && shows_load_balancer(input.service) => {
                    let description = names::floating_ip_description(
                        &self.cluster,
                        &owner.namespace,
                        &owner.name,
                    );
                    floating_ip_sync::release_leftover(api, &description).await?;
                }
                None => {}
            }
        }
        let group = names::security_group(&owner.uid, &owner.namespace, &owner.name);
        match self
            .security_groups
            .remove(api, &group, |group| had_load_balancer || self.may_be_own_group(group))
            .await?
        {
            Progress::Done => Ok(()),
            pending @ Progress::Pending { .. } => Err(ReconcileStop::Pending(pending)),
        }
    }

    /// Returns whether a security group's description does not name another cluster.
    fn may_be_own_group(&self, group: &SecurityGroup) -> bool {
        match names::of_security_group(&group.standard.description) {
            Some((_, cluster)) => *cluster == *self.cluster,
            None => true,
        }
    }

    async fn find(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
    ) -> Result<Option<LoadBalancer>, ReconcileStop> {
        let query = LoadBalancerQuery::of(&self.cluster, input.owner, input.service);
        // With `served`, an ID that is out of date is no error.
        Ok(observe::find_load_balancer(self.api(op), &LoadBalancerQuery { served: true, ..query })
            .await?)
    }

    /// Deletes this Service's part of a load balancer, which may be all of it. Returns whether it
    /// had one.
    async fn delete_from_load_balancer(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
        load_balancer: LoadBalancer,
    ) -> Result<bool, ReconcileStop> {
        let id = load_balancer.id.clone();
        // Load balancers of other clusters are never deleted. A Service that was copied with its
        // annotations names the load balancer of the other cluster. So does a Service whose cluster
        // was renamed, but its load balancer was synced under the new name since.
        let ownership = service_ownership(&self.cluster, input.owner, false, &load_balancer);
        let has_own_tag = load_balancer
            .tags
            .iter()
            .any(|tag| ownership.is_own_tag(tag));
        let cluster = names::cluster_of(&load_balancer.name);
        if !ownership.owner && !has_own_tag && !cluster.is_empty() && cluster != &*self.cluster {
            let note =
                format!("load balancer {id} has the name of cluster {cluster} and is not deleted");
            op.event(EventType::Warning, "LoadBalancerOfOtherCluster", &note);
            return Ok(false);
        }
        match &load_balancer.provisioning_status {
            ProvisioningStatus::Active => state.stop_waiting(),
            // It can be deleted as a whole.
            ProvisioningStatus::Error => {}
            ProvisioningStatus::PendingDelete => {
                state.deleting_id = Some(id.clone().into());
                return Err(self.pending(
                    op,
                    state,
                    &format!("load balancer {id} is being deleted"),
                ));
            }
            other => {
                let why = format!("load balancer {id} is {other}");
                return Err(self.pending(op, state, &why));
            }
        }
        // It is deleted as a whole if nobody else uses it.
        let may_delete_all = is_made_for_services(&load_balancer, input.owner)
            && ownership
                .other_service_tags(&load_balancer)
                .next()
                .is_none();
        let mut observed = ObservedLoadBalancer::new(load_balancer);
        if may_delete_all && self.is_sole_user(op, &ownership, &mut observed).await? {
            self.delete_load_balancer(op, input, state, observed)
                .await?;
            return Ok(true);
        }
        if observed.listeners.is_empty() {
            observe::read_children(self.api(op), &mut observed, &ownership).await?;
        }
        state.observed = Some(observed);
        self.remove_from_shared(op, state, &ownership).await?;
        Ok(true)
    }

    /// Returns whether nobody else has anything on a load balancer. Its tags alone do not prove
    /// that: when two Services write them at the same time, one removes the other's.
    async fn is_sole_user(
        &self,
        op: &Op,
        ownership: &ServiceOwnership,
        observed: &mut ObservedLoadBalancer,
    ) -> Result<bool, ReconcileStop> {
        if ownership.owner {
            return Ok(!self
                .has_other_services(op, ownership, &observed.load_balancer.id)
                .await?);
        }
        if !self.features.tags {
            return Ok(false);
        }
        observe::read_children(self.api(op), observed, ownership).await?;
        Ok(observed
            .listeners
            .iter()
            .all(|listener| ownership.owns_listener(listener)))
    }

    /// Returns whether other Services have listeners on a load balancer.
    pub(super) async fn has_other_services(
        &self,
        op: &Op,
        ownership: &ServiceOwnership,
        id: &str,
    ) -> Result<bool, OpenStackError> {
        if !self.features.tags {
            return Ok(false);
        }
        let listeners = self.api(op).listeners(id).await?;
        Ok(listeners
            .iter()
            .any(|listener| ownership.is_other_services(listener)))
    }

    /// Deletes a whole load balancer: its floating IP first, while its port says which one that is.
    async fn delete_load_balancer(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
        mut observed: ObservedLoadBalancer,
    ) -> Result<(), ReconcileStop> {
        let api = self.api(op);
        let why = "its Service is deleted";
        if !input.keep_floating_ip
            && let Some(port) = &observed.load_balancer.vip_port_id
        {
            floating_ip_sync::release(api, port).await?;
        }
        let id = observed.load_balancer.id.clone();
        // Nothing can be removed from a load balancer in ERROR.
        let cascade = self.settings.cascade_delete
            || observed.load_balancer.provisioning_status == ProvisioningStatus::Error;
        if !cascade {
            if observed.listeners.is_empty() && observed.pools.is_empty() {
                observed.listeners = api.listeners(&id).await?;
                observed.pools = api.pools(&id).await?;
            }
            if let Some(action) = plan::plan_clear(&observed).first() {
                state.observed = Some(observed);
                self.apply_action(op, state, action).await?;
                return Err(self.pending(
                    op,
                    state,
                    &format!("load balancer {id} is being emptied"),
                ));
            }
        }
        match api.delete_load_balancer(&id, cascade, why).await {
            Ok(()) => {}
            Err(error) if error.is_immutable() => {
                return Err(self.pending(op, state, &format!("load balancer {id} is busy")));
            }
            Err(error) => return Err(error.into()),
        }
        state.deleting_id = Some(id.clone().into());
        state.mark_changed(self.sync_states.rounds.now());
        self.wait_until_deleted(op, input, state, &id).await
    }

    async fn wait_until_deleted(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
        id: &str,
    ) -> Result<(), ReconcileStop> {
        let name = names::load_balancer(&self.cluster, &input.owner.namespace, &input.owner.name);
        match self.refresh_status(op, state, id, &name).await? {
            None => {}
            Some(found) if found.provisioning_status == ProvisioningStatus::Deleted => {}
            Some(found) if found.provisioning_status == ProvisioningStatus::PendingDelete => {
                return Err(self.pending(
                    op,
                    state,
                    &format!("load balancer {id} is being deleted"),
                ));
            }
            Some(found) => {
                // The deletion failed or never began: the next call starts again.
                state.deleting_id = None;
                let status = &found.provisioning_status;
                op.event(
                    EventType::Warning,
                    "LoadBalancerDeleteFailed",
                    &format!("load balancer {id} is {status}"),
                );
                return Err(self.pending(
                    op,
                    state,
                    &format!("load balancer {id} is not deleted, but {status}"),
                ));
            }
        }
        state.deleting_id = None;
        state.stop_waiting();
        Ok(())
    }

    /// Removes this Service's listeners, pools and tag from a load balancer that stays.
    async fn remove_from_shared(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        ownership: &ServiceOwnership,
    ) -> Result<(), ReconcileStop> {
        loop {
            let Some(observed) = &mut state.observed else {
                return Ok(());
            };
            let id = observed.load_balancer.id.clone();
            if observed.load_balancer.provisioning_status.is_pending() {
                let Some(current) = self.api(op).load_balancer(&id).await? else {
                    return Ok(());
                };
                if current.provisioning_status.is_pending() {
                    let why = format!("load balancer {id} is busy");
                    return Err(self.pending(op, state, &why));
                }
                observed.load_balancer = current;
                continue;
            }
            let actions = plan::plan_removal_from_shared(observed, ownership, self.features.tags);
            let Some(action) = actions.first() else {
                return Ok(());
            };
            if observed.load_balancer.provisioning_status == ProvisioningStatus::Error {
                return Err(self.fail_over(op, state, &id).await);
            }
            self.apply_action(op, state, action).await?;
        }
    }
}

/// Returns whether a Service had a load balancer, according to its status and annotations.
fn shows_load_balancer(service: &ServiceView) -> bool {
    observe::was_served(service)
        || service
            .annotations
            .contains_key(&*annotations::LOAD_BALANCER_ID.key())
}
