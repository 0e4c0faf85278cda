//! Lists and deletes the classic load balancers that the cluster owns, and their security groups, to
//! find orphans.
//!
//! Upstream does not put the Service's tag on these groups. Their description, which nobody can change,
//! names load balancer and Service.

use std::collections::HashMap;

use ccm_core::provider::{CloudError, ErrorKind, Op, OwnedObject, Owner, Progress};

use super::{model::ClassicGroups, tags_not_shown};
use crate::{
    api::{
        AwsError, SecurityGroupId, Tags,
        classic::{
            ClassicLoadBalancer, DeleteClassic, DescribeClassic, DescribeClassicTags,
            MAX_CLASSIC_TAGGED,
        },
        ec2::SecurityGroup,
    },
    lb::{
        NetworkLoadBalancers, names, security_groups, security_groups::classic::service_of_group,
    },
    ownership_tags::SERVICE_TAG,
};

/// Kind of these load balancers in the inventory. Their ID is their name.
pub(in crate::lb) const CLASSIC_LOAD_BALANCER: &str = "classic load balancer";

impl NetworkLoadBalancers {
    /// Lists the classic load balancers of the VPC that the cluster owns and that were created for a
    /// Service.
    ///
    /// # Errors
    /// Errors of AWS, and tags that it does not show.
    pub(in crate::lb) async fn list_owned_classics(
        &self,
        op: &Op,
    ) -> Result<Vec<OwnedObject>, CloudError> {
        // Find load balancers with names like those of Services.
        let mut found = match self.list_classics(op).await {
            Err(error) if has_no_classics(&error) => return Ok(Vec::new()),
            found => found?,
        };
        found.retain(|classic| names::is_generated(&classic.name));
        // Keep those whose tags name the cluster and a Service.
        let tags = self.classic_tags(op, &found).await?;
        let mut owned = Vec::new();
        for classic in found {
            if let Some(owner) = tags.get(&classic.name).and_then(|tags| self.owner(tags))
                && self.is_in_vpc(op, &classic).await?
            {
                owned.push(OwnedObject {
                    kind: CLASSIC_LOAD_BALANCER.into(),
                    id: classic.name,
                    owner,
                    created: classic.created,
                });
            }
        }
        Ok(owned)
    }

    /// Reads one page of classic load balancers.
    ///
    /// # Errors
    /// Errors of AWS.
    pub(in crate::lb) async fn check_classics_readable(&self, op: &Op) -> Result<(), CloudError> {
        let client = &self.reconciler.scope.client;
        match client.read(op, DescribeClassic::default()).await {
            Err(error) if !has_no_classics(&error) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Checks the tags of a classic load balancer again, and deletes it. Its own security group is an
    /// object of its own, which goes with the rules that refer to it.
    ///
    /// # Errors
    /// Tags that name another owner ([`Conflict`](ErrorKind::Conflict)) or that AWS does not show, and
    /// errors of AWS.
    pub(in crate::lb) async fn delete_owned_classic(
        &self,
        op: &Op,
        object: &OwnedObject,
    ) -> Result<Progress, CloudError> {
        let name = &object.id;
        let Some(found) = self.classic.describe(op, name).await? else {
            return Ok(Progress::Done);
        };
        let tags = self.classic.tags(op, name).await?;
        self.check_owner(object, &tags.ok_or_else(|| tags_not_shown(name))?)?;
        // Nodes admit a group that the Service named. Of several, only the Service could say which: then
        // the rule stays.
        if let [group] = &*found.security_groups {
            self.reconciler
                .deps
                .security_groups
                .forget_given_classic_groups(
                    op,
                    name,
                    Some(std::slice::from_ref(group)),
                    &ClassicGroups::default(),
                )
                .await?;
        }
        let request = DeleteClassic { name: name.clone() };
        let client = &self.reconciler.scope.client;
        match client.write(op, request, "no Service needs it").await {
            Err(error) if !error.has_code("LoadBalancerNotFound") => Err(error.into()),
            _ => Ok(Progress::Done),
        }
    }

    /// Returns the owner of a security group; `None` if it was not created for a Service, or if its
    /// tags and its description contradict each other.
    pub(in crate::lb) fn group_owner(&self, group: &SecurityGroup) -> Option<Owner> {
        let Some(service) = service_of_group(group) else {
            return self.owner(&group.tags);
        };
        let mut tags = group.tags.clone();
        let named = tags
            .entry(SERVICE_TAG.into())
            .or_insert_with(|| service.into());
        if **named == *service {
            self.owner(&tags)
        } else {
            None
        }
    }

    /// Deletes the security group of a classic load balancer that does not exist any more, and the
    /// rules in the cluster's groups that refer to it. Returns [`Progress::Pending`] while anything
    /// has the group.
    ///
    /// # Errors
    /// A group that belongs to another owner ([`Conflict`](ErrorKind::Conflict)), and errors of AWS.
    pub(in crate::lb) async fn delete_owned_classic_group(
        &self,
        op: &Op,
        object: &OwnedObject,
        group: &SecurityGroup,
    ) -> Result<Progress, CloudError> {
        if self.group_owner(group).as_ref() != Some(&object.owner) {
            let message =
                format!("{} {} no longer belongs to the same Service", object.kind, object.id);
            return Err(CloudError::new(ErrorKind::Conflict, message));
        }
        if self.is_group_used(op, &group.id).await? || self.has_classic(op, &group.id).await? {
            return Ok(security_groups::in_use(op, &group.id));
        }
        let manager = &self.reconciler.deps.security_groups;
        manager.delete_orphaned_classic_group(op, &group.id).await
    }

    /// Returns true if a classic load balancer has a group. Its interfaces may not show yet.
    async fn has_classic(&self, op: &Op, group: &SecurityGroupId) -> Result<bool, CloudError> {
        match self.list_classics(op).await {
            // Its interfaces tell, too.
            Err(error) if has_no_classics(&error) => Ok(false),
            all => Ok(all?
                .iter()
                .any(|classic| classic.security_groups.contains(group))),
        }
    }

    async fn list_classics(&self, op: &Op) -> Result<Vec<ClassicLoadBalancer>, AwsError> {
        let client = &self.reconciler.scope.client;
        client
            .read_all(op, DescribeClassic::default(), |r, token| r.token = Some(token))
            .await
    }

    /// Reads the tags of load balancers. Leaves out those that were deleted since they were listed.
    async fn classic_tags(
        &self,
        op: &Op,
        found: &[ClassicLoadBalancer],
    ) -> Result<HashMap<Box<str>, Tags>, CloudError> {
        let client = &self.reconciler.scope.client;
        let mut tags = HashMap::new();
        for chunk in found.chunks(MAX_CLASSIC_TAGGED) {
            let names: Vec<Box<str>> = chunk.iter().map(|classic| classic.name.clone()).collect();
            let request = DescribeClassicTags { names: names.clone() };
            match client.read(op, request).await {
                Ok(answer) => {
                    tags.extend(answer);
                    if let Some(name) = names.iter().find(|name| !tags.contains_key(*name)) {
                        return Err(tags_not_shown(name));
                    }
                }
                // One deleted load balancer makes the whole request fail.
                Err(error) if error.has_code("LoadBalancerNotFound") => {
                    for name in names {
                        if let Some(shown) = self.classic.tags(op, &name).await? {
                            tags.insert(name, shown);
                        }
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(tags)
    }

    /// Returns true if a load balancer is in the cluster's VPC. Another VPC may have a cluster with the
    /// same ID.
    async fn is_in_vpc(&self, op: &Op, classic: &ClassicLoadBalancer) -> Result<bool, CloudError> {
        let subnets = self.reconciler.deps.subnets(op, &classic.subnets).await?;
        Ok(!subnets.is_empty())
    }
}

/// Returns true if the API has no classic load balancers. A denial is an error: the permission is that
/// for all load balancers.
fn has_no_classics(error: &AwsError) -> bool {
    error.has_code("InvalidAction")
}
