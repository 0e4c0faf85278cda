//! Removes what admits a classic load balancer, and its own security group.
//!
//! Rules and groups say neither for which load balancer they are nor who else uses them, so that each
//! removal asks for that first.

use std::{collections::BTreeSet, sync::Arc};

use ccm_core::provider::{CloudError, ErrorKind, Op, Progress};

use super::{
    SHARED_READ_AGE, SecurityGroupManager,
    cache::GroupsById,
    classic::{all_traffic_rules, group_name, revocations, traffic_group, with_extra},
    cleanup::in_use,
    managed,
    plan::RuleChange,
};
use crate::{
    api::{
        Filter, SecurityGroupId, Tags,
        classic::{ClassicLoadBalancer, DescribeClassic},
        ec2::{DescribeNetworkInterfaces, SecurityGroup},
    },
    lb::{classic::model::ClassicGroups, is_denied_by_policy, model::ServiceKey, names},
    ownership_tags::SERVICE_TAG,
};

impl SecurityGroupManager {
    /// Revokes the rules for a group of a load balancer in groups of the cluster that none of its
    /// instances has. Rules that another classic load balancer may need stay.
    pub(super) async fn revoke_classic_rules(
        &self,
        op: &Op,
        lb_name: &str,
        source: &SecurityGroupId,
        needed: &BTreeSet<SecurityGroupId>,
    ) -> Result<(), CloudError> {
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        let revoked = revocations(&groups, &self.scope.cluster, source, needed);
        if revoked.is_empty() || self.is_classic_source_shared(op, lb_name, source).await? {
            return Ok(());
        }
        let reason = format!("load balancer {lb_name} does not need it");
        for id in revoked.into_keys().filter(|id| !self.is_protected(id)) {
            self.cache
                .update_rules(op, &id, &reason, |group| RuleChange {
                    revoke: all_traffic_rules(group, source),
                    ..RuleChange::default()
                })
                .await?;
        }
        Ok(())
    }

    /// Returns true if another classic load balancer has a group. Its nodes need the same rules, which
    /// do not say for which load balancer they are.
    async fn is_classic_source_shared(
        &self,
        op: &Op,
        lb_name: &str,
        source: &SecurityGroupId,
    ) -> Result<bool, CloudError> {
        let client = &self.scope.client;
        let all: Vec<ClassicLoadBalancer> = client
            .read_all(op, DescribeClassic::default(), |r, token| r.token = Some(token))
            .await?;
        Ok(all
            .iter()
            .any(|other| *other.name != *lb_name && other.security_groups.contains(source)))
    }

    /// Revokes the rules for the group by which nodes admit a load balancer that is about to be deleted,
    /// unless that is its own group, whose deletion does so. `attached` has its groups; if it does not
    /// exist any more, the annotations must tell.
    ///
    /// # Errors
    /// Errors of AWS.
    pub(in crate::lb) async fn forget_given_classic_groups(
        &self,
        op: &Op,
        lb_name: &str,
        attached: Option<&[SecurityGroupId]>,
        requested: &ClassicGroups,
    ) -> Result<(), CloudError> {
        if self.scope.settings.disable_security_group_ingress {
            return Ok(());
        }
        let all = match (attached, self.given_classic_groups(requested)) {
            (Some(attached), _) => attached.to_vec(),
            (None, Some(given)) => with_extra(given, requested),
            (None, None) => return Ok(()),
        };
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        let groups = self.cache.read_missing(op, groups, &all).await?;
        let cluster = &self.scope.cluster;
        let is_tagged =
            |id: &SecurityGroupId| groups.get(id).is_some_and(|group| cluster.has(&group.tags));
        match traffic_group(&all, requested, is_tagged) {
            Some(source) if is_own_group(&groups, &source, lb_name) => Ok(()),
            Some(source) => {
                self.revoke_classic_rules(op, lb_name, &source, &BTreeSet::new())
                    .await
            }
            None => Ok(()),
        }
    }

    /// Deletes the own group of a load balancer that does not have it any more, and the rules in the
    /// cluster's groups that refer to it. Succeeds if it does not exist, or if it is not the
    /// cluster's. Returns [`Progress::Pending`] while it is in use.
    ///
    /// # Errors
    /// Errors of AWS, but never [`NotFound`](ccm_core::provider::ErrorKind::NotFound).
    pub(in crate::lb) async fn delete_classic_group(
        &self,
        op: &Op,
        lb_name: &str,
    ) -> Result<Progress, CloudError> {
        let name = group_name(lb_name);
        let groups = self.cache.groups(op, self.max_cleanup_age(op)).await?;
        // A group that was created just before a crash may be missing in the list.
        let group = match managed::find(&groups, &name) {
            Some(group) => Some(group),
            None => self.cache.read_by_name(op, &name).await?,
        };
        match group {
            Some(group) if self.may_delete_classic_group(&group) => {
                self.delete_unused_classic_group(op, lb_name, &group.id)
                    .await
            }
            _ => Ok(Progress::Done),
        }
    }

    /// Deletes the group of a load balancer that does not exist any more, and the rules in the cluster's
    /// groups that refer to it. The caller has checked that nothing has the group.
    ///
    /// # Errors
    /// As [`delete_classic_group`](Self::delete_classic_group).
    pub(in crate::lb) async fn delete_orphaned_classic_group(
        &self,
        op: &Op,
        id: &SecurityGroupId,
    ) -> Result<Progress, CloudError> {
        // Read the group again, because its tags decide about the deletion.
        self.cache.read(op, std::slice::from_ref(id)).await?;
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        match groups.get(id) {
            Some(group) if self.may_delete_classic_group(group) => {
                self.delete_owned_group(op, id).await
            }
            _ => Ok(Progress::Done),
        }
    }

    /// Removes what is left of a group that was detached from a load balancer: the group itself if it is
    /// its own one, and else the rules by which nodes admit it. Returns [`Progress::Pending`] while its
    /// own one is in use.
    ///
    /// # Errors
    /// As [`delete_classic_group`](Self::delete_classic_group).
    pub(in crate::lb) async fn remove_detached_classic_group(
        &self,
        op: &Op,
        lb_name: &str,
        id: &SecurityGroupId,
    ) -> Result<Progress, CloudError> {
        if self.owned_classic_group(op, lb_name).await?.as_ref() == Some(id) {
            return self.delete_unused_classic_group(op, lb_name, id).await;
        }
        if !self.scope.settings.disable_security_group_ingress {
            self.revoke_classic_rules(op, lb_name, id, &BTreeSet::new())
                .await?;
        }
        Ok(Progress::Done)
    }

    /// Returns the own group of a load balancer if the cluster owns it and may delete it. Mostly takes
    /// no request.
    ///
    /// # Errors
    /// Errors of AWS.
    pub(in crate::lb) async fn owned_classic_group(
        &self,
        op: &Op,
        lb_name: &str,
    ) -> Result<Option<SecurityGroupId>, CloudError> {
        let own = self.own_classic_group(op, lb_name).await?;
        Ok(own.map(|group| group.id.clone()))
    }

    async fn own_classic_group(
        &self,
        op: &Op,
        lb_name: &str,
    ) -> Result<Option<Arc<SecurityGroup>>, CloudError> {
        let max_age = SHARED_READ_AGE.min(self.max_rule_age());
        let groups = self.cache.groups(op, max_age).await?;
        let own = managed::find(&groups, &group_name(lb_name));
        Ok(own.filter(|group| self.may_delete_classic_group(group)))
    }

    /// Tags the own group of a load balancer with its Service before another takes its place, so that
    /// a later process finds it if this one ends before the group is deleted. Upstream puts no such tag
    /// on these groups, so that one that it left behind cannot be taken for a replaced one. Without the
    /// permission to tag groups, this process alone knows.
    ///
    /// # Errors
    /// Errors of AWS.
    pub(in crate::lb) async fn mark_replaced_classic_group(
        &self,
        op: &Op,
        owner: &ServiceKey,
        detached: &[SecurityGroupId],
    ) -> Result<(), CloudError> {
        let lb_name = names::load_balancer(&owner.uid);
        let Some(group) = self.own_classic_group(op, &lb_name).await? else {
            return Ok(());
        };
        if !detached.contains(&group.id) || is_marked_for(&group, owner) {
            return Ok(());
        }
        let tags = Tags::from([(SERVICE_TAG.into(), owner.key().into())]);
        let reason = "another takes its place";
        match self.cache.tag(op, &group, tags, reason).await {
            Err(error) if error.kind() == ErrorKind::Denied => Ok(()),
            result => result,
        }
    }

    /// Returns the own group of a load balancer that [was marked](Self::mark_replaced_classic_group)
    /// as replaced, is not on the load balancer and is not requested. Mostly takes no request.
    ///
    /// # Errors
    /// Errors of AWS.
    pub(in crate::lb) async fn replaced_classic_group(
        &self,
        op: &Op,
        owner: &ServiceKey,
        requested: &ClassicGroups,
        attached: &[SecurityGroupId],
    ) -> Result<Option<SecurityGroupId>, CloudError> {
        let Some(given) = self.given_classic_groups(requested) else {
            return Ok(None);
        };
        let lb_name = names::load_balancer(&owner.uid);
        let own = self.own_classic_group(op, &lb_name).await?;
        let is_used = |id: &SecurityGroupId| {
            attached.contains(id) || given.contains(id) || requested.extra.contains(id)
        };
        let replaced = own.filter(|group| is_marked_for(group, owner) && !is_used(&group.id));
        Ok(replaced.map(|group| group.id.clone()))
    }

    /// Deletes a group, and the rules that refer to it, unless something still has it: its rules may
    /// be needed then.
    async fn delete_unused_classic_group(
        &self,
        op: &Op,
        lb_name: &str,
        id: &SecurityGroupId,
    ) -> Result<Progress, CloudError> {
        // The interfaces of a new load balancer may not show yet.
        if self.is_classic_source_shared(op, lb_name, id).await?
            || self.has_interfaces(op, id).await?
        {
            return Ok(in_use(op, id));
        }
        self.delete_owned_group(op, id).await
    }

    /// Returns true if a network interface has a group. Without the permission to read them, which
    /// upstream does not need, AWS only refuses to delete the group.
    async fn has_interfaces(&self, op: &Op, id: &SecurityGroupId) -> Result<bool, CloudError> {
        let filters = vec![Filter::new("group-id", [&**id])];
        let request = DescribeNetworkInterfaces { filters, token: None };
        let client = &self.scope.client;
        let found = client.read_all(op, request, |r, token| r.token = Some(token));
        match found.await {
            Ok(interfaces) => Ok(!interfaces.is_empty()),
            Err(error) if is_denied_by_policy(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn may_delete_classic_group(&self, group: &SecurityGroup) -> bool {
        self.scope.cluster.owns(&group.tags) && !self.is_protected(&group.id)
    }
}

/// Returns true if a group has the tag of a Service.
fn is_marked_for(group: &SecurityGroup, owner: &ServiceKey) -> bool {
    let service = group.tags.get(SERVICE_TAG);
    service.is_some_and(|service| **service == *owner.key())
}

fn is_own_group(groups: &GroupsById, id: &SecurityGroupId, lb_name: &str) -> bool {
    let group = groups.get(id);
    group.is_some_and(|group| *group.name == *group_name(lb_name))
}
