//! Rules in the security groups of nodes and pods: chooses the group that gets the rules, and
//! computes which rules are needed and which are removed.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind, Op};

use super::{
    RuleRequest, SecurityGroupManager, UnmanagedGroups,
    cache::GroupsById,
    plan::{self, RuleChange},
};
use crate::{
    api::{
        InstanceId, SecurityGroupId,
        ec2::{Rule, SecurityGroup},
        elb::TargetType,
    },
    lb::{
        security_groups::desired_rules::{self, RuleSourceKind},
        targets::pods::InterfaceGroups,
    },
    ownership_tags::Cluster,
};

/// The rules that one load balancer needs in the groups of its targets.
pub(super) struct NodeRules {
    /// All groups of the VPC.
    pub(super) groups: Arc<GroupsById>,
    /// The groups of the load balancer's targets that get the rules.
    pub(super) node_groups: BTreeSet<SecurityGroupId>,
    /// The rules that each of these groups needs.
    pub(super) rules: BTreeSet<Rule>,
    /// Groups that would need the rules and are not managed.
    pub(super) unmanaged: UnmanagedGroups,
}

/// The groups of targets that must admit a load balancer.
#[derive(Default)]
struct NodeGroups {
    managed: BTreeSet<SecurityGroupId>,
    /// Descriptions of groups that we do not manage, for users.
    unmanaged: BTreeSet<Box<str>>,
}

/// No rules.
static NO_RULES: BTreeSet<Rule> = BTreeSet::new();

impl NodeRules {
    /// Returns the rules that a group needs.
    pub(super) fn desired_rules(&self, id: &SecurityGroupId) -> &BTreeSet<Rule> {
        if self.node_groups.contains(id) {
            &self.rules
        } else {
            &NO_RULES
        }
    }
}

impl SecurityGroupManager {
    /// Computes the rules that the groups of targets need; `None` if these groups are not managed.
    pub(super) async fn node_rules(
        &self,
        op: &Op,
        request: &RuleRequest<'_>,
        max_age: Duration,
    ) -> Result<Option<NodeRules>, CloudError> {
        if self.scope.settings.disable_security_group_ingress {
            return Ok(None);
        }
        let groups = self.cache.groups(op, max_age).await?;
        let shared = self.shared_group(op, &groups);
        let source_kind = RuleSourceKind::for_request(request, shared.as_ref());
        if source_kind == RuleSourceKind::Unmanaged {
            if request.desired.target_type == TargetType::Ip {
                // Only we create rules for pods, so without management there must be none.
                return Ok(Some(NodeRules {
                    groups,
                    node_groups: BTreeSet::new(),
                    rules: BTreeSet::new(),
                    unmanaged: UnmanagedGroups::default(),
                }));
            }
            self.record_health_rules(op, request, groups).await;
            return Ok(None);
        }
        let rules = desired_rules::rules_for_nodes(request, source_kind);
        let (groups, node_groups) = self.groups_of_targets(op, request, groups).await?;
        let unmanaged = match request.desired.target_type {
            TargetType::Instance => UnmanagedGroups::default(),
            TargetType::Ip => {
                UnmanagedGroups { groups: node_groups.unmanaged, rules: rules.clone() }
            }
        };
        Ok(Some(NodeRules { groups, node_groups: node_groups.managed, rules, unmanaged }))
    }

    /// Returns the groups that must admit a load balancer, and all groups of the VPC including
    /// these.
    async fn groups_of_targets(
        &self,
        op: &Op,
        request: &RuleRequest<'_>,
        groups: Arc<GroupsById>,
    ) -> Result<(Arc<GroupsById>, NodeGroups), CloudError> {
        match request.desired.target_type {
            TargetType::Instance => self.instance_groups(op, request.instances, groups).await,
            TargetType::Ip => self.pod_groups(op, request, groups).await,
        }
    }

    async fn pod_groups(
        &self,
        op: &Op,
        request: &RuleRequest<'_>,
        groups: Arc<GroupsById>,
    ) -> Result<(Arc<GroupsById>, NodeGroups), CloudError> {
        let group_ids = request
            .pods
            .interface_groups
            .iter()
            .flat_map(|interface_groups| &interface_groups.groups);
        let groups = self.cache.read_missing(op, groups, group_ids).await?;
        let mut chosen = NodeGroups::default();
        for interface_groups in &request.pods.interface_groups {
            match choose_interface_group(&self.scope.cluster, &groups, interface_groups) {
                Some(id) if !self.is_protected(&id) => {
                    chosen.managed.insert(id);
                }
                _ => {
                    chosen
                        .unmanaged
                        .insert(describe_groups(&groups, interface_groups));
                }
            }
        }
        Ok((groups, chosen))
    }

    /// Returns the groups of instances that get rules, and all groups of the VPC including these.
    pub(super) async fn managed_groups_of(
        &self,
        op: &Op,
        instances: &[InstanceId],
        groups: Arc<GroupsById>,
    ) -> Result<(Arc<GroupsById>, BTreeSet<SecurityGroupId>), CloudError> {
        let (groups, chosen) = self.instance_groups(op, instances, groups).await?;
        Ok((groups, chosen.managed))
    }

    async fn instance_groups(
        &self,
        op: &Op,
        instances: &[InstanceId],
        groups: Arc<GroupsById>,
    ) -> Result<(Arc<GroupsById>, NodeGroups), CloudError> {
        let found = self
            .instances
            .get_many(op, instances, self.max_rule_age())
            .await?;
        let instances: Vec<_> = found
            .into_values()
            .flatten()
            .filter(|instance| !instance.is_terminated())
            .collect();
        let group_ids = instances
            .iter()
            .flat_map(|instance| &instance.security_groups);
        let groups = self.cache.read_missing(op, groups, group_ids).await?;
        let mut chosen = NodeGroups::default();
        for instance in &instances {
            let group = choose_node_group(
                &self.scope.cluster,
                &groups,
                &instance.id,
                &instance.security_groups,
            )?;
            match group {
                Some(id) if self.is_protected(&id) => {}
                Some(id) => {
                    chosen.managed.insert(id);
                }
                None => {
                    tracing::warn!(instance = %instance.id, "instance has no security group for the rules");
                }
            }
        }
        Ok((groups, chosen))
    }

    /// Records the health rules on which a load balancer with unmanaged rules may depend. Upstream
    /// may have created some, and no health rule is removed while the needs of any load balancer
    /// are unknown.
    async fn record_health_rules(
        &self,
        op: &Op,
        request: &RuleRequest<'_>,
        groups: Arc<GroupsById>,
    ) {
        let mut rules = desired_rules::rules_for_nodes(request, RuleSourceKind::Cidrs);
        rules.retain(|rule| desired_rules::health_of(rule).is_some());
        match self.groups_of_targets(op, request, groups).await {
            Ok((groups, node_groups)) => {
                let node_rules = NodeRules {
                    groups,
                    node_groups: node_groups.managed,
                    rules,
                    unmanaged: UnmanagedGroups::default(),
                };
                self.record_needed_rules(request, &node_rules);
            }
            // The needs stay unknown. The Service can be synced without them.
            Err(error) => {
                tracing::debug!(
                    load_balancer = request.lb_name,
                    error = error.chain(),
                    "health rules are kept"
                );
            }
        }
    }

    /// Records the rules that a load balancer needs, because others may need the same.
    pub(super) fn record_needed_rules(&self, request: &RuleRequest<'_>, node_rules: &NodeRules) {
        if request.is_comparison {
            return;
        }
        let rules_by_group = node_rules
            .node_groups
            .iter()
            .map(|id| (id.clone(), node_rules.rules.clone()))
            .collect();
        self.needed_rules
            .lock()
            .insert(request.lb_name.into(), rules_by_group);
        self.deleted.remove(request.lb_name);
    }

    /// Removes rules of a load balancer from all groups, except those that `desired` returns for a
    /// group.
    pub(super) async fn remove_rules_everywhere<'a>(
        &self,
        op: &Op,
        lb_name: &str,
        groups: &GroupsById,
        desired: impl Fn(&SecurityGroupId) -> &'a BTreeSet<Rule>,
    ) -> Result<(), CloudError> {
        self.restore_rules(op).await?;
        let existing = self.existing_names(op, groups).await?;
        for (id, group) in groups {
            let desired = desired(id);
            let revoked = self
                .rules_to_remove(lb_name, group, desired, &existing)
                .revoke;
            if revoked.is_empty() {
                continue;
            }
            self.check_unobserved(op, lb_name, &revoked).await?;
            // Record the rules before the request, which may succeed even if this call fails.
            self.record_rules_to_restore(id, lb_name, &revoked);
            let reason = format!("load balancer {lb_name} does not need it");
            let result = self
                .cache
                .update_rules(op, id, &reason, |group| {
                    self.rules_to_remove(lb_name, group, desired, &existing)
                })
                .await;
            // Record them again. Another load balancer may have come to need one of the rules
            // during the request, and have seen it in place.
            self.record_rules_to_restore(id, lb_name, &revoked);
            result?;
            self.restore_rules(op).await?;
        }
        Ok(())
    }

    /// Records rules that are revoked from a group and that other load balancers need.
    fn record_rules_to_restore(&self, id: &SecurityGroupId, lb_name: &str, revoked: &[Rule]) {
        let mut needed = self.needed_by_others(id, lb_name);
        needed.retain(|rule| plan::has_rule(revoked, rule));
        if !needed.is_empty() {
            self.rules_to_restore
                .lock()
                .entry(id.clone())
                .or_default()
                .extend(needed);
        }
    }

    /// Grants the revoked rules again that another load balancer needs too. If this fails, the next
    /// caller tries again.
    async fn restore_rules(&self, op: &Op) -> Result<(), CloudError> {
        let to_restore = self.rules_to_restore.lock().clone();
        for (id, rules) in to_restore {
            self.restore_group_rules(op, &id, &rules).await?;
            let mut to_restore = self.rules_to_restore.lock();
            if let Some(remaining) = to_restore.get_mut(&id) {
                remaining.retain(|rule| !rules.contains(rule));
                if remaining.is_empty() {
                    to_restore.remove(&id);
                }
            }
        }
        Ok(())
    }

    /// Grants the rules of one group again, as far as a load balancer still needs them.
    async fn restore_group_rules(
        &self,
        op: &Op,
        id: &SecurityGroupId,
        rules: &BTreeSet<Rule>,
    ) -> Result<(), CloudError> {
        let mut needed = self.needed_by_others(id, "");
        needed.retain(|rule| rules.contains(rule));
        if needed.is_empty() {
            return Ok(());
        }
        let reason = "another load balancer needs it";
        let result = self
            .cache
            .update_rules(op, id, reason, |group| missing_rules(group, &needed))
            .await;
        match result {
            Err(error) if matches!(error.kind(), ErrorKind::Throttled | ErrorKind::Transient) => {
                Err(error)
            }
            // The error must not prevent other rules from being revoked. The next drift check of
            // the other load balancer reports it.
            Err(error) => {
                let error = error.chain();
                tracing::warn!(group = %id, error, "failed to restore rules that another load balancer needs");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Computes the rules to remove from a group. `existing` has the names of existing load
    /// balancers, whether or not their needs are known.
    pub(super) fn rules_to_remove(
        &self,
        lb_name: &str,
        group: &SecurityGroup,
        desired: &BTreeSet<Rule>,
        existing: &BTreeSet<Box<str>>,
    ) -> RuleChange {
        let is_foreign = Cluster::any(&group.tags) && !self.scope.cluster.has(&group.tags);
        if is_foreign || self.is_protected(&group.id) {
            return RuleChange::default();
        }
        let mut revoke =
            plan::surplus(&group.ingress, desired, |rule| desired_rules::belongs_to(rule, lb_name));
        let mut needed: Vec<Rule> = Vec::new();
        needed.extend(self.needed_by_others(&group.id, lb_name));
        needed.extend(desired.iter().cloned());
        let mut unused = plan::unused_mtu_rules(&group.ingress, &revoke, &needed);
        let has_health_rules = group
            .ingress
            .iter()
            .any(|rule| desired_rules::health_of(rule).is_some());
        if has_health_rules {
            let mut known_names: BTreeSet<Box<str>> =
                self.needed_rules.lock().keys().cloned().collect();
            known_names.insert(lb_name.into());
            let has_unknown_clients = group
                .ingress
                .iter()
                .filter_map(desired_rules::client_of)
                .any(|name| !known_names.contains(name));
            // A load balancer with unknown needs may depend on a health rule with another one's
            // name.
            if has_unknown_clients {
                revoke.retain(|rule| desired_rules::health_of(rule).is_none());
            } else {
                unused.extend(plan::unused_health_rules(&group.ingress, &needed, |name| {
                    known_names.contains(name) || existing.contains(name)
                }));
            }
        }
        let by_absence = !unused.is_empty();
        revoke.extend(unused);
        RuleChange { revoke, by_absence, ..RuleChange::default() }
    }

    /// Returns the rules that other load balancers than `excluded` need in a group.
    fn needed_by_others(&self, id: &SecurityGroupId, excluded: &str) -> BTreeSet<Rule> {
        let mut needed = BTreeSet::new();
        for (name, rules_by_group) in self.needed_rules.lock().iter() {
            if **name != *excluded
                && let Some(rules) = rules_by_group.get(id)
            {
                needed.extend(rules.iter().cloned());
            }
        }
        needed
    }
}

/// Returns the missing rules of a group as a change.
pub(super) fn missing_rules(group: &SecurityGroup, desired: &BTreeSet<Rule>) -> RuleChange {
    RuleChange {
        grant: plan::missing(&group.ingress, desired),
        ..RuleChange::default()
    }
}

/// Chooses the group of an instance that gets the rules: the group with the cluster's tag, or the
/// only group.
pub(super) fn choose_node_group(
    cluster: &Cluster,
    groups: &GroupsById,
    instance: &InstanceId,
    group_ids: &[SecurityGroupId],
) -> Result<Option<SecurityGroupId>, CloudError> {
    let (tagged, untagged): (Vec<_>, Vec<_>) = group_ids
        .iter()
        .filter_map(|id| groups.get(id))
        .partition(|group| cluster.has(&group.tags));
    match (&*tagged, &*untagged) {
        ([group], _) | ([], [group]) => Ok(Some(group.id.clone())),
        ([], []) => Ok(None),
        ([], _) => Err(CloudError::invalid_input(format!(
            "Multiple untagged security groups found for instance {instance}; ensure the k8s security group is tagged"
        ))),
        (several, _) => {
            let names: Vec<_> = several
                .iter()
                .map(|group| format!("{}({})", group.id, group.name))
                .collect();
            Err(CloudError::invalid_input(format!(
                "Multiple tagged security groups found for instance {instance}; ensure only the k8s security group is \
                 tagged; the tagged groups were {}",
                names.join(" ")
            )))
        }
    }
}

/// Chooses the group of a pod's network interface that gets the rules: the group with the cluster's
/// tag. A single group needs no tag if the interface belongs to an instance of the cluster. Returns
/// `None` if several groups are tagged.
pub(super) fn choose_interface_group(
    cluster: &Cluster,
    groups: &GroupsById,
    interface_groups: &InterfaceGroups,
) -> Option<SecurityGroupId> {
    let found: Vec<_> = interface_groups
        .groups
        .iter()
        .filter_map(|id| groups.get(id))
        .collect();
    let tagged: Vec<_> = found
        .iter()
        .filter(|group| cluster.has(&group.tags))
        .collect();
    if let [group] = *tagged {
        return Some(group.id.clone());
    }
    if let [group] = *found
        && interface_groups.groups.len() == 1
        && interface_groups.has_cluster_tag
        && !Cluster::any(&group.tags)
    {
        return Some(group.id.clone());
    }
    None
}

/// Describes the groups of an interface, for users.
fn describe_groups(groups: &GroupsById, interface_groups: &InterfaceGroups) -> Box<str> {
    let mut names = Vec::new();
    for id in &interface_groups.groups {
        names.push(match groups.get(id) {
            Some(group) => format!("{id} ({})", group.name),
            None => id.to_string(),
        });
    }
    if names.is_empty() {
        "an interface without security groups".into()
    } else {
        names.join(" with ").into()
    }
}
