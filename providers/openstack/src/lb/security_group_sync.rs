//! Syncs the security group of a Service, which admits its load balancer to the nodes.

use ccm_core::provider::{CloudError, Op, Progress};

use super::{
    model::SecurityGroupSpec,
    names,
    observed::ObservedLoadBalancer,
    reconcile::{LoadBalancerReconciler, ReconcileStop},
    reconcile_input::ReconcileInput,
    security_groups::{SecurityGroupManager, SecurityGroupTask, Surplus},
    sync_state::{LoadBalancerSyncState, SecurityGroupSyncState, changed_meanwhile},
};

impl<'a> SecurityGroupTask<'a> {
    /// Builds the task for a load balancer.
    ///
    /// # Errors
    /// Returns an error if neither the configuration nor the load balancer names a subnet for
    /// members.
    pub(super) fn new(
        group: &'a SecurityGroupSpec,
        input: &'a ReconcileInput<'_>,
        observed: &'a ObservedLoadBalancer,
    ) -> Result<Self, CloudError> {
        let Some(subnet) = input.subnet_of_new_members(observed) else {
            return Err(CloudError::invalid_input(
                "the subnet of members is not known: name it by member-subnet-id",
            ));
        };
        Ok(Self {
            group,
            owner_uid: &input.desired.owner.uid,
            subnet,
            backends: &input.backends,
        })
    }
}

impl LoadBalancerReconciler {
    /// Syncs the security group. If none is desired, deletes the one that an earlier configuration
    /// created.
    pub(super) async fn sync_security_group(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let observed = state.observed.as_ref().ok_or_else(changed_meanwhile)?;
        let Some(group) = &input.desired.security_group else {
            return self.delete_undesired_security_group(op, input).await;
        };
        let task = SecurityGroupTask::new(group, input, observed)?;
        let surplus = self
            .ensure_rules(op, task, &mut state.security_group)
            .await?;
        SecurityGroupManager::revoke(self.api(op), &surplus).await?;
        state.security_group.last_applied = Some(task.digest());
        Ok(())
    }

    async fn delete_undesired_security_group(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
    ) -> Result<(), ReconcileStop> {
        let owner = &input.desired.owner;
        let name = names::security_group(&owner.uid, &owner.namespace, &owner.name);
        if self.security_groups.may_exist(self.api(op), &name).await?
            && self.is_group_of_retained(op, &owner.uid).await?
        {
            return Ok(());
        }
        match self
            .security_groups
            .remove(self.api(op), &name, |_| true)
            .await?
        {
            Progress::Done => Ok(()),
            pending @ Progress::Pending { .. } => Err(ReconcileStop::Pending(pending)),
        }
    }

    /// Admits the load balancer to its nodes at the ports that it serves now. Other rules stay,
    /// because listeners that could not be changed yet may still need them.
    pub(super) async fn admit_existing_ports(
        &self,
        op: &Op,
        input: &ReconcileInput<'_>,
        state: &mut LoadBalancerSyncState,
    ) -> Result<(), ReconcileStop> {
        let observed = state.observed.as_ref().ok_or_else(changed_meanwhile)?;
        let ownership = self.service_ownership(input, &observed.load_balancer);
        let Some(group) = self
            .plan_input(input, observed, &ownership)
            .current_security_group(input.desired)
        else {
            return Ok(());
        };
        let task = SecurityGroupTask::new(&group, input, observed)?;
        self.ensure_rules(op, task, &mut state.security_group)
            .await?;
        Ok(())
    }

    /// Creates missing rules and adds the group to ports, unless this is known to be done. Returns
    /// the IDs of surplus rules.
    pub(super) async fn ensure_rules(
        &self,
        op: &Op,
        task: SecurityGroupTask<'_>,
        state: &mut SecurityGroupSyncState,
    ) -> Result<Vec<String>, CloudError> {
        let digest = task.digest();
        if state.last_applied == Some(digest) {
            return Ok(Vec::new());
        }
        state.last_applied = None;
        let mut surplus = Surplus::default();
        if !self.listing_shows_in_sync(op, task, state).await? {
            surplus = self
                .security_groups
                .ensure_rules(self.api(op), task)
                .await?;
        }
        // A load balancer that this Service let go of, before it got another one, is still admitted.
        if surplus.may_be_needed() && self.is_group_of_retained(op, task.owner_uid).await? {
            surplus = Surplus::default();
        }
        self.security_groups
            .leave_ports(self.api(op), &surplus)
            .await?;
        if surplus.rules.is_empty() {
            state.last_applied = Some(digest);
        }
        Ok(surplus.rules)
    }

    /// Returns true if the shared listing shows the security group in its desired state.
    pub(super) async fn listing_shows_in_sync(
        &self,
        op: &Op,
        task: SecurityGroupTask<'_>,
        state: &mut SecurityGroupSyncState,
    ) -> Result<bool, CloudError> {
        let Some(listed) = state.take_listed() else {
            return Ok(false);
        };
        self.security_groups
            .listing_shows_in_sync(self.api(op), task, &listed)
            .await
    }
}
