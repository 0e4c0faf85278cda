//! Applies the plan of a classic load balancer.

use std::collections::BTreeMap;

use ccm_core::provider::{CloudError, Op};
use tokio::time::Instant;

use super::{
    ClassicLoadBalancers, INVISIBLE_RETRY_DELAY,
    model::DesiredClassic,
    plan::{self, ClassicAction, ClassicPlanInput, ObservedClassic},
};
use crate::{
    api::{AwsError, InstanceId, SecurityGroupId, SubnetId},
    client,
    lb::{
        plan::subnets,
        reconcile::{LoadBalancerReconciler, as_transient},
        security_groups::classic::ClassicRuleRequest,
    },
};

impl ClassicLoadBalancers {
    /// Creates the load balancer if there is none, and applies all differences but the instances.
    pub(super) async fn apply(
        &self,
        op: &Op,
        reconciler: &LoadBalancerReconciler,
        desired: &DesiredClassic,
        observed: &mut Option<ObservedClassic>,
        instances: &[InstanceId],
    ) -> Result<(), CloudError> {
        // Choose security groups and subnets.
        let attached = observed
            .as_ref()
            .map_or(&[][..], |observed| &observed.resource.security_groups);
        let groups = reconciler
            .deps
            .security_groups
            .ensure_classic_groups(op, desired, attached)
            .await?;
        let current = observed
            .as_ref()
            .map_or(&[][..], |observed| &observed.resource.subnets);
        let (subnets, zones) = choose_subnets(op, reconciler, desired, current).await?;
        // Create the load balancer.
        let existing = match observed.take() {
            Some(existing) => existing,
            None => {
                self.create(op, reconciler, desired, &groups, &subnets)
                    .await?
            }
        };
        let existing = observed.insert(existing);
        // Apply the differences.
        let removed_log_settings = self.removed_log_settings(desired);
        let input = ClassicPlanInput { groups: Some(groups), subnets, zones, removed_log_settings };
        for action in plan::changes(desired, &input, existing) {
            if let ClassicAction::SetSecurityGroups(change) = &action {
                // Nodes must admit the new groups before the load balancer loses the old ones.
                let request = ClassicRuleRequest {
                    name: &desired.name,
                    groups: &change.groups,
                    requested: &desired.groups,
                    instances,
                };
                let manager = &reconciler.deps.security_groups;
                manager.admit_classic(op, &request).await?;
                let before = existing.resource.security_groups.iter();
                let detached: Vec<SecurityGroupId> = before
                    .filter(|group| !change.groups.contains(group))
                    .cloned()
                    .collect();
                manager
                    .mark_replaced_classic_group(op, &desired.owner, &detached)
                    .await?;
                let uid = desired.owner.uid.clone();
                self.detached
                    .lock()
                    .entry(uid)
                    .or_default()
                    .extend(detached);
            }
            self.send(op, reconciler, desired, &action).await?;
            if let ClassicAction::SetSecurityGroups(change) = action {
                existing.resource.security_groups = change.groups;
            }
        }
        self.missing_object.lock().remove(&desired.owner.uid);
        Ok(())
    }

    async fn create(
        &self,
        op: &Op,
        reconciler: &LoadBalancerReconciler,
        desired: &DesiredClassic,
        groups: &[SecurityGroupId],
        subnets: &[SubnetId],
    ) -> Result<ObservedClassic, CloudError> {
        let request = plan::creation(desired, &self.scope.cluster, groups, subnets);
        let reason = "the Service needs it";
        // Its answer may be lost.
        let uid = desired.owner.uid.clone();
        self.created.lock().insert(uid, Instant::now());
        match self.scope.client.write(op, request.clone(), reason).await {
            Ok(dns_name) => Ok(plan::created(&request, dns_name)),
            // An earlier request whose answer was lost may have created it.
            Err(error) if error.has_code("DuplicateLoadBalancerName") => {
                let message =
                    format!("load balancer {} exists but is not visible yet", desired.name);
                Err(CloudError::transient(message).with_retry_after(INVISIBLE_RETRY_DELAY))
            }
            Err(error) => Err(self.failure(reconciler, desired, error)),
        }
    }

    /// Sends the request of an action. A policy that exists already is no error.
    async fn send(
        &self,
        op: &Op,
        reconciler: &LoadBalancerReconciler,
        desired: &DesiredClassic,
        action: &ClassicAction,
    ) -> Result<(), CloudError> {
        use ClassicAction as A;

        let (client, reason) = (&self.scope.client, action.reason());
        let result = match action.clone() {
            A::SetSecurityGroups(request) => client.write(op, request, reason).await,
            A::AttachSubnets(request) => client.write(op, request, reason).await,
            A::DetachSubnets(request) => client.write(op, request, reason).await,
            A::DeleteListeners(request) => client.write(op, request, reason).await,
            A::CreateListeners(request) => client.write(op, request, reason).await,
            A::CreatePolicy(request) => client.write(op, request, reason).await,
            A::SetBackendPolicies(request) => client.write(op, request, reason).await,
            A::SetListenerPolicies(request) => client.write(op, request, reason).await,
            A::ConfigureHealthCheck(request) => client.write(op, request, reason).await,
            A::ModifyAttributes(request) => client.write(op, request, reason).await,
            A::AddTags(request) => client.write(op, request, reason).await,
        };
        match result {
            Err(error)
                if error.has_code("DuplicatePolicyName")
                    && matches!(action, A::CreatePolicy(_)) =>
            {
                Ok(())
            }
            Err(error) => Err(self.failure(reconciler, desired, error)),
            Ok(()) => Ok(()),
        }
    }

    /// Returns the error of a request that AWS refused. What AWS does not find, such as a certificate, may
    /// be as new as the Service, and is soon tried again.
    fn failure(
        &self,
        reconciler: &LoadBalancerReconciler,
        desired: &DesiredClassic,
        error: AwsError,
    ) -> CloudError {
        forget_unknown_subnets(reconciler, &error);
        let is_missing = client::is_object_missing(error.code());
        let error = as_transient(error.into());
        if !is_missing {
            return error;
        }
        let mut retries = self.missing_object.lock();
        retries
            .entry(desired.owner.uid.clone())
            .or_default()
            .shorten_delay(desired, error)
    }
}

/// Returns the desired subnets, and the zones of these and of the current ones.
pub(super) async fn choose_subnets(
    op: &Op,
    reconciler: &LoadBalancerReconciler,
    desired: &DesiredClassic,
    current: &[SubnetId],
) -> Result<(Vec<SubnetId>, BTreeMap<SubnetId, Box<str>>), CloudError> {
    let scope = &reconciler.scope;
    reconciler
        .deps
        .vpc
        .choose(op, |vpc| {
            let chosen = subnets::choose_for_classic(
                vpc,
                &scope.cluster,
                &scope.settings,
                desired.scheme,
                &desired.subnets,
            )?;
            let mut zones = BTreeMap::new();
            for id in chosen.iter().chain(current) {
                if let Some(subnet) = vpc.subnet(id) {
                    zones.insert(id.clone(), subnet.zone.clone());
                }
            }
            Ok((chosen, zones))
        })
        .await
}

/// Drops the cached subnets if AWS rejected a request because one of them does not exist.
fn forget_unknown_subnets(reconciler: &LoadBalancerReconciler, error: &AwsError) {
    let is_subnet_unknown = ["SubnetNotFound", "InvalidSubnet"]
        .iter()
        .any(|code| error.has_code(code));
    if is_subnet_unknown {
        reconciler.deps.vpc.forget();
    }
}
