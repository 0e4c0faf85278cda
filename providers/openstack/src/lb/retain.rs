//! Lets go of the load balancer of a Service, instead of deleting it.

use std::net::IpAddr;

use ccm_core::provider::{CloudError, ErrorKind, Op, Progress, RetainOutcome};
use openstack_api::octavia::ProvisioningStatus;

use super::{
    delete::{DeleteInput, is_namesakes, may_be_of_namesake},
    names,
    observe::{self, LoadBalancerQuery},
    observed::ObservedLoadBalancer,
    ownership::{ServiceOwnership, service_ownership},
    plan::{
        PlannedAction,
        retention::{RetainInput, plan_retain, plan_return},
    },
    reconcile::{LoadBalancerReconciler, ReconcileStop},
    retention_tags,
    sync_state::LoadBalancerSyncState,
};
use crate::{api::octavia::LoadBalancer, client::OpenStackError};

impl LoadBalancerReconciler {
    /// Marks the load balancer of a Service, so that it belongs to nobody. Nothing else is changed.
    pub(super) async fn retain(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
    ) -> Result<RetainOutcome, CloudError> {
        let uid = &input.owner.uid;
        let mut state = self.sync_states.take(uid);
        let result = self.retain_found(op, input, &mut state).await;
        let result = match result {
            Ok(outcome) => Ok(outcome),
            Err(ReconcileStop::Pending(Progress::Pending { after, reason })) => {
                Ok(RetainOutcome::Pending { after, reason })
            }
            Err(ReconcileStop::Pending(Progress::Done)) => {
                Err(CloudError::transient("it is not known yet"))
            }
            Err(ReconcileStop::Failed(error)) => Err(error),
        };
        match &result {
            Ok(RetainOutcome::Pending { .. }) => {
                state.listings_stale_until = Some(self.sync_states.rounds.now());
                self.sync_states.put(uid, state);
            }
            Ok(_) => self.sync_states.forget(uid),
            Err(_) => {
                let mut retained = state.after_failed_deletion();
                retained.mark_changed(self.sync_states.rounds.now());
                self.sync_states.put(uid, retained);
            }
        }
        result
    }

    async fn retain_found(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<RetainOutcome, ReconcileStop> {
        // First, find the load balancer, and wait until Octavia accepts a change of it.
        let Some(load_balancer) = self.find_to_retain(op, input).await? else {
            let ServiceNames { name, uid } = self.names_of(input);
            let reason = format!(
                "no load balancer is the Service's by its ID, its name {name} or its tag {uid}"
            );
            return Ok(RetainOutcome::NothingToRetain { reason: reason.into() });
        };
        if load_balancer.provisioning_status.is_pending() {
            let LoadBalancer { id, provisioning_status, .. } = &load_balancer;
            let reason = format!("load balancer {id} is {provisioning_status}");
            return Err(self.stop_as_pending(op, state, &reason));
        }
        // Next, see whether it has the mark. An earlier call may have set it.
        if retention_tags::is_retained(&load_balancer) {
            if retention_tags::is_adopted_by(&load_balancer, &input.owner.uid) {
                return Err(self.give_back(op, input, state, load_balancer).await);
            }
            return Ok(self.describe_retained(op, input, &load_balancer).await?);
        }
        // Then set it. The next call sees whether Octavia has done so.
        let ownership = self.ownership_to_retain(op, input, &load_balancer).await?;
        let action = plan_retain(&RetainInput {
            load_balancer: &load_balancer,
            ownership: &ownership,
            uid: &input.owner.uid,
            is_proven: !may_be_of_namesake(input, &load_balancer, &ownership, state),
            has_other_services: self
                .has_other_services(op, &ownership, &load_balancer.id)
                .await?,
            tags: self.features.tags,
        })?;
        Err(self.mark(op, state, load_balancer, &action).await)
    }

    /// Gives up an adoption that has begun, because its Service goes. The load balancer is kept.
    pub(super) async fn give_back(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        state: &mut LoadBalancerSyncState,
        load_balancer: LoadBalancer,
    ) -> ReconcileStop {
        let ServiceNames { name, .. } = self.names_of(input);
        let action = plan_return(&load_balancer, &name, &input.owner.uid);
        self.mark(op, state, load_balancer, &action).await
    }

    /// Sends the update after which a load balancer belongs to nobody. The next call sees whether
    /// Octavia has done it.
    async fn mark(
        &self,
        op: &Op,
        state: &mut LoadBalancerSyncState,
        load_balancer: LoadBalancer,
        action: &PlannedAction,
    ) -> ReconcileStop {
        let id = load_balancer.id.clone();
        match &load_balancer.provisioning_status {
            ProvisioningStatus::Active => {}
            ProvisioningStatus::Error => {
                let message = format!(
                    "load balancer {id} cannot be marked as kept, because it is in error; fail it over, or decide in \
                     the cloud what becomes of it"
                );
                return CloudError::new(ErrorKind::Conflict, message).into();
            }
            busy => {
                let reason = format!("load balancer {id} is {busy}");
                return self.stop_as_pending(op, state, &reason);
            }
        }
        state.observed = Some(ObservedLoadBalancer::new(load_balancer));
        match self.apply_action(op, state, action).await {
            Ok(()) => self.stop_as_pending(
                op,
                state,
                &format!("load balancer {id} is being marked as kept"),
            ),
            Err(stop) => stop,
        }
    }

    /// Finds the load balancer of a Service: by its ID, its name, or the mark that an earlier call set.
    /// Returns `None` if it is certain that none is the Service's.
    async fn find_to_retain(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
    ) -> Result<Option<LoadBalancer>, ReconcileStop> {
        let api = self.api(op);
        let by_id = LoadBalancerQuery {
            served: true,
            adopted: None,
            ..LoadBalancerQuery::for_service(&self.cluster, input.owner, input.service)
        };
        let by_name = LoadBalancerQuery { id: None, ..by_id.clone() };
        // What the ID leads to may belong to another Service by now.
        let queries = [by_id.id.is_some().then_some(by_id.clone()), Some(by_name)];
        for query in queries.into_iter().flatten() {
            if let Some(found) = observe::find_load_balancer(api, &query).await?
                && self.may_be_of_service(op, input, &found).await?
            {
                return Ok(Some(found));
            }
        }
        let uid = &input.owner.uid;
        for tag in [retention_tags::adopter_uid_tag(uid), retention_tags::former_uid_tag(uid)] {
            if let Some(found) = self.find_newest_by_tag(op, &tag).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns true unless it is certain that a load balancer is not a Service's any more: another Service
    /// let go of it, or has adopted it and does not share it with this one.
    async fn may_be_of_service(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        load_balancer: &LoadBalancer,
    ) -> Result<bool, OpenStackError> {
        let uid = &input.owner.uid;
        if retention_tags::is_retained(load_balancer) {
            return Ok(retention_tags::is_retained_by(load_balancer, uid)
                || retention_tags::is_adopted_by(load_balancer, uid));
        }
        if !retention_tags::is_adopted_by_other(load_balancer, uid) {
            return Ok(true);
        }
        let ownership = self.ownership_to_retain(op, input, load_balancer).await?;
        if is_namesakes(input, &ownership, load_balancer) {
            return Ok(false);
        }
        let listeners = self.api(op).listeners(&load_balancer.id).await?;
        let is_shared = load_balancer
            .tags
            .iter()
            .any(|tag| ownership.is_own_tag(tag));
        Ok(is_shared
            || listeners
                .iter()
                .any(|listener| ownership.owns_listener(listener)))
    }

    /// Determines the relation of a Service to a load balancer. After a rename of the cluster it may
    /// still have its former name. Then the Service must show its address, which no other Service does.
    async fn ownership_to_retain(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        load_balancer: &LoadBalancer,
    ) -> Result<ServiceOwnership, OpenStackError> {
        let ownership = |shows_address| {
            service_ownership(&self.cluster, input.owner, shows_address, load_balancer)
        };
        if ownership(false) == ownership(true) {
            return Ok(ownership(false));
        }
        let shown = observe::shown_addresses(input.service);
        let mut addresses: Vec<IpAddr> = Vec::new();
        let vip = load_balancer.vip_address.as_deref();
        if let Some(vip) = vip.and_then(|text| text.parse::<IpAddr>().ok()) {
            addresses.push(vip);
        }
        if let Some(port) = &load_balancer.vip_port_id {
            let floating_ips = self.api(op).floating_ips(&[("port_id", port)]).await?;
            addresses.extend(
                floating_ips
                    .iter()
                    .filter_map(|found| found.floating_ip_address),
            );
        }
        Ok(ownership(addresses.iter().any(|address| shown.contains(address))))
    }

    /// Finds the load balancer with a tag that contains the UID of a Service; `None` if Octavia has no
    /// tags. A Service may have let go of several. Then it is the newest.
    pub(super) async fn find_newest_by_tag(
        &self,
        op: &Op,
        tag: &str,
    ) -> Result<Option<LoadBalancer>, OpenStackError> {
        if !self.features.tags {
            return Ok(None);
        }
        let found = observe::find_by_tag(self.api(op), tag).await?;
        Ok(found
            .into_iter()
            .max_by(|a, b| a.created_at.cmp(&b.created_at)))
    }

    /// Says what stays.
    async fn describe_retained(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
        load_balancer: &LoadBalancer,
    ) -> Result<RetainOutcome, OpenStackError> {
        let LoadBalancer { id, name, listeners, pools, .. } = load_balancer;
        let mut kept = vec![format!(
            "load balancer {name} with {} listeners and {} pools",
            listeners.len(),
            pools.len()
        )];
        if let Some(port) = &load_balancer.vip_port_id {
            for floating_ip in self.api(op).floating_ips(&[("port_id", port)]).await? {
                if let Some(address) = floating_ip.floating_ip_address {
                    kept.push(format!("floating IP {address}"));
                }
            }
        }
        if self.settings.manage_security_groups {
            let owner = input.owner;
            let group = names::security_group(&owner.uid, &owner.namespace, &owner.name);
            kept.push(format!("security group {group} of the nodes"));
        }
        Ok(RetainOutcome::Retained { id: id.as_str().into(), kept: kept.join(", ").into() })
    }

    /// Returns true if a load balancer that a Service let go still needs the Service's security group.
    pub(super) async fn is_group_of_retained(
        &self,
        op: &Op,
        uid: &str,
    ) -> Result<bool, OpenStackError> {
        let found = self
            .find_newest_by_tag(op, &retention_tags::former_uid_tag(uid))
            .await?;
        Ok(found.is_some_and(|load_balancer| retention_tags::is_retained_by(&load_balancer, uid)))
    }

    fn names_of(&self, input: &DeleteInput<'_>) -> ServiceNames {
        let owner = input.owner;
        ServiceNames {
            name: names::load_balancer(&self.cluster, &owner.namespace, &owner.name),
            uid: retention_tags::former_uid_tag(&owner.uid),
        }
    }
}

/// The name and the tag by which the load balancer of a Service is found.
struct ServiceNames {
    name: Box<str>,
    uid: String,
}
