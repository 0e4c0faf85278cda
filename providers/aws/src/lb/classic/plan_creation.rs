//! Plans a classic load balancer that does not exist yet, for shadow mode.

use ccm_core::provider::{CloudError, LbSpec, Op, PlannedChange};

use super::{
    apply::choose_subnets,
    model::DesiredClassic,
    plan::{self, ClassicPlanInput},
    service::planned,
};
use crate::{
    api::{InstanceId, classic::ClassicAccessLog},
    lb::{
        NetworkLoadBalancers,
        security_groups::classic::{ClassicRuleRequest, group_name},
    },
};

impl NetworkLoadBalancers {
    /// Plans the load balancer with all that follows: its security group, settings that AWS takes only
    /// afterwards, rules, instances and the status.
    pub(super) async fn plan_new_classic(
        &self,
        op: &Op,
        desired: &DesiredClassic,
        lb_spec: &LbSpec,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let name = &desired.name;
        let manager = &self.reconciler.deps.security_groups;
        let mut changes = Vec::new();
        // The security group and the load balancer.
        let groups = manager.plan_classic_groups(op, desired).await?;
        if groups.is_none() {
            let reason = "the load balancer needs it";
            changes.push(planned("CreateSecurityGroup", &group_name(name), reason));
        }
        changes.push(planned("CreateLoadBalancer", name, "the Service needs it"));
        // What AWS takes only afterwards.
        let (subnets, zones) = choose_subnets(op, &self.reconciler, desired, &[]).await?;
        let scope = &self.reconciler.scope;
        let attached = groups.clone().unwrap_or_default();
        let request = plan::creation(desired, &scope.cluster, &attached, &subnets);
        let removed_log_settings = ClassicAccessLog::default();
        let input = ClassicPlanInput { groups, subnets, zones, removed_log_settings };
        let made = plan::created(&request, Box::default());
        let actions = plan::changes(desired, &input, &made);
        changes.extend(actions.iter().map(|action| action.describe(name)));
        // Rules and instances.
        let instances = self.desired_instances(op, None, lb_spec).await;
        let instances: Vec<InstanceId> = instances
            .into_iter()
            .flat_map(|desired| desired.instances)
            .collect();
        let rules = ClassicRuleRequest {
            name,
            groups: &attached,
            requested: &desired.groups,
            instances: &instances,
        };
        changes.extend(match input.groups {
            Some(_) => {
                manager
                    .plan_classic_rules(op, Some(desired), &rules)
                    .await?
            }
            None => manager.plan_new_classic_rules(op, desired, &rules).await?,
        });
        if !instances.is_empty() {
            let operation = "RegisterInstancesWithLoadBalancer";
            changes.push(planned(operation, name, "instances are missing"));
        }
        changes.push(planned("publish_status", name, "the status does not show it"));
        Ok(changes)
    }
}
