//! Classic load balancers that upstream created. We create none: we only update the instances of
//! existing ones, and delete them.

pub(in crate::lb) mod existing;

use std::collections::BTreeSet;

use ccm_core::provider::{CloudError, ErrorKind, Op, Progress};

use crate::lb::{
    names,
    security_groups::{in_use, references},
};
use crate::{
    api::{
        AwsError, Filter, InstanceId, SecurityGroupId,
        ec2::{
            DeleteSecurityGroup, DescribeSecurityGroups, RevokeSecurityGroupIngress, SecurityGroup,
        },
        elb::{
            ClassicLoadBalancer, DeleteClassic, DeregisterClassic, DescribeClassic,
            DescribeClassicTags, RegisterClassic,
        },
    },
    scope::Scope,
};

/// Maximum number of instances per request.
const MAX_INSTANCES: usize = 200;

/// Manages the classic load balancers of the cluster.
pub struct ClassicLoadBalancers {
    scope: Scope,
}

/// A classic load balancer that was found by name.
struct FoundClassic {
    load_balancer: ClassicLoadBalancer,
    is_owned: bool,
}

impl ClassicLoadBalancers {
    /// Creates a manager.
    pub fn new(scope: Scope) -> Self {
        Self { scope }
    }

    /// Finds the classic load balancer of a Service, by the name that upstream gives it, if this
    /// cluster owns it.
    ///
    /// # Errors
    /// Errors of AWS.
    pub async fn find(
        &self,
        op: &Op,
        uid: &str,
    ) -> Result<Option<ClassicLoadBalancer>, CloudError> {
        match self.find_by_name(op, &names::load_balancer(uid)).await? {
            Some(FoundClassic { load_balancer, is_owned: true }) => Ok(Some(load_balancer)),
            _ => Ok(None),
        }
    }

    /// Registers and deregisters instances. Registers first, so that the load balancer is never
    /// left with fewer instances than before or after.
    ///
    /// # Errors
    /// Errors of AWS.
    pub async fn sync_instances(
        &self,
        op: &Op,
        load_balancer: &ClassicLoadBalancer,
        desired: &[InstanceId],
    ) -> Result<(), CloudError> {
        let observed: BTreeSet<_> = load_balancer.instances.iter().collect();
        let desired: BTreeSet<_> = desired.iter().collect();
        let surplus: Vec<_> = observed.difference(&desired).copied().cloned().collect();
        let missing: Vec<_> = desired.difference(&observed).copied().cloned().collect();
        let client = &self.scope.client;
        for instances in missing.chunks(MAX_INSTANCES) {
            let request = RegisterClassic {
                name: load_balancer.name.clone(),
                instances: instances.to_vec(),
            };
            client.write(op, request, "nodes joined").await?;
        }
        for instances in surplus.chunks(MAX_INSTANCES) {
            let request = DeregisterClassic {
                name: load_balancer.name.clone(),
                instances: instances.to_vec(),
            };
            client.write(op, request, "nodes left").await?;
        }
        Ok(())
    }

    /// Returns true if [`sync_instances`](Self::sync_instances) would register or deregister
    /// instances.
    pub fn instances_differ(load_balancer: &ClassicLoadBalancer, desired: &[InstanceId]) -> bool {
        let observed: BTreeSet<_> = load_balancer.instances.iter().collect();
        let desired: BTreeSet<_> = desired.iter().collect();
        observed != desired
    }

    /// Deletes the classic load balancer of a Service, the security group that upstream created for
    /// it, and the rules in the cluster's groups that refer to that group, as far as the cluster
    /// owns them. Succeeds if nothing exists, and continues an interrupted deletion even if only
    /// the group is left. Returns [`Progress::Pending`] while the group is in use.
    ///
    /// # Errors
    /// Errors of AWS, but never [`NotFound`](ErrorKind::NotFound).
    pub async fn delete(&self, op: &Op, uid: &str) -> Result<Progress, CloudError> {
        let name = names::load_balancer(uid);
        match self.find_by_name(op, &name).await? {
            Some(FoundClassic { is_owned: false, .. }) => return Ok(Progress::Done),
            Some(FoundClassic { load_balancer, .. }) => {
                let request = DeleteClassic { name: load_balancer.name };
                self.scope
                    .client
                    .write(op, request, "the Service needs none")
                    .await
                    .map_err(as_conflict)?;
            }
            None => {}
        }
        let group = format!("k8s-elb-{name}");
        let found = self
            .list_groups(op, Filter::new("group-name", [&*group]))
            .await?;
        let protected = self.scope.settings.protected_security_group.as_ref();
        let may_delete = |found: &SecurityGroup| {
            let is_owned = *found.name == *group && self.scope.cluster.owns(&found.tags);
            is_owned && protected != Some(&found.id)
        };
        match found.into_iter().find(may_delete) {
            Some(group) => self.delete_security_group(op, &group.id).await,
            None => Ok(Progress::Done),
        }
    }

    /// Deletes a security group, after the rules in other groups that refer to it.
    async fn delete_security_group(
        &self,
        op: &Op,
        id: &SecurityGroupId,
    ) -> Result<Progress, CloudError> {
        let client = &self.scope.client;
        if !self.scope.settings.disable_security_group_ingress {
            for group in self
                .list_groups(op, Filter::new("ip-permission.group-id", [&**id]))
                .await?
            {
                let rules = references(&group, id);
                if group.id == *id || rules.is_empty() || !self.scope.cluster.has(&group.tags) {
                    continue;
                }
                let request = RevokeSecurityGroupIngress { id: group.id, rules };
                match client.write(op, request, &format!("{id} is deleted")).await {
                    Err(error) if error.has_code("InvalidPermission.NotFound") => {}
                    result => result.map_err(as_conflict)?,
                }
            }
        }
        match client
            .write(op, DeleteSecurityGroup { id: id.clone() }, "its load balancer is deleted")
            .await
        {
            Err(error) if error.has_code("DependencyViolation") => Ok(in_use(op, id)),
            Err(error) if !error.has_code("InvalidGroup.NotFound") => Err(as_conflict(error)),
            _ => Ok(Progress::Done),
        }
    }

    /// Finds a load balancer by name, and checks by its tags whether the cluster owns it.
    async fn find_by_name(&self, op: &Op, name: &str) -> Result<Option<FoundClassic>, CloudError> {
        let client = &self.scope.client;
        let request = DescribeClassic { names: vec![name.into()], token: None };
        let found = match client
            .read_all(op, request, |r, token| r.token = Some(token))
            .await
        {
            Err(error) if error.has_code("LoadBalancerNotFound") => return Ok(None),
            result => result?,
        };
        let found = found.into_iter().find(|found| *found.name == *name);
        let Some(load_balancer) = found else {
            return Ok(None);
        };
        let request = DescribeClassicTags { names: vec![name.into()] };
        let tags = match client.read(op, request).await {
            Err(error) if error.has_code("LoadBalancerNotFound") => return Ok(None),
            result => result?,
        };
        let is_owned = tags
            .iter()
            .any(|(tagged, tags)| **tagged == *name && self.scope.cluster.owns(tags));
        Ok(Some(FoundClassic { load_balancer, is_owned }))
    }

    /// Lists the security groups of the VPC that match a filter.
    async fn list_groups(&self, op: &Op, filter: Filter) -> Result<Vec<SecurityGroup>, CloudError> {
        let filters = vec![Filter::new("vpc-id", [&*self.scope.vpc]), filter];
        let request = DescribeSecurityGroups { filters, ..Default::default() };
        Ok(self
            .scope
            .client
            .read_all(op, request, |r, token| r.token = Some(token))
            .await?)
    }
}

/// Turns NotFound into a conflict, because a missing part does not prove that everything is
/// deleted.
fn as_conflict(error: AwsError) -> CloudError {
    let error = CloudError::from(error);
    match error.kind() {
        ErrorKind::NotFound => CloudError::new(ErrorKind::Conflict, error.to_string()),
        _ => error,
    }
}

#[cfg(test)]
mod tests;
