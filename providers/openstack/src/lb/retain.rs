//! Lets go of the load balancer of a Service, instead of deleting it.

use ccm_core::provider::{CloudError, ErrorKind, Op, Progress, RetainOutcome};
use openstack_api::octavia::ProvisioningStatus;

use super::{
    delete::{DeleteInput, may_be_of_namesake, report_foreign},
    model::ServiceKey,
    names, observe,
    observed::ObservedLoadBalancer,
    ownership::service_ownership,
    plan::retention::{self, RetainInput, plan_retain},
    reconcile::{LoadBalancerReconciler, ReconcileStop},
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
            return Ok(RetainOutcome::NothingToRetain);
        };
        let id = load_balancer.id.clone();
        let status = &load_balancer.provisioning_status;
        if *status == ProvisioningStatus::PendingDelete {
            let message = format!("load balancer {id} is being deleted already");
            return Err(CloudError::new(ErrorKind::Conflict, message).into());
        }
        if status.is_pending() {
            let reason = format!("load balancer {id} is {status}");
            return Err(self.stop_as_pending(op, state, &reason));
        }
        // Next, see whether it has the mark. An earlier call may have set it.
        if retention::is_retained(&load_balancer) {
            if retention::former_uid(&load_balancer) == Some(&*input.owner.uid) {
                return Ok(self.describe_retained(op, input, &load_balancer).await?);
            }
            report_foreign(op, &id);
            return Ok(RetainOutcome::NothingToRetain);
        }
        // Then set it. The next call sees whether Octavia has done so.
        let ownership = service_ownership(&self.cluster, input.owner, false, &load_balancer);
        let action = plan_retain(&RetainInput {
            load_balancer: &load_balancer,
            ownership: &ownership,
            uid: &input.owner.uid,
            is_proven: !may_be_of_namesake(input, &load_balancer, &ownership, state),
            has_other_services: self.has_other_services(op, &ownership, &id).await?,
            tags: self.features.tags,
        })?;
        if *status == ProvisioningStatus::Error {
            let message = format!(
                "load balancer {id} cannot be marked, because it is in error; fail it over, or decide in the cloud what \
                 becomes of it"
            );
            return Err(CloudError::new(ErrorKind::Conflict, message).into());
        }
        state.observed = Some(ObservedLoadBalancer::new(load_balancer));
        self.apply_action(op, state, &action).await?;
        Err(self.stop_as_pending(op, state, &format!("load balancer {id} is being marked")))
    }

    /// Finds the load balancer of a Service, or else the one that an earlier call marked, which has
    /// another name since.
    async fn find_to_retain(
        &self,
        op: &Op,
        input: &DeleteInput<'_>,
    ) -> Result<Option<LoadBalancer>, ReconcileStop> {
        if let Some(found) = self.find_for_deletion(op, input).await? {
            return Ok(Some(found));
        }
        let ServiceKey { namespace, name, uid } = input.owner;
        let own = names::load_balancer(&self.cluster, namespace, name);
        let marked = observe::find_by_name(self.api(op), &retention::retained_name(&own)).await?;
        Ok(marked
            .into_iter()
            .find(|found| retention::former_uid(found) == Some(&**uid)))
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

    /// Returns true if a load balancer that a Service let go still needs the Service's security
    /// group. Any that cannot be read may.
    pub(super) async fn is_group_of_retained(
        &self,
        op: &Op,
        uid: &str,
    ) -> Result<bool, OpenStackError> {
        let load_balancers = self.api(op).all_load_balancers().await?.complete()?;
        Ok(load_balancers
            .iter()
            .any(|load_balancer| retention::former_uid(load_balancer) == Some(uid)))
    }
}
