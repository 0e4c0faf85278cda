//! Rules in security groups of nodes and pods: which group is used, which rules each needs, and
//! which are removed.

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
    /// The groups of its targets.
    pub(super) node_groups: BTreeSet<SecurityGroupId>,
    /// The rules that each of these groups needs.
    pub(super) rules: BTreeSet<Rule>,
    /// Groups that would need the rules and are not managed.
    pub(super) unmanaged: UnmanagedGroups,
}

/// Groups that must admit a load balancer.
#[derive(Default)]
struct NodeGroups {
    groups: BTreeSet<SecurityGroupId>,
    /// Groups that are not ours, as shown to users.
    unmanaged: BTreeSet<Box<str>>,
}

/// No rules.
static NONE: BTreeSet<Rule> = BTreeSet::new();

impl NodeRules {
    /// Returns the rules that a group needs.
    pub(super) fn desired_rules(&self, id: &SecurityGroupId) -> &BTreeSet<Rule> {
        if self.node_groups.contains(id) {
            &self.rules
        } else {
            &NONE
        }
    }
}

impl SecurityGroupManager {
    /// Computes which rules targets need; `None` if their groups are not managed.
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
        let admission = RuleSourceKind::of(request, shared.as_ref());
        if admission == RuleSourceKind::Unmanaged {
            if request.desired.target_type == TargetType::Ip {
                // Only we create rules for pods, so without management there must be none.
                let (chosen, rules, left_alone) = Default::default();
                return Ok(Some(NodeRules {
                    groups,
                    node_groups: chosen,
                    rules,
                    unmanaged: left_alone,
                }));
            }
            self.record_health_rules(op, request, groups).await;
            return Ok(None);
        }
        let rules = desired_rules::rules_for_nodes(request, admission);
        let (groups, NodeGroups { groups: chosen, unmanaged: foreign }) =
            self.groups_of_targets(op, request, groups).await?;
        let left_alone = match request.desired.target_type {
            TargetType::Instance => UnmanagedGroups::default(),
            TargetType::Ip => UnmanagedGroups { groups: foreign, rules: rules.clone() },
        };
        Ok(Some(NodeRules { groups, node_groups: chosen, rules, unmanaged: left_alone }))
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
            TargetType::Instance => self.of_instances(op, request, groups).await,
            TargetType::Ip => self.of_pods(op, request, groups).await,
        }
    }

    async fn of_pods(
        &self,
        op: &Op,
        request: &RuleRequest<'_>,
        groups: Arc<GroupsById>,
    ) -> Result<(Arc<GroupsById>, NodeGroups), CloudError> {
        let named = request
            .pods
            .interface_groups
            .iter()
            .flat_map(|interface_groups| &interface_groups.groups);
        let groups = self.cache.including(op, groups, named).await?;
        let mut chosen = NodeGroups::default();
        for footing in &request.pods.interface_groups {
            match choose_interface_group(&self.scope.cluster, &groups, footing)
                .filter(|id| !self.is_protected(id))
            {
                Some(id) => drop(chosen.groups.insert(id)),
                None => drop(chosen.unmanaged.insert(described(&groups, footing))),
            }
        }
        Ok((groups, chosen))
    }

    async fn of_instances(
        &self,
        op: &Op,
        request: &RuleRequest<'_>,
        groups: Arc<GroupsById>,
    ) -> Result<(Arc<GroupsById>, NodeGroups), CloudError> {
        let instances = self
            .store
            .get_many(op, request.instances, self.max_rule_age())
            .await?;
        let instances = instances
            .into_values()
            .flatten()
            .filter(|instance| !instance.is_terminated());
        let instances: Vec<_> = instances.collect();
        let named = instances
            .iter()
            .flat_map(|instance| &instance.security_groups);
        let groups = self.cache.including(op, groups, named).await?;
        let mut chosen = NodeGroups::default();
        for instance in &instances {
            match choose_node_group(
                &self.scope.cluster,
                &groups,
                &instance.id,
                &instance.security_groups,
            )? {
                Some(id) if self.is_protected(&id) => {}
                Some(id) => drop(chosen.groups.insert(id)),
                None => {
                    tracing::warn!(instance = %instance.id, "instance has no security group to open");
                }
            }
        }
        Ok((groups, chosen))
    }

    /// Records which health rules a load balancer with unmanaged rules may depend on. Upstream may
    /// have created some, and no health rule is removed while the needs of a load balancer are
    /// unknown.
    async fn record_health_rules(
        &self,
        op: &Op,
        request: &RuleRequest<'_>,
        groups: Arc<GroupsById>,
    ) {
        let rules = desired_rules::rules_for_nodes(request, RuleSourceKind::Cidrs)
            .into_iter()
            .filter(|rule| desired_rules::health_of(rule).is_some());
        match self.groups_of_targets(op, request, groups).await {
            Ok((groups, NodeGroups { groups: chosen, .. })) => {
                let rules = rules.collect();
                let left_alone = UnmanagedGroups::default();
                self.record_needed_rules(
                    request,
                    &NodeRules { groups, node_groups: chosen, rules, unmanaged: left_alone },
                );
            }
            // Its needs stay unknown, without an error for its Service.
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
    pub(super) fn record_needed_rules(&self, request: &RuleRequest<'_>, admitted: &NodeRules) {
        let needs = admitted
            .node_groups
            .iter()
            .map(|id| (id.clone(), admitted.rules.clone()))
            .collect();
        self.needed_rules
            .lock()
            .insert(request.lb_name.into(), needs);
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
        let living = self.existing_names(op, groups).await?;
        for (id, group) in groups {
            let desired = desired(id);
            let revoked = self
                .rules_to_remove(lb_name, group, desired, &living)
                .revoke;
            if revoked.is_empty() {
                continue;
            }
            self.wait_for_unobserved(op, lb_name, &revoked).await?;
            // Recorded before the request, so that it holds whatever the outcome of this call.
            self.record_rules_to_restore(id, lb_name, &revoked);
            let why = format!("load balancer {lb_name} does not need it");
            let amended = self
                .cache
                .update_rules(op, id, &why, |group| {
                    self.rules_to_remove(lb_name, group, desired, &living)
                })
                .await;
            // Recorded again: another load balancer that came to need a rule meanwhile saw it in
            // place.
            self.record_rules_to_restore(id, lb_name, &revoked);
            amended?;
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

    /// Grants again the rules that another load balancer needs, too, and that had the description
    /// of the one that lost them. If this fails, the next caller does it.
    async fn restore_rules(&self, op: &Op) -> Result<(), CloudError> {
        let owed = self.rules_to_restore.lock().clone();
        for (id, rules) in owed {
            let mut due = rules.clone();
            let needed = self.needed_by_others(&id, "");
            due.retain(|rule| needed.contains(rule));
            if !due.is_empty() {
                let change = |group: &_| missing_rules(group, &due);
                match self
                    .cache
                    .update_rules(op, &id, "another load balancer needs it", change)
                    .await
                {
                    Ok(()) => {}
                    Err(error)
                        if matches!(error.kind(), ErrorKind::Throttled | ErrorKind::Transient) =>
                    {
                        return Err(error);
                    }
                    // The failure must not keep the revoked rules in place; the next drift check of
                    // the other load balancer reports it.
                    Err(error) => {
                        let error = error.chain();
                        tracing::warn!(group = %id, error, "cannot grant again what another load balancer needs");
                    }
                }
            }
            let mut owed = self.rules_to_restore.lock();
            if let Some(left) = owed.get_mut(&id) {
                left.retain(|rule| !rules.contains(rule));
                if left.is_empty() {
                    owed.remove(&id);
                }
            }
        }
        Ok(())
    }

    /// Computes which rules to remove from a group. `living`: existing load balancers, whether or
    /// not their needs are known.
    pub(super) fn rules_to_remove(
        &self,
        lb_name: &str,
        group: &SecurityGroup,
        desired: &BTreeSet<Rule>,
        living: &BTreeSet<Box<str>>,
    ) -> RuleChange {
        let foreign = Cluster::any(&group.tags) && !self.scope.cluster.has(&group.tags);
        if foreign || self.is_protected(&group.id) {
            return RuleChange::default();
        }
        let mut revoke =
            plan::surplus(&group.ingress, desired, |rule| desired_rules::belongs_to(rule, lb_name));
        let needed = self.needed_by_others(&group.id, lb_name);
        let needed: Vec<Rule> = needed.into_iter().chain(desired.iter().cloned()).collect();
        let mut others = plan::unused_mtu_rules(&group.ingress, &revoke, &needed);
        if group
            .ingress
            .iter()
            .any(|rule| desired_rules::health_of(rule).is_some())
        {
            let state: BTreeSet<Box<str>> = self.needed_rules.lock().keys().cloned().collect();
            let known = |name: &str| name == lb_name || state.contains(name);
            // A load balancer with unknown needs may depend on a health rule with another one's
            // name.
            if group
                .ingress
                .iter()
                .filter_map(desired_rules::client_of)
                .all(known)
            {
                let alive = |name: &str| known(name) || living.contains(name);
                others.extend(plan::unused_health_rules(&group.ingress, &needed, alive));
            } else {
                revoke.retain(|rule| desired_rules::health_of(rule).is_none());
            }
        }
        let by_absence = !others.is_empty();
        revoke.extend(others);
        RuleChange { revoke, by_absence, ..RuleChange::default() }
    }

    /// Returns the rules that other load balancers than `but` need in a group.
    fn needed_by_others(&self, id: &SecurityGroupId, but: &str) -> BTreeSet<Rule> {
        let needs = self.needed_rules.lock();
        let others = needs.iter().filter(|(name, _)| ***name != *but);
        others
            .filter_map(|(_, of)| of.get(id))
            .flatten()
            .cloned()
            .collect()
    }
}

/// Returns the missing rules of a group as a change.
pub(super) fn missing_rules(group: &SecurityGroup, desired: &BTreeSet<Rule>) -> RuleChange {
    RuleChange {
        grant: plan::missing(&group.ingress, desired),
        ..RuleChange::default()
    }
}

/// Chooses the group of an instance: the one with the cluster's tag, or the only one.
pub(super) fn choose_node_group(
    cluster: &Cluster,
    groups: &GroupsById,
    instance: &InstanceId,
    of: &[SecurityGroupId],
) -> Result<Option<SecurityGroupId>, CloudError> {
    let state = of.iter().filter_map(|id| groups.get(id));
    let (tagged, untagged): (Vec<_>, Vec<_>) = state.partition(|group| cluster.has(&group.tags));
    match (&*tagged, &*untagged) {
        ([one], _) | ([], [one]) => Ok(Some(one.id.clone())),
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

/// Chooses the group of an interface with a pod's address: the one with the cluster's tag. The only
/// group is used without a tag if the interface belongs to an instance of the cluster, as with
/// nodes. Several tagged groups are no error of the Service.
pub(super) fn choose_interface_group(
    cluster: &Cluster,
    groups: &GroupsById,
    interface_groups: &InterfaceGroups,
) -> Option<SecurityGroupId> {
    let state: Vec<_> = interface_groups
        .groups
        .iter()
        .filter_map(|id| groups.get(id))
        .collect();
    let tagged: Vec<_> = state
        .iter()
        .filter(|group| cluster.has(&group.tags))
        .collect();
    match (&*tagged, &*state) {
        ([one], _) => Some(one.id.clone()),
        ([], [one])
            if interface_groups.groups.len() == 1
                && interface_groups.has_cluster_tag
                && !Cluster::any(&one.tags) =>
        {
            Some(one.id.clone())
        }
        _ => None,
    }
}

/// Names the groups of an interface, for users.
fn described(groups: &GroupsById, interface_groups: &InterfaceGroups) -> Box<str> {
    let name = |id: &SecurityGroupId| match groups.get(id) {
        Some(group) => format!("{id} ({})", group.name),
        None => id.to_string(),
    };
    let names: Vec<_> = interface_groups.groups.iter().map(name).collect();
    if names.is_empty() {
        "an interface without any".into()
    } else {
        names.join(" with ").into()
    }
}
