//! Security groups of load balancers, and the rules by which nodes admit them.
//!
//! A load balancer has no group, one that we make and fill, or given ones that are never changed. Nodes admit one without
//! groups by the networks of its clients, as upstream does and under upstream's descriptions; one with groups by its group;
//! and all of them by a shared group where that is configured. Only rules with our descriptions are ever taken off a node's
//! group, and only groups that the cluster made are deleted.

mod book;
mod cleanup;
mod managed;
mod node_rules;
pub(crate) mod plan;
pub(crate) mod rules;
mod unobserved;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use ccm_core::provider::{CloudError, Op, PlannedChange};
use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::managed::{FrontendPlan, MANAGED_DESCRIPTION, SHARED_DESCRIPTION};
use self::{
    book::{GroupsById, SecurityGroupCache},
    unobserved::DeletedNames,
};
pub(crate) use self::{
    cleanup::{in_use, references},
    plan::summary,
};
use super::{model::DesiredLoadBalancer, names, pods::PodTargets, sweep::ListingCache};
use crate::{
    api::{
        InstanceId, SecurityGroupId,
        ec2::{Rule, SecurityGroup, Subnet},
    },
    instances::InstanceCache,
    scope::Scope,
};

/// How old rules may be for a preview, and for a deletion: all Services that are looked at together share one reading.
const PREVIEW_AGE: Duration = Duration::from_secs(300);

/// What a load balancer exposes, and on which nodes.
#[derive(Clone, Copy, Debug)]
pub struct RuleRequest<'a> {
    /// What the Service wants.
    pub desired: &'a DesiredLoadBalancer,
    /// Name of the load balancer, which is in the descriptions of its rules. One that exists may have another than a new
    /// one would get.
    pub lb_name: &'a str,
    /// Its groups: those that it shall have.
    pub lb_groups: &'a [SecurityGroupId],
    /// Its subnets.
    pub subnets: &'a [Subnet],
    /// The instances that are its targets; none where pods are.
    pub instances: &'a [InstanceId],
    /// The pods that are its targets; none where instances are.
    pub pods: &'a PodTargets,
}

/// Rules by the group that they are to be on.
type RulesByGroup = BTreeMap<SecurityGroupId, BTreeSet<Rule>>;

/// Groups and rules of all load balancers.
pub struct SecurityGroupManager {
    scope: Scope,
    store: Arc<InstanceCache>,
    cache: SecurityGroupCache,
    /// What each load balancer needs of each group, since what two of them need alike is one rule under the name of one.
    needed_rules: Mutex<HashMap<Box<str>, RulesByGroup>>,
    /// What nobody opens to each load balancer.
    unmanaged: Mutex<HashMap<Box<str>, UnmanagedGroups>>,
    /// Load balancers that listings may still show.
    deleted: DeletedNames,
    listings: Arc<ListingCache>,
    started_at: Instant,
    /// What was taken off along with what another load balancer lost, and could not be granted again yet.
    rules_to_restore: Mutex<BTreeMap<SecurityGroupId, BTreeSet<Rule>>>,
}

/// What is not opened to a load balancer, because it is not the cluster's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnmanagedGroups {
    /// Security groups of pods, as they are called for people.
    pub groups: BTreeSet<Box<str>>,
    /// What pods have to admit; empty when nobody looks after it.
    pub rules: BTreeSet<Rule>,
}

impl SecurityGroupManager {
    /// Makes the part, which knows nothing yet.
    pub(super) fn new(scope: Scope, store: Arc<InstanceCache>, listings: Arc<ListingCache>) -> Self {
        let cache = SecurityGroupCache::new(scope.clone());
        let (needed_rules, unmanaged, rules_to_restore, deleted) = Default::default();
        Self {
            scope,
            store,
            cache,
            needed_rules,
            unmanaged,
            rules_to_restore,
            deleted,
            listings,
            started_at: Instant::now(),
        }
    }

    /// Grants what the groups of nodes lack: one request for each group that lacks anything. Before the first listener.
    ///
    /// # Errors
    /// Instances whose group cannot be told
    /// ([`InvalidInput`](ccm_core::provider::ErrorKind::InvalidInput)), a group without room
    /// ([`QuotaExceeded`](ccm_core::provider::ErrorKind::QuotaExceeded)), and AWS' own.
    pub async fn add_rules(&self, op: &Op, e: &RuleRequest<'_>) -> Result<(), CloudError> {
        let Some(admission) = self.node_rules(op, e, self.max_rule_age()).await? else { return Ok(()) };
        self.record_needed_rules(e, &admission);
        self.unmanaged.lock().insert(e.lb_name.into(), admission.unmanaged.clone());
        // As they are from here on: who revokes something now knows that it is needed here, and grants it again.
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        for id in &admission.node_groups {
            let holds = |group: &Arc<SecurityGroup>| plan::missing(&group.ingress, &admission.rules).is_empty();
            if groups.get(id).is_some_and(holds) {
                continue;
            }
            let why = format!("targets of {} must admit it", e.lb_name);
            self.cache.grant_missing(op, id, &why, &admission.rules).await?;
        }
        Ok(())
    }

    /// Revokes what is no longer wanted, from the managed group and from those of nodes. After the listeners.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn remove_rules(&self, op: &Op, e: &RuleRequest<'_>) -> Result<(), CloudError> {
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        if let Some(group) = self.managed_of(op, e, &groups) {
            let wanted = rules::managed_group_rules(e.desired);
            if !managed::surplus_rules(&group, &wanted).is_empty() {
                let change = |group: &_| plan::RuleChange {
                    revoke: managed::surplus_rules(group, &wanted),
                    ..Default::default()
                };
                self.cache.update_rules(op, &group.id, "the Service does not open it", change).await?;
            }
        }
        let Some(admission) = self.node_rules(op, e, self.max_rule_age()).await? else { return Ok(()) };
        self.record_needed_rules(e, &admission);
        self.remove_rules_everywhere(op, e.lb_name, &admission.groups, |id| admission.desired_rules(id)).await
    }

    /// Says what [`front`](Self::front), [`open`](Self::open) and [`close`](Self::close) would change in rules, without
    /// changing anything. Rules are at most five minutes old. What groups the load balancer would get or lose says
    /// [`plan_frontend_groups`](Self::front_plan).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn plan(&self, op: &Op, e: &RuleRequest<'_>) -> Result<Vec<PlannedChange>, CloudError> {
        let age = PREVIEW_AGE.min(self.max_rule_age());
        let groups = self.cache.groups(op, age).await?;
        let mut changes = Vec::new();
        if let Some(group) = self.managed_of(op, e, &groups) {
            let wanted = rules::managed_group_rules(e.desired);
            let revoke = managed::surplus_rules(&group, &wanted);
            let grant = plan::missing(&group.ingress, &wanted);
            changes.extend(planned(&group.id, &plan::RuleChange { grant, revoke, ..Default::default() }));
        }
        let Some(admission) = self.node_rules(op, e, age).await? else { return Ok(changes) };
        self.record_needed_rules(e, &admission);
        let living = self.existing_names(op, &admission.groups).await?;
        for (id, group) in admission.groups.iter() {
            let wanted = admission.desired_rules(id);
            let grant = plan::missing(&group.ingress, wanted);
            let revoke = self.rules_to_remove(e.lb_name, group, wanted, &living).revoke;
            changes.extend(planned(id, &plan::RuleChange { grant, revoke, ..Default::default() }));
        }
        Ok(changes)
    }

    /// Returns what was last found not to be opened to a load balancer.
    pub fn unmanaged_groups(&self, lb_name: &str) -> UnmanagedGroups {
        self.unmanaged.lock().get(lb_name).cloned().unwrap_or_default()
    }

    /// How old rules may be where nothing asks for more: foreign edits are found by the drift check.
    fn max_rule_age(&self) -> Duration {
        self.scope.settings.drift_check_interval
    }

    /// Returns the managed group among the load balancer's, if it shall have one.
    fn managed_of(&self, op: &Op, e: &RuleRequest<'_>, groups: &GroupsById) -> Option<Arc<SecurityGroup>> {
        let name = names::security_group(op.cluster_name(), &e.desired.owner);
        let wants = e.desired.security.groups == super::model::SecurityGroupChoice::Managed;
        let of = e.lb_groups.iter().filter_map(|id| groups.get(id));
        let mut of = of.filter(|group| wants && group.name == name && !self.is_protected(&group.id));
        of.find(|group| self.scope.cluster.has(&group.tags)).cloned()
    }

    /// Tells whether a group is configured as one that is never changed.
    fn is_protected(&self, id: &SecurityGroupId) -> bool {
        self.scope.settings.protected_security_group.as_ref() == Some(id)
    }
}

fn planned(id: &SecurityGroupId, change: &plan::RuleChange) -> Vec<PlannedChange> {
    let named = |operation: &str, rules: &[Rule], reason: &str| {
        (!rules.is_empty()).then(|| PlannedChange {
            operation: operation.into(),
            object: (&**id).into(),
            reason: format!("{reason}: {}", summary(rules)).into(),
        })
    };
    let grant = named("AuthorizeSecurityGroupIngress", &change.grant, "rules are missing");
    let revoke = named("RevokeSecurityGroupIngress", &change.revoke, "rules are not wanted");
    grant.into_iter().chain(revoke).collect()
}

#[cfg(test)]
mod tests;
