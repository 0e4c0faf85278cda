//! The managed security group of a load balancer that is kept when its Service goes, and of one that
//! is adopted. It is let go and adopted together with its load balancer, and keeps its rules.

use std::sync::Arc;

use ccm_core::provider::{CloudError, Op};

use super::{SecurityGroupManager, identity::MANAGED_DESCRIPTION};
use crate::{
    api::{SecurityGroupId, Tags, ec2::SecurityGroup},
    lb::{model::ServiceKey, ownership::may_claim},
    ownership_tags::{ADOPTER_TAG, RETAINED_TAG, SERVICE_TAG, have_owner, owner_tags},
};

impl SecurityGroupManager {
    /// Returns those of a load balancer's groups that were created for the Service.
    ///
    /// # Errors
    /// A group that AWS does not show, and errors of AWS.
    pub(in crate::lb) async fn own_groups(
        &self,
        op: &Op,
        owner: &ServiceKey,
        lb_groups: &[SecurityGroupId],
    ) -> Result<Vec<Arc<SecurityGroup>>, CloudError> {
        let mut groups = self.read_groups(op, lb_groups).await?;
        groups.retain(|group| self.is_created_for(op, group, owner));
        Ok(groups)
    }

    /// Lets go of a group: marks it, and then removes the tags of its owner.
    ///
    /// # Errors
    /// Errors of AWS.
    pub(in crate::lb) async fn let_go(
        &self,
        op: &Op,
        owner: &ServiceKey,
        group: &SecurityGroup,
    ) -> Result<(), CloudError> {
        let reason = "its load balancer is kept";
        if group.tags.get(RETAINED_TAG) != Some(&owner.uid) {
            let mark = [(RETAINED_TAG.into(), owner.uid.clone())].into();
            self.cache.tag(op, group, mark, reason).await?;
        }
        let owner_tags = self.scope.cluster.owner_tags(&group.tags);
        self.cache.untag(op, group, owner_tags, reason).await
    }

    /// Adopts those of a load balancer's groups that were kept with it. An adopter of the load balancer
    /// (`is_adopter`) also takes those that another one claimed at the same time.
    ///
    /// # Errors
    /// As [`own_groups`](Self::own_groups).
    pub(in crate::lb) async fn adopt_groups(
        &self,
        op: &Op,
        owner: &ServiceKey,
        lb_groups: &[SecurityGroupId],
        is_adopter: bool,
    ) -> Result<(), CloudError> {
        for group in self.read_groups(op, lb_groups).await? {
            if !self.is_managed(&group) || !may_claim(owner, &group.tags, is_adopter) {
                continue;
            }
            let mut tags = self.scope.cluster.tags();
            tags.insert(SERVICE_TAG.into(), owner.key().into());
            tags.insert(ADOPTER_TAG.into(), owner.uid.clone());
            self.cache
                .tag(op, &group, tags, "the Service adopts its load balancer")
                .await?;
            let foreign = self.scope.cluster.foreign_tags(&group.tags);
            if !foreign.is_empty() {
                self.cache
                    .untag(op, &group, foreign, "the Service adopts its load balancer")
                    .await?;
            }
        }
        Ok(())
    }

    /// Returns true if one of a load balancer's groups was kept with it.
    ///
    /// # Errors
    /// As [`own_groups`](Self::own_groups).
    pub(in crate::lb) async fn has_kept_group(
        &self,
        op: &Op,
        lb_groups: &[SecurityGroupId],
    ) -> Result<bool, CloudError> {
        let groups = self.read_groups(op, lb_groups).await?;
        Ok(groups.iter().any(|group| self.is_kept(group)))
    }

    fn is_kept(&self, group: &SecurityGroup) -> bool {
        group.tags.contains_key(RETAINED_TAG) && !have_owner(&group.tags) && self.is_managed(group)
    }

    fn is_managed(&self, group: &SecurityGroup) -> bool {
        *group.description == *MANAGED_DESCRIPTION && !self.is_protected(&group.id)
    }

    /// Removes the mark from those of a load balancer's groups that are the Service's.
    ///
    /// # Errors
    /// As [`own_groups`](Self::own_groups).
    pub(in crate::lb) async fn remove_marks(
        &self,
        op: &Op,
        owner: &ServiceKey,
        lb_groups: &[SecurityGroupId],
    ) -> Result<(), CloudError> {
        for group in self.own_groups(op, owner, lb_groups).await? {
            if let Some(former) = group.tags.get(RETAINED_TAG) {
                // Reads may still show tags that were removed when it was let go of.
                let owner_tags = owner_tags(&group.tags);
                self.cache
                    .tag(op, &group, owner_tags, "it is the Service's now")
                    .await?;
                let mark: Tags = [(RETAINED_TAG.into(), former.clone())].into();
                self.cache
                    .untag(op, &group, mark, "it is the Service's now")
                    .await?;
            }
        }
        Ok(())
    }

    /// Reads groups, because their tags decide. All of them have to exist.
    async fn read_groups(
        &self,
        op: &Op,
        ids: &[SecurityGroupId],
    ) -> Result<Vec<Arc<SecurityGroup>>, CloudError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.cache.read(op, ids).await?;
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        let mut found = Vec::new();
        for id in ids {
            let group = groups.get(id).ok_or_else(|| {
                CloudError::transient(format!("AWS does not show security group {id}"))
            })?;
            found.push(group.clone());
        }
        Ok(found)
    }
}
