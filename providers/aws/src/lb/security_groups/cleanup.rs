//! Removes rules and groups when a load balancer is deleted or loses a group.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, EventType, Op, Progress};

use super::{
    SHARED_READ_AGE, SecurityGroupManager,
    cache::GroupsById,
    identity::{MANAGED_DESCRIPTION, find_managed, handed_over},
    plan::RuleChange,
};
use crate::{
    api::{
        SecurityGroupId,
        ec2::{Rule, RuleSource, SecurityGroup},
    },
    lb::{
        model::ServiceKey,
        names,
        retry_delay::{self, SLOW_DELETION_THRESHOLD},
    },
    ownership_tags::SERVICE_TAG,
};

/// Length of the hash at the end of a managed group's name.
const NAME_HASH_LENGTH: usize = 10;

impl SecurityGroupManager {
    /// Removes the rules of a deleted load balancer from the groups of nodes, and deletes the group
    /// that was created for it. Groups in `keep` stay. Succeeds if nothing exists. Returns
    /// [`Progress::Pending`] while the group is still in use.
    ///
    /// # Errors
    /// Errors of AWS, but never [`NotFound`](ccm_core::provider::ErrorKind::NotFound).
    pub async fn clean_up(
        &self,
        op: &Op,
        owner: &ServiceKey,
        lb_name: &str,
        keep: &[SecurityGroupId],
    ) -> Result<Progress, CloudError> {
        let groups = self.remove_node_rules(op, lb_name).await?;
        // A group that was created just before a crash may be missing in the list.
        let name = names::security_group(op.cluster_name(), owner);
        let group = match find_managed(&groups, owner, &name) {
            Some(group) => Some(group),
            None => self.cache.read_by_name(op, &name).await?,
        };
        match group {
            Some(group) if !keep.contains(&group.id) && self.is_created_for(op, &group, owner) => {
                self.delete_owned_group(op, &group.id).await
            }
            _ => Ok(Progress::Done),
        }
    }

    /// Removes the rules of a load balancer from the groups of nodes, and returns the groups as
    /// they were before.
    ///
    /// # Errors
    /// As [`clean_up`](Self::clean_up).
    pub(crate) async fn remove_node_rules(
        &self,
        op: &Op,
        lb_name: &str,
    ) -> Result<Arc<GroupsById>, CloudError> {
        let groups = self.cache.groups(op, self.max_cleanup_age(op)).await?;
        self.needed_rules.lock().remove(lb_name);
        self.deleted.add(lb_name);
        self.unmanaged.lock().remove(lb_name);
        if !self.scope.settings.disable_security_group_ingress {
            let no_rules = BTreeSet::new();
            self.remove_rules_everywhere(op, lb_name, &groups, |_| &no_rules)
                .await?;
        }
        Ok(groups)
    }

    /// Deletes groups that were detached from an existing load balancer, if they were created for
    /// it. Given groups, and the shared one, stay.
    ///
    /// # Errors
    /// As [`clean_up`](Self::clean_up).
    pub async fn clean_up_detached(
        &self,
        op: &Op,
        owner: &ServiceKey,
        groups: &[SecurityGroupId],
    ) -> Result<Progress, CloudError> {
        if groups.is_empty() {
            return Ok(Progress::Done);
        }
        // Read the groups again, because their tags decide about the deletion.
        self.cache.read(op, groups).await?;
        let current_groups = self.cache.groups(op, self.max_rule_age()).await?;
        let mut first_pending = None;
        for id in groups {
            let Some(group) = current_groups.get(id) else {
                continue;
            };
            if !self.is_created_for(op, group, owner) {
                continue;
            }
            let progress = self.delete_owned_group(op, id).await?;
            if progress != Progress::Done {
                first_pending.get_or_insert(progress);
            }
        }
        Ok(first_pending.unwrap_or(Progress::Done))
    }

    /// Finds the group that was created for a Service and is not on its load balancer, as after an
    /// interrupted removal.
    ///
    /// # Errors
    /// Errors of AWS.
    pub async fn find_leftover_group(
        &self,
        op: &Op,
        owner: &ServiceKey,
        used: &[SecurityGroupId],
    ) -> Result<Option<SecurityGroupId>, CloudError> {
        let groups = self
            .cache
            .groups(op, SHARED_READ_AGE.min(self.max_rule_age()))
            .await?;
        let name = names::security_group(op.cluster_name(), owner);
        match find_managed(&groups, owner, &name) {
            Some(group) if !used.contains(&group.id) && self.is_created_for(op, &group, owner) => {
                Ok(Some(group.id.clone()))
            }
            _ => Ok(None),
        }
    }

    /// Returns true if a group was created for a Service. The cluster must own the group, its
    /// description must be that of managed groups, and it must have the Service's tag. Groups of
    /// upstream have no such tag, so that their name must match instead.
    pub(super) fn is_created_for(
        &self,
        op: &Op,
        group: &SecurityGroup,
        owner: &ServiceKey,
    ) -> bool {
        let name = names::security_group(op.cluster_name(), owner);
        let name_without_hash = &name[..name.len() - NAME_HASH_LENGTH];
        let belongs_to_service = match group.tags.get(SERVICE_TAG) {
            Some(service) => **service == *owner.key(),
            None => group.name.starts_with(name_without_hash) && group.name.len() == name.len(),
        };
        self.scope.cluster.owns(&group.tags)
            && handed_over(group, owner).is_none()
            && *group.description == *MANAGED_DESCRIPTION
            && belongs_to_service
            && !self.is_protected(&group.id)
            && self.scope.settings.backend_security_group.as_ref() != Some(&group.id)
    }

    /// Deletes a group that the cluster owns, and the rules in other groups of the cluster that
    /// refer to it.
    pub(super) async fn delete_owned_group(
        &self,
        op: &Op,
        id: &SecurityGroupId,
    ) -> Result<Progress, CloudError> {
        let groups = self.cache.groups(op, self.max_cleanup_age(op)).await?;
        self.remove_references(op, &groups, id).await?;
        let is_deleted = self
            .cache
            .delete(op, id, "no load balancer uses it")
            .await?;
        if is_deleted {
            Ok(Progress::Done)
        } else {
            Ok(in_use(op, id))
        }
    }

    /// Removes the rules in other groups of the cluster that refer to a group.
    async fn remove_references(
        &self,
        op: &Op,
        groups: &GroupsById,
        id: &SecurityGroupId,
    ) -> Result<(), CloudError> {
        if self.scope.settings.disable_security_group_ingress {
            return Ok(());
        }
        let reason = format!("{id} is deleted");
        for group in groups.values() {
            if group.id == *id
                || references(group, id).is_empty()
                || !self.scope.cluster.has(&group.tags)
                || self.is_protected(&group.id)
            {
                continue;
            }
            self.cache
                .update_rules(op, &group.id, &reason, |group| RuleChange {
                    revoke: references(group, id),
                    ..RuleChange::default()
                })
                .await?;
        }
        Ok(())
    }

    /// Returns the maximum age of cached groups. A retry reads them again, because other rules may
    /// refer to the group now.
    pub(super) fn max_cleanup_age(&self, op: &Op) -> Duration {
        if op.pending_for().is_zero() {
            SHARED_READ_AGE.min(self.max_rule_age())
        } else {
            Duration::ZERO
        }
    }
}

/// Returns the rules of `group` that admit the interfaces of the group `to`.
pub(crate) fn references(group: &SecurityGroup, to: &SecurityGroupId) -> Vec<Rule> {
    group
        .ingress
        .iter()
        .filter(|rule| matches!(&rule.source, RuleSource::Group(id, _) if id == to))
        .cloned()
        .collect()
}

/// Returns [`Progress::Pending`] for a group that is in use, with a growing delay. Emits an event
/// once that takes long.
pub(crate) fn in_use(op: &Op, id: &SecurityGroupId) -> Progress {
    let reason = format!("security group {id} is still in use");
    let after = retry_delay::security_group_in_use(op);
    if retry_delay::has_become_slow(op, after) {
        let note = format!("{reason} after {} minutes", SLOW_DELETION_THRESHOLD.as_secs() / 60);
        op.event(EventType::Warning, "SecurityGroupInUse", &note);
    }
    Progress::Pending { after, reason: reason.into() }
}
