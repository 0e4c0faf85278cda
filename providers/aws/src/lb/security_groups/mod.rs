//! Security groups of load balancers, and the rules by which nodes admit them.
//!
//! A load balancer has no group, one that we create and fill, or given ones whose rules we never
//! change. Nodes admit a load balancer without groups by the CIDRs of its clients, with the same
//! rule descriptions as upstream. They admit a load balancer with groups by its group, by a shared
//! group if one is configured, or by CIDRs where rules of the owner say so. We remove only rules with our descriptions from a node's
//! group, and delete only groups that the cluster owns.

mod cache;
pub(in crate::lb) mod classic;
mod classic_cleanup;
mod cleanup;
pub(crate) mod desired_rules;
mod identity;
mod managed;
mod node_group_selection;
pub(crate) mod plan;
mod retained;
pub(in crate::lb) mod unmanaged;
mod unobserved;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::{CloudError, Op, PlannedChange};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::{
    cache::{GroupsById, SecurityGroupCache},
    plan::RuleChange,
    unobserved::DeletedNames,
};
pub(crate) use self::{classic::group_name as classic_group_name, cleanup::in_use, plan::summary};
pub use self::{
    identity::MANAGED_DESCRIPTION,
    managed::{FrontendPlan, SHARED_DESCRIPTION},
};
use super::{
    model::{DesiredLoadBalancer, SecurityGroupChoice},
    names,
};
use crate::{
    api::{
        InstanceId, SecurityGroupId,
        ec2::{Rule, RuleSource, SecurityGroup, Subnet},
    },
    instances::InstanceCache,
    lb::{observe::listing::ListingCache, targets::pods::PodTargets},
    scope::Scope,
};

/// Maximum age of rules for a dry run and for a deletion. Services that are processed at the same
/// time share one read.
const SHARED_READ_AGE: Duration = Duration::from_secs(300);

/// The load balancer and the targets for which security group rules are planned or applied.
#[derive(Clone, Copy, Debug)]
pub struct RuleRequest<'a> {
    /// The desired state of the Service.
    pub desired: &'a DesiredLoadBalancer,
    /// Name of the load balancer, which the descriptions of its rules contain. An existing load
    /// balancer may have another name than a new one would get.
    pub lb_name: &'a str,
    /// The groups that the load balancer has or will have.
    pub lb_groups: &'a [SecurityGroupId],
    /// The subnets of the load balancer.
    pub subnets: &'a [Subnet],
    /// The instances among the targets; empty if pods are the targets.
    pub instances: &'a [InstanceId],
    /// The pods among the targets; empty if instances are the targets.
    pub pods: &'a PodTargets,
    /// True if the desired state only serves a comparison. What it needs then does not replace what
    /// the load balancer needs.
    pub is_comparison: bool,
}

/// Rules by the group that needs them.
type RulesByGroup = BTreeMap<SecurityGroupId, BTreeSet<Rule>>;

/// Manages the groups and rules of all load balancers.
pub struct SecurityGroupManager {
    scope: Scope,
    instances: Arc<InstanceCache>,
    cache: SecurityGroupCache,
    /// The rules that each load balancer needs in each group. A rule that two of them need exists
    /// only once, with the description of one of them.
    needed_rules: Mutex<HashMap<Box<str>, RulesByGroup>>,
    /// The groups of each load balancer's targets that we do not manage.
    unmanaged: Mutex<HashMap<Box<str>, UnmanagedGroups>>,
    /// Names of deleted load balancers that listings may still show.
    deleted: DeletedNames,
    listings: Arc<ListingCache>,
    started_at: Instant,
    /// Rules that were revoked together with another load balancer's, and that could not be granted
    /// again yet.
    rules_to_restore: Mutex<BTreeMap<SecurityGroupId, BTreeSet<Rule>>>,
}

/// Groups that must admit a load balancer and do not belong to the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnmanagedGroups {
    /// Security groups of pods, as shown to users.
    pub groups: BTreeSet<Box<str>>,
    /// Rules that the pods need; empty if rules for pods are not managed.
    pub rules: BTreeSet<Rule>,
}

impl SecurityGroupManager {
    /// Creates a manager with empty caches.
    pub(super) fn new(
        scope: Scope,
        instances: Arc<InstanceCache>,
        listings: Arc<ListingCache>,
    ) -> Self {
        Self {
            cache: SecurityGroupCache::new(scope.clone()),
            scope,
            instances,
            needed_rules: Mutex::default(),
            unmanaged: Mutex::default(),
            deleted: DeletedNames::default(),
            listings,
            started_at: Instant::now(),
            rules_to_restore: Mutex::default(),
        }
    }

    /// Returns true if any security group of the VPC has a rule that admits one of these groups.
    ///
    /// # Errors
    /// Errors of AWS.
    pub(in crate::lb) async fn are_sources_of_rules(
        &self,
        op: &Op,
        sources: &[SecurityGroupId],
    ) -> Result<bool, CloudError> {
        if sources.is_empty() {
            return Ok(false);
        }
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        let mut rules = groups.values().flat_map(|group| &group.ingress);
        Ok(rules
            .any(|rule| matches!(&rule.source, RuleSource::Group(id, _) if sources.contains(id))))
    }

    /// Grants the rules that the groups of targets lack, with one request for each group. Called
    /// before the first listener is created.
    ///
    /// # Errors
    /// Instances with an ambiguous group
    /// ([`InvalidInput`](ccm_core::provider::ErrorKind::InvalidInput)), a group with too many rules
    /// ([`QuotaExceeded`](ccm_core::provider::ErrorKind::QuotaExceeded)), and errors of AWS.
    pub async fn add_rules(&self, op: &Op, request: &RuleRequest<'_>) -> Result<(), CloudError> {
        let Some(node_rules) = self.node_rules(op, request, self.max_rule_age()).await? else {
            return Ok(());
        };
        self.record_needed_rules(request, &node_rules);
        self.unmanaged
            .lock()
            .insert(request.lb_name.into(), node_rules.unmanaged.clone());
        // Read again after recording the needed rules. A sync that revokes one of them from now on
        // sees that it is needed and grants it again.
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        for id in &node_rules.node_groups {
            if let Some(group) = groups.get(id)
                && plan::missing(&group.ingress, &node_rules.rules).is_empty()
            {
                continue;
            }
            let reason = format!("targets of {} must admit it", request.lb_name);
            self.cache
                .grant_missing(op, id, &reason, &node_rules.rules)
                .await?;
        }
        Ok(())
    }

    /// Revokes rules that are no longer desired, in the managed group and in those of targets.
    /// Called after the listeners.
    ///
    /// # Errors
    /// As [`add_rules`](Self::add_rules).
    pub async fn remove_rules(&self, op: &Op, request: &RuleRequest<'_>) -> Result<(), CloudError> {
        // Revoke rules in the managed group of the load balancer.
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        if let Some(group) = self.find_managed_group(op, request, &groups) {
            let desired = desired_rules::managed_group_rules(request.desired);
            if !managed::surplus_rules(&group, &desired).is_empty() {
                let reason = "the Service does not allow it";
                self.cache
                    .update_rules(op, &group.id, reason, |group| RuleChange {
                        revoke: managed::surplus_rules(group, &desired),
                        ..RuleChange::default()
                    })
                    .await?;
            }
        }
        // Revoke rules in the groups of the targets.
        let Some(node_rules) = self.node_rules(op, request, self.max_rule_age()).await? else {
            return Ok(());
        };
        self.record_needed_rules(request, &node_rules);
        self.remove_rules_everywhere(op, request.lb_name, &node_rules.groups, |id| {
            node_rules.desired_rules(id)
        })
        .await
    }

    /// Returns the rule changes of [`ensure_frontend_groups`](Self::ensure_frontend_groups),
    /// [`add_rules`](Self::add_rules) and [`remove_rules`](Self::remove_rules), without making
    /// them. Rules are at most five minutes old. For the groups that the load balancer would get or
    /// lose see [`plan_frontend_groups`](Self::plan_frontend_groups).
    ///
    /// # Errors
    /// As [`add_rules`](Self::add_rules).
    pub async fn plan_rules(
        &self,
        op: &Op,
        request: &RuleRequest<'_>,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let max_age = SHARED_READ_AGE.min(self.max_rule_age());
        let groups = self.cache.groups(op, max_age).await?;
        let mut changes = Vec::new();
        if let Some(group) = self.find_managed_group(op, request, &groups) {
            let desired = desired_rules::managed_group_rules(request.desired);
            let change = RuleChange {
                grant: plan::missing(&group.ingress, &desired),
                revoke: managed::surplus_rules(&group, &desired),
                ..RuleChange::default()
            };
            changes.extend(planned_changes(&group.id, &change));
        }
        let Some(node_rules) = self.node_rules(op, request, max_age).await? else {
            return Ok(changes);
        };
        self.record_needed_rules(request, &node_rules);
        let existing = self.existing_names(op, &node_rules.groups).await?;
        for (id, group) in node_rules.groups.iter() {
            let desired = node_rules.desired_rules(id);
            let removal = self.rules_to_remove(request.lb_name, group, desired, &existing);
            let change = RuleChange {
                grant: plan::missing(&group.ingress, desired),
                revoke: removal.revoke,
                ..RuleChange::default()
            };
            changes.extend(planned_changes(id, &change));
        }
        Ok(changes)
    }

    /// Returns the groups of a load balancer's targets that the last sync found not to be managed.
    pub fn unmanaged_groups(&self, lb_name: &str) -> UnmanagedGroups {
        self.unmanaged
            .lock()
            .get(lb_name)
            .cloned()
            .unwrap_or_default()
    }

    #[cfg(test)]
    pub(in crate::lb) fn knows_needs_of(&self, lb_name: &str) -> bool {
        self.needed_rules.lock().contains_key(lb_name)
    }

    /// Returns the maximum age of cached rules, unless a caller needs newer ones. The drift check
    /// finds manual changes.
    fn max_rule_age(&self) -> Duration {
        self.scope.settings.drift_check_interval
    }

    /// Returns the managed group among the load balancer's groups; `None` if it should have none.
    fn find_managed_group(
        &self,
        op: &Op,
        request: &RuleRequest<'_>,
        groups: &GroupsById,
    ) -> Option<Arc<SecurityGroup>> {
        if request.desired.security.groups != SecurityGroupChoice::Managed {
            return None;
        }
        let name = names::security_group(op.cluster_name(), &request.desired.owner);
        request
            .lb_groups
            .iter()
            .filter_map(|id| groups.get(id))
            .find(|group| {
                let owner = &request.desired.owner;
                (group.name == name || identity::is_adopted(group, owner))
                    && !self.is_protected(&group.id)
                    && self.scope.cluster.has(&group.tags)
            })
            .cloned()
    }

    /// Returns true if the configuration protects a group from changes.
    fn is_protected(&self, id: &SecurityGroupId) -> bool {
        self.scope.settings.protected_security_group.as_ref() == Some(id)
    }
}

fn planned_changes(id: &SecurityGroupId, change: &RuleChange) -> Vec<PlannedChange> {
    let mut changes = Vec::new();
    if !change.grant.is_empty() {
        changes.push(PlannedChange {
            operation: "AuthorizeSecurityGroupIngress".into(),
            object: (&**id).into(),
            reason: format!("rules are missing: {}", summary(&change.grant)).into(),
        });
    }
    if !change.revoke.is_empty() {
        changes.push(PlannedChange {
            operation: "RevokeSecurityGroupIngress".into(),
            object: (&**id).into(),
            reason: format!("rules are not desired: {}", summary(&change.revoke)).into(),
        });
    }
    changes
}

#[cfg(test)]
mod tests;
