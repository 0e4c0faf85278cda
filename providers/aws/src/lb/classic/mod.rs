//! Classic load balancers that upstream created. None is created here; only their instances change,
//! and they are deleted.

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

/// Classic load balancers of the cluster.
pub struct ClassicLoadBalancers {
    scope: Scope,
}

impl ClassicLoadBalancers {
    /// Makes a client for them.
    pub fn new(scope: Scope) -> Self {
        Self { scope }
    }

    /// Finds the classic load balancer of a Service, by the name that upstream gives it, if this
    /// cluster owns it.
    ///
    /// # Errors
    /// AWS' own.
    pub async fn find(
        &self,
        op: &Op,
        uid: &str,
    ) -> Result<Option<ClassicLoadBalancer>, CloudError> {
        match self.find_by_name(op, &names::load_balancer(uid)).await? {
            Some((found, true)) => Ok(Some(found)),
            _ => Ok(None),
        }
    }

    /// Registers and deregisters instances. Registers first, so that the load balancer never has
    /// fewer than before and after.
    ///
    /// # Errors
    /// AWS' own.
    pub async fn sync_instances(
        &self,
        op: &Op,
        load_balancer: &ClassicLoadBalancer,
        desired: &[InstanceId],
    ) -> Result<(), CloudError> {
        let (has, wants): (BTreeSet<_>, BTreeSet<_>) =
            (load_balancer.instances.iter().collect(), desired.iter().collect());
        let surplus: Vec<_> = has.difference(&wants).map(|id| (*id).clone()).collect();
        let missing: Vec<_> = wants.difference(&has).map(|id| (*id).clone()).collect();
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

    /// Tells whether [`sync_instances`](Self::sync_instances) would register or deregister
    /// instances.
    pub fn instances_differ(load_balancer: &ClassicLoadBalancer, desired: &[InstanceId]) -> bool {
        load_balancer.instances.iter().collect::<BTreeSet<_>>() != desired.iter().collect()
    }

    /// Deletes the classic load balancer of a Service, the security group that upstream made for
    /// it, and the rules in the cluster's groups that refer to that group, as far as the cluster
    /// owns them. Succeeds if nothing exists, and continues after an interruption, even if only the
    /// group is left. Pending while the group is in use.
    ///
    /// # Errors
    /// AWS' own; never [`NotFound`](ErrorKind::NotFound).
    pub async fn delete(&self, op: &Op, uid: &str) -> Result<Progress, CloudError> {
        let name = names::load_balancer(uid);
        match self.find_by_name(op, &name).await? {
            Some((_, false)) => return Ok(Progress::Done),
            Some((found, true)) => {
                let request = DeleteClassic { name: found.name };
                self.scope
                    .client
                    .write(op, request, "the Service is gone")
                    .await
                    .map_err(as_transient)?;
            }
            None => {}
        }
        let group = format!("k8s-elb-{name}");
        let found = self
            .groups(op, Filter::new("group-name", [&*group]))
            .await?;
        let ours =
            |found: &SecurityGroup| *found.name == *group && self.scope.cluster.owns(&found.tags);
        let protected = self.scope.settings.protected_security_group.as_ref();
        match found
            .into_iter()
            .find(|found| ours(found) && protected != Some(&found.id))
        {
            Some(group) => self.delete_security_group(op, &group.id).await,
            None => Ok(Progress::Done),
        }
    }

    async fn delete_security_group(
        &self,
        op: &Op,
        id: &SecurityGroupId,
    ) -> Result<Progress, CloudError> {
        let client = &self.scope.client;
        if !self.scope.settings.disable_security_group_ingress {
            for group in self
                .groups(op, Filter::new("ip-permission.group-id", [&**id]))
                .await?
            {
                let rules = references(&group, id);
                if group.id == *id || rules.is_empty() || !self.scope.cluster.has(&group.tags) {
                    continue;
                }
                let request = RevokeSecurityGroupIngress { id: group.id, rules };
                match client.write(op, request, &format!("{id} is deleted")).await {
                    Err(error) if error.has_code("InvalidPermission.NotFound") => {}
                    answer => answer.map_err(as_transient)?,
                }
            }
        }
        match client
            .write(op, DeleteSecurityGroup { id: id.clone() }, "its load balancer is deleted")
            .await
        {
            Err(error) if error.has_code("DependencyViolation") => Ok(in_use(op, id)),
            Err(error) if !error.has_code("InvalidGroup.NotFound") => Err(as_transient(error)),
            _ => Ok(Progress::Done),
        }
    }

    /// Finds a load balancer by name, and whether the cluster owns it.
    async fn find_by_name(
        &self,
        op: &Op,
        name: &str,
    ) -> Result<Option<(ClassicLoadBalancer, bool)>, CloudError> {
        let client = &self.scope.client;
        let request = DescribeClassic { names: vec![name.into()], token: None };
        let found = match client
            .read_all(op, request, |r, token| r.token = Some(token))
            .await
        {
            Err(error) if error.has_code("LoadBalancerNotFound") => return Ok(None),
            answer => answer?,
        };
        let Some(found) = found.into_iter().find(|found| *found.name == *name) else {
            return Ok(None);
        };
        let request = DescribeClassicTags { names: vec![name.into()] };
        let tags = match client.read(op, request).await {
            Err(error) if error.has_code("LoadBalancerNotFound") => return Ok(None),
            answer => answer?,
        };
        let owned = tags
            .iter()
            .any(|(of, tags)| **of == *name && self.scope.cluster.owns(tags));
        Ok(Some((found, owned)))
    }

    async fn groups(&self, op: &Op, filter: Filter) -> Result<Vec<SecurityGroup>, CloudError> {
        let filters = vec![Filter::new("vpc-id", [&*self.scope.vpc]), filter];
        let request = DescribeSecurityGroups { filters, ..Default::default() };
        Ok(self
            .scope
            .client
            .read_all(op, request, |r, token| r.token = Some(token))
            .await?)
    }
}

/// Makes NotFound of a part a conflict: it does not prove that everything is deleted.
fn as_transient(error: AwsError) -> CloudError {
    let error = CloudError::from(error);
    match error.kind() {
        ErrorKind::NotFound => CloudError::new(ErrorKind::Conflict, error.to_string()),
        _ => error,
    }
}

#[cfg(test)]
mod tests;
