//! Deletes the load balancer of a Service, or only the Service's part of a shared one.

use ccm_core::{
    k8s::ServiceView,
    provider::{CloudError, EventType, Op, Progress, adopted_id},
};
use jiff::{SignedDuration, Timestamp};
use openstack_api::octavia::ProvisioningStatus;

use super::{
    floating_ip_sync,
    model::ServiceKey,
    names,
    observe::{self, LoadBalancerQuery},
    ownership::{
        ServiceOwnership, created_at, is_made_for_services, parse_time, service_ownership,
    },
    plan,
    reconcile::{LoadBalancerReconciler, ReconcileStop},
    retention_tags,
    sync_state::LoadBalancerSyncState,
};
use crate::{
    api::{
        neutron::SecurityGroup,
        octavia::{Listener, LoadBalancer},
    },
    client::OpenStackError,
    lb::observed::ObservedLoadBalancer,
};

/// Difference between the clocks of the cloud and of the API server up to which an object of the
/// cloud may appear to be older than its Service. It also covers times that are cut to seconds.
const MAX_CLOCK_DIFFERENCE: SignedDuration = SignedDuration::from_secs(60);

/// Input of a deletion.
pub(super) struct DeleteInput<'a> {
    pub(super) owner: &'a ServiceKey,
    /// The Service as it was last observed.
    pub(super) service: &'a ServiceView,
    /// True when the floating IP stays allocated.
    pub(super) keep_floating_ip: bool,
}

impl LoadBalancerReconciler {
    /// Deletes everything that exists for a Service. It is no error if nothing exists.
    pub(super) async fn delete(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
    ) -> Result<Progress, CloudError> {
        let uid = &input.owner.uid;
        let mut state = self.sync_states.take(uid);
        let result = ReconcileStop::into_progress(self.delete_all(op, input, &mut state).await);
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

    /// Deletes the load balancer or the Service's part of it, then the security group.
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
            match self.find_for_deletion(op, input).await? {
                // It belongs to nobody, and needs everything that exists. An adoption by this
                // Service is given up.
                Some(load_balancer) if retention_tags::is_retained(&load_balancer) => {
                    if retention_tags::is_adopted_by(&load_balancer, &owner.uid) {
                        return Err(self.give_back(op, input, state, load_balancer).await);
                    }
                    report_foreign(op, &load_balancer.id);
                    return Ok(());
                }
                Some(load_balancer) => {
                    had_load_balancer = self
                        .delete_from_load_balancer(op, input, state, load_balancer)
                        .await?;
                }
                None => self.release_leftover(op, input).await?,
            }
        }
        let group = names::security_group(&owner.uid, &owner.namespace, &owner.name);
        // It may be in use by a load balancer that this Service let go.
        if self.security_groups.may_exist(api, &group).await?
            && self.is_group_of_retained(op, &owner.uid).await?
        {
            return Ok(());
        }
        match self
            .security_groups
            .remove(api, &group, |group| had_load_balancer || self.may_be_own_group(group))
            .await?
        {
            Progress::Done => Ok(()),
            pending @ Progress::Pending { .. } => Err(ReconcileStop::Pending(pending)),
        }
    }

    /// Deletes the floating IP of a Service whose load balancer is already deleted. A Service that
    /// shows no address is skipped: a floating IP with this description may have been kept from an
    /// earlier Service of the same name.
    async fn release_leftover(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
    ) -> Result<(), ReconcileStop> {
        let addresses = observe::shown_addresses(input.service);
        if input.keep_floating_ip || addresses.is_empty() {
            return Ok(());
        }
        let ServiceKey { namespace, name, .. } = input.owner;
        let description = names::floating_ip_description(&self.cluster, namespace, name);
        floating_ip_sync::release_leftover(self.api(op), &description, &addresses).await?;
        Ok(())
    }

    /// Returns true unless a security group's description names another cluster.
    fn may_be_own_group(&self, group: &SecurityGroup) -> bool {
        match names::parse_security_group_description(&group.description) {
            Some((_, cluster)) => *cluster == *self.cluster,
            None => true,
        }
    }

    async fn find_for_deletion(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
    ) -> Result<Option<LoadBalancer>, ReconcileStop> {
        // For a Service that was served, an ID that does not exist any more is no error.
        let query = LoadBalancerQuery {
            served: true,
            adopted: None,
            is_deletion: true,
            ..LoadBalancerQuery::for_service(&self.cluster, input.owner, input.service)
        };
        if let Some(found) = observe::find_load_balancer(self.api(op), &query).await? {
            return Ok(Some(found));
        }
        // One that the Service was adopting, or has adopted, under a former name of the cluster.
        if adopted_id(input.service).is_none() {
            return Ok(None);
        }
        let tag = retention_tags::adopter_uid_tag(&input.owner.uid);
        Ok(self.find_newest_by_tag(op, &tag).await?)
    }

    /// Deletes this Service's part of a load balancer, which may be all of it. Returns false if the
    /// load balancer belongs to another cluster and is not deleted.
    async fn delete_from_load_balancer(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
        load_balancer: LoadBalancer,
    ) -> Result<bool, ReconcileStop> {
        let id = load_balancer.id.clone();
        // Never delete the load balancer of another cluster: a Service that was copied with its
        // annotations still names it. After a rename of this cluster its own load balancers do not
        // look like that, because the first sync has renamed and tagged them.
        let ownership = service_ownership(&self.cluster, input.owner, false, &load_balancer);
        let is_proven = !may_be_of_namesake(input, &load_balancer, &ownership, state);
        if let Some(reason) = self.reason_to_leave(input, &ownership, &load_balancer, is_proven) {
            let note = format!("load balancer {id} {reason} and is not deleted");
            op.event(EventType::Warning, "LoadBalancerOfOtherCluster", &note);
            return Ok(false);
        }
        // Octavia accepts no change of a busy load balancer. One in ERROR can be deleted as a whole.
        match &load_balancer.provisioning_status {
            ProvisioningStatus::Active => state.stop_waiting(),
            ProvisioningStatus::Error => {}
            ProvisioningStatus::PendingDelete => {
                state.deleting_id = Some(id.clone().into());
                return Err(self.stop_as_pending(
                    op,
                    state,
                    &format!("load balancer {id} is being deleted"),
                ));
            }
            other => {
                let reason = format!("load balancer {id} is {other}");
                return Err(self.stop_as_pending(op, state, &reason));
            }
        }
        // Delete it as a whole if nobody else uses it.
        let may_delete_all = is_proven
            && !retention_tags::is_adopted_by_other(&load_balancer, &input.owner.uid)
            && is_made_for_services(&load_balancer, input.owner)
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
        // Otherwise remove only this Service's part.
        if observed.listeners.is_empty() {
            observe::read_children(self.api(op), &mut observed, &ownership).await?;
        }
        state.observed = Some(observed);
        self.remove_from_shared(op, input, state, &ownership, is_proven)
            .await?;
        Ok(true)
    }

    /// Returns the reason why a load balancer is left as it is, or `None`. `is_proven` is false when
    /// it may be a namesake's. Then it is only changed if Services share it, because their
    /// listeners can be told apart.
    fn reason_to_leave(
        &self,
        input: &DeleteInput<'_>,
        ownership: &ServiceOwnership,
        load_balancer: &LoadBalancer,
        is_proven: bool,
    ) -> Option<String> {
        if is_namesakes(input, ownership, load_balancer) {
            return Some("was adopted by another Service of this name".to_owned());
        }
        let is_shared = ownership.other_service_tags(load_balancer).next().is_some();
        if !is_proven && ownership.owner && !is_shared {
            return Some(
                "is not shown to be newer than the Service, which shows no address,".to_owned(),
            );
        }
        let has_own_tag = load_balancer
            .tags
            .iter()
            .any(|tag| ownership.is_own_tag(tag));
        let cluster = names::cluster_of(&load_balancer.name);
        if !ownership.owner && !has_own_tag && !cluster.is_empty() && cluster != &*self.cluster {
            return Some(format!("has the name of cluster {cluster}"));
        }
        None
    }

    /// Returns true if nobody else is known to have listeners on a load balancer: for its owner, no
    /// other Service; otherwise nobody at all, which only tags can show. The load balancer's own
    /// tags cannot tell: when two Services write them at the same time, one overwrites the other's.
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

    /// Returns true if other Services have listeners on a load balancer. Tags count even if Octavia is
    /// not known to support them, because it may only hide its versions.
    pub(super) async fn has_other_services(
        &self,
        op: &Op,
        ownership: &ServiceOwnership,
        id: &str,
    ) -> Result<bool, OpenStackError> {
        let listeners = self.api(op).listeners(id).await?;
        Ok(listeners
            .iter()
            .any(|listener| ownership.is_of_other_service(listener)))
    }

    /// Deletes a whole load balancer. Its floating IP is deleted first, because it is found by the
    /// port of the load balancer.
    async fn delete_load_balancer(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
        mut observed: ObservedLoadBalancer,
    ) -> Result<(), ReconcileStop> {
        let api = self.api(op);
        let reason = "its Service is deleted";
        if !input.keep_floating_ip
            && let Some(port) = &observed.load_balancer.vip_port_id
        {
            floating_ip_sync::release(api, port, None).await?;
        }
        let id = observed.load_balancer.id.clone();
        // Octavia deletes the children of a load balancer in ERROR only together with it.
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
                return Err(self.stop_as_pending(
                    op,
                    state,
                    &format!("load balancer {id} is being emptied"),
                ));
            }
        }
        match api.delete_load_balancer(&id, cascade, reason).await {
            Ok(()) => {}
            Err(error) if error.is_immutable() => {
                return Err(self.stop_as_pending(
                    op,
                    state,
                    &format!("load balancer {id} is busy"),
                ));
            }
            Err(error) => return Err(error.into()),
        }
        state.deleting_id = Some(id.clone().into());
        state.mark_changed(self.sync_states.rounds.now());
        self.wait_until_deleted(op, input, state, &id).await
    }

    /// Stops as pending until the load balancer is deleted. If it does not get deleted after all,
    /// the next call deletes it again.
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
                return Err(self.stop_as_pending(
                    op,
                    state,
                    &format!("load balancer {id} is being deleted"),
                ));
            }
            Some(found) => {
                // The deletion failed or never began, so the next call starts again.
                state.deleting_id = None;
                let status = &found.provisioning_status;
                op.event(
                    EventType::Warning,
                    "LoadBalancerDeleteFailed",
                    &format!("load balancer {id} is {status}"),
                );
                return Err(self.stop_as_pending(
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

    /// Removes this Service's listeners, pools and tag from a load balancer that stays. Unless
    /// `is_proven`, listeners that are older than the Service stay, and so does the tag then.
    async fn remove_from_shared(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
        ownership: &ServiceOwnership,
        is_proven: bool,
    ) -> Result<(), ReconcileStop> {
        let may_remove = |listener: &Listener| {
            let at = listener.created_at.as_deref().and_then(parse_time);
            is_proven || is_created_since(at, input.service.created)
        };
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
                    let reason = format!("load balancer {id} is busy");
                    return Err(self.stop_as_pending(op, state, &reason));
                }
                observed.load_balancer = current;
                continue;
            }
            let tags = self.features.tags;
            let actions = plan::plan_removal_from_shared(observed, ownership, tags, may_remove);
            let Some(action) = actions.first() else {
                report_kept_listeners(op, observed, ownership);
                return Ok(());
            };
            if observed.load_balancer.provisioning_status == ProvisioningStatus::Error {
                let load_balancer = observed.load_balancer.clone();
                return Err(self.fail_over(op, state, &load_balancer).await);
            }
            self.apply_action(op, state, action).await?;
        }
    }
}

/// Reports listeners with a Service's tag that are left, because they may be a namesake's.
fn report_kept_listeners(op: &Op, observed: &ObservedLoadBalancer, ownership: &ServiceOwnership) {
    let kept = observed
        .listeners
        .iter()
        .filter(|listener| ownership.owns_listener(listener));
    let kept: Vec<_> = kept.map(|listener| &*listener.id).collect();
    if !kept.is_empty() {
        let note = format!(
            "listeners of load balancer {} are not shown to be newer than the Service, which shows no address, and are not deleted: {}",
            observed.load_balancer.id,
            kept.join(", ")
        );
        op.event(EventType::Warning, "LoadBalancerOfOtherCluster", &note);
    }
}

/// Returns true if a load balancer is not shown to be newer than the Service, which has never been
/// served by it. It may have been created for another Service of the same name in a cluster of the
/// same name, or may be shared by that one. The annotations prove nothing, because they are part of
/// a copy of the Service. A legacy name has the Service's UID.
pub(super) fn may_be_of_namesake(
    input: &DeleteInput<'_>,
    load_balancer: &LoadBalancer,
    ownership: &ServiceOwnership,
    state: &LoadBalancerSyncState,
) -> bool {
    let has_legacy_name = ownership.owner && *load_balancer.name != *ownership.name;
    !has_legacy_name
        && !retention_tags::is_adopted_by(load_balancer, &input.owner.uid)
        && !observe::shows_address(input.service)
        && state.created_id.as_deref() != Some(&*load_balancer.id)
        && !is_created_since(created_at(load_balancer), input.service.created)
}

/// Returns true if another Service of the same name has adopted a load balancer.
pub(super) fn is_namesakes(
    input: &DeleteInput<'_>,
    ownership: &ServiceOwnership,
    load_balancer: &LoadBalancer,
) -> bool {
    *load_balancer.name == *ownership.name
        && retention_tags::is_adopted_by_other(load_balancer, &input.owner.uid)
}

/// Returns true if an object was created when the Service existed, as far as the clocks can tell.
fn is_created_since(at: Option<Timestamp>, service_created: Timestamp) -> bool {
    at.is_some_and(|at| at.duration_since(service_created) >= -MAX_CLOCK_DIFFERENCE)
}

/// Reports that a deleted Service names a load balancer that another one let go.
fn report_foreign(op: &Op, id: &str) {
    let note = format!("load balancer {id} was let go by its Service and is not deleted");
    op.event(EventType::Warning, "LoadBalancerRetained", &note);
}
