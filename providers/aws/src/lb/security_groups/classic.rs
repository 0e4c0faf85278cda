//! The security group of a classic load balancer, and the rules by which nodes admit it.
//!
//! Nodes admit a classic load balancer by one rule: all traffic from one of its groups. Upstream
//! writes no description, so that only its source says whose a rule is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::provider::{CloudError, ErrorKind, Op, PlannedChange};
use ipnet::IpNet;

use super::{
    SHARED_READ_AGE, SecurityGroupManager,
    cache::GroupsById,
    cleanup::references,
    managed,
    plan::{self, RuleChange},
    planned_changes,
};
use crate::{
    api::{
        InstanceId, SecurityGroupId,
        ec2::{CreateSecurityGroup, Rule, RuleSource, SecurityGroup},
    },
    client::with_message,
    lb::classic::model::{ClassicGroups, DesiredClassic},
    ownership_tags::Cluster,
};

/// The load balancer and the instances for which rules of nodes are planned or applied.
#[derive(Clone, Copy, Debug)]
pub(in crate::lb) struct ClassicRuleRequest<'a> {
    /// The load balancer.
    pub(in crate::lb) name: &'a str,
    /// The groups that it has or will have.
    pub(in crate::lb) groups: &'a [SecurityGroupId],
    /// The groups that the Service requests.
    pub(in crate::lb) requested: &'a ClassicGroups,
    /// Its instances.
    pub(in crate::lb) instances: &'a [InstanceId],
}

/// The rules of a load balancer's own group that are revoked if the Service does not request them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lb) enum TrimmedRules {
    /// Those for sources that the Service does not admit at all.
    Sources,
    /// All, also those for ports that a listener may still have.
    All,
}

impl TrimmedRules {
    fn of(self, group: &SecurityGroup, desired: &DesiredClassic) -> Vec<Rule> {
        let mut rules = managed::surplus_rules(group, &own_group_rules(desired));
        if self == Self::Sources {
            let networks = desired.sources.iter();
            let admitted: Vec<_> = networks.map(|it| RuleSource::Cidr(it.trunc())).collect();
            rules.retain(|rule| !admitted.contains(&rule.source));
        }
        rules
    }
}

/// What the description of a load balancer's own group begins with, as upstream writes it.
const DESCRIPTION_PREFIX: &str = "Security group for Kubernetes ELB ";

/// Changes by the group whose rules change.
type ChangesByGroup = BTreeMap<SecurityGroupId, RuleChange>;

/// Returns the name of the security group of a classic load balancer, which is upstream's.
pub(crate) fn group_name(lb_name: &str) -> Box<str> {
    format!("k8s-elb-{lb_name}").into()
}

fn description(desired: &DesiredClassic) -> Box<str> {
    let (name, service) = (&desired.name, desired.owner.key());
    format!("{DESCRIPTION_PREFIX}{name} ({service})").into()
}

/// Returns the Service, as `namespace/name`, for whose classic load balancer a group was created;
/// `None` for other groups. Name and description, which AWS never changes, must agree.
pub(in crate::lb) fn service_of_group(group: &SecurityGroup) -> Option<&str> {
    let text = group.description.strip_prefix(DESCRIPTION_PREFIX)?;
    let (lb_name, service) = text.strip_suffix(')')?.split_once(" (")?;
    (*group.name == *group_name(lb_name)).then_some(service)
}

/// Returns the rules of the load balancer's own group: each port of the Service and "packet too big",
/// from all permitted sources.
fn own_group_rules(desired: &DesiredClassic) -> BTreeSet<Rule> {
    let rule = |protocol: &str, ports: (i32, i32), network: &IpNet| Rule {
        protocol: protocol.into(),
        ports: Some(ports),
        source: RuleSource::Cidr(network.trunc()),
        description: Box::default(),
    };
    let mut rules = BTreeSet::new();
    for network in &desired.sources {
        for port in &desired.ports {
            let port = i32::from(*port);
            rules.insert(rule("tcp", (port, port), network));
        }
        rules.insert(rule("icmp", (3, 4), network));
    }
    rules
}

/// Returns the group by which nodes admit a load balancer, as upstream chooses it: requested groups
/// first, in their order, then its own one, then extra ones; but a group with the cluster's tag before
/// one without.
///
/// Upstream's order is not a total one, so that its insertion sort is repeated here: another result
/// would move the rules of all nodes.
pub(in crate::lb) fn traffic_group(
    lb_groups: &[SecurityGroupId],
    requested: &ClassicGroups,
    is_tagged: impl Fn(&SecurityGroupId) -> bool,
) -> Option<SecurityGroupId> {
    let ClassicGroups { given, extra } = requested;
    let order = |id: &SecurityGroupId| {
        let in_given = given.iter().position(|other| other == id);
        let in_extra = || extra.iter().position(|other| other == id);
        in_given
            .or_else(|| in_extra().map(|at| given.len() + 1 + at))
            .unwrap_or(given.len())
    };
    let is_before = |a: &SecurityGroupId, b: &SecurityGroupId| {
        order(a) < order(b) || (is_tagged(a) && !is_tagged(b))
    };
    let mut sorted: Vec<SecurityGroupId> = lb_groups.to_vec();
    for end in 1..sorted.len() {
        let mut at = end;
        while at > 0 && is_before(&sorted[at], &sorted[at - 1]) {
            sorted.swap(at, at - 1);
            at -= 1;
        }
    }
    sorted.into_iter().next()
}

/// Returns the rules to grant in the groups of nodes. Any rule with the source counts as the one that
/// is needed, because an owner may have narrowed it.
fn grants(
    groups: &GroupsById,
    source: &SecurityGroupId,
    needed: &BTreeSet<SecurityGroupId>,
) -> ChangesByGroup {
    let mut changes = ChangesByGroup::new();
    for id in needed {
        let is_admitted = groups
            .get(id)
            .is_some_and(|group| !references(group, source).is_empty());
        if !is_admitted {
            let grant = vec![all_traffic(source)];
            changes.insert(id.clone(), RuleChange { grant, ..RuleChange::default() });
        }
    }
    changes
}

/// Returns the rules to revoke in groups of the cluster that no instance needs. Only rules for all
/// traffic are upstream's or ours.
pub(super) fn revocations(
    groups: &GroupsById,
    cluster: &Cluster,
    source: &SecurityGroupId,
    needed: &BTreeSet<SecurityGroupId>,
) -> ChangesByGroup {
    let mut changes = ChangesByGroup::new();
    for (id, group) in groups {
        let revoke = all_traffic_rules(group, source);
        if id != source && !needed.contains(id) && !revoke.is_empty() && cluster.has(&group.tags) {
            changes.insert(id.clone(), RuleChange { revoke, ..RuleChange::default() });
        }
    }
    changes
}

fn all_traffic(source: &SecurityGroupId) -> Rule {
    Rule {
        protocol: "-1".into(),
        ports: None,
        source: RuleSource::Group(source.clone(), None),
        description: Box::default(),
    }
}

pub(super) fn all_traffic_rules(group: &SecurityGroup, source: &SecurityGroupId) -> Vec<Rule> {
    let mut rules = references(group, source);
    rules.retain(|rule| &*rule.protocol == "-1");
    rules
}

impl SecurityGroupManager {
    /// Returns the groups that a classic load balancer is to have. Finds or creates its own one if
    /// the Service requests none, and adds missing rules to it. `attached` has the groups that it has
    /// now.
    ///
    /// # Errors
    /// A group of that name that is somebody else's
    /// ([`InvalidInput`](ErrorKind::InvalidInput)), and errors of AWS.
    pub(in crate::lb) async fn ensure_classic_groups(
        &self,
        op: &Op,
        desired: &DesiredClassic,
        attached: &[SecurityGroupId],
    ) -> Result<Vec<SecurityGroupId>, CloudError> {
        let first = match self.given_classic_groups(&desired.groups) {
            Some(given) => given,
            None => vec![self.ensure_own_classic_group(op, desired, attached).await?],
        };
        Ok(with_extra(first, &desired.groups))
    }

    /// Returns the groups in place of the load balancer's own one: those of the Service, or the
    /// configured one; `None` if it has its own.
    pub(super) fn given_classic_groups(
        &self,
        groups: &ClassicGroups,
    ) -> Option<Vec<SecurityGroupId>> {
        if !groups.given.is_empty() {
            return Some(groups.given.clone());
        }
        let configured = &self.scope.settings.protected_security_group;
        configured.as_ref().map(|group| vec![group.clone()])
    }

    async fn ensure_own_classic_group(
        &self,
        op: &Op,
        desired: &DesiredClassic,
        attached: &[SecurityGroupId],
    ) -> Result<SecurityGroupId, CloudError> {
        let name = group_name(&desired.name);
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        let group = match managed::find(&groups, &name) {
            Some(group) => group,
            None => self.create_classic_group(op, desired, &name).await?,
        };
        let missing_tags = self.check_own_classic_group(&group, desired, attached)?;
        if missing_tags {
            let tags = self.scope.cluster.tags();
            self.cache
                .tag(op, &group, tags, "the cluster's tag is missing")
                .await?;
        }
        // Networks that lost access must not wait for the rest of the sync.
        let rules = own_group_rules(desired);
        let change = |group: &SecurityGroup| RuleChange {
            grant: plan::missing(&group.ingress, &rules),
            revoke: TrimmedRules::Sources.of(group, desired),
            ..RuleChange::default()
        };
        let needed = change(&group);
        if !needed.grant.is_empty() || !needed.revoke.is_empty() {
            let reason = "the Service admits other clients";
            self.cache
                .update_rules(op, &group.id, reason, change)
                .await?;
        }
        Ok(group.id.clone())
    }

    /// Checks that a group with the name of the own one is ours. Returns true if it lacks the
    /// cluster's tag, as after a creation by an old upstream that could not tag it.
    fn check_own_classic_group(
        &self,
        group: &SecurityGroup,
        desired: &DesiredClassic,
        attached: &[SecurityGroupId],
    ) -> Result<bool, CloudError> {
        let cluster = &self.scope.cluster;
        let is_expected =
            *group.description == *description(desired) || attached.contains(&group.id);
        if cluster.owns(&group.tags) || (cluster.id().is_empty() && is_expected) {
            return Ok(false);
        }
        if is_expected && !Cluster::any(&group.tags) {
            return Ok(true);
        }
        Err(CloudError::invalid_input(format!(
            "security group {} ({}) has the name of the one for {} but is not of this cluster",
            group.name,
            group.id,
            desired.owner.key()
        )))
    }

    async fn create_classic_group(
        &self,
        op: &Op,
        desired: &DesiredClassic,
        name: &str,
    ) -> Result<Arc<SecurityGroup>, CloudError> {
        let mut tags = desired.extra_tags.clone();
        tags.extend(self.scope.cluster.tags());
        let request = CreateSecurityGroup {
            name: name.into(),
            description: description(desired),
            vpc: self.scope.vpc.clone(),
            tags,
        };
        let reason = "the load balancer needs it";
        match self.cache.create(op, request, reason).await {
            Ok(Some(group)) => Ok(Arc::new(group)),
            Ok(None) => self.cache.read_by_name(op, name).await?.ok_or_else(|| {
                let message = format!("security group {name} exists but is not visible yet");
                CloudError::new(ErrorKind::Conflict, message)
            }),
            Err(error) => {
                let error = CloudError::from(error);
                let text = format!("unable to create security group {name}: {error}");
                Err(with_message(&error, text))
            }
        }
    }

    /// Revokes rules of the own group that the Service does not request. The whole group is ours, so that
    /// this concerns all other rules. Called after the listeners.
    ///
    /// # Errors
    /// Errors of AWS.
    pub(in crate::lb) async fn trim_classic_group(
        &self,
        op: &Op,
        desired: &DesiredClassic,
        trimmed: TrimmedRules,
    ) -> Result<(), CloudError> {
        if self.given_classic_groups(&desired.groups).is_some() {
            return Ok(());
        }
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        let Some(group) = managed::find(&groups, &group_name(&desired.name)) else {
            return Ok(());
        };
        // After an error nobody has checked whose the group is.
        let is_ours = self.scope.cluster.owns(&group.tags) || trimmed == TrimmedRules::All;
        if !is_ours || trimmed.of(&group, desired).is_empty() {
            return Ok(());
        }
        let reason = "the Service does not allow it";
        self.cache
            .update_rules(op, &group.id, reason, |group| RuleChange {
                revoke: trimmed.of(group, desired),
                ..RuleChange::default()
            })
            .await
    }

    /// Lets the groups of nodes admit a load balancer.
    ///
    /// # Errors
    /// Instances with an ambiguous group ([`InvalidInput`](ErrorKind::InvalidInput)), and errors of
    /// AWS.
    pub(in crate::lb) async fn admit_classic(
        &self,
        op: &Op,
        request: &ClassicRuleRequest<'_>,
    ) -> Result<(), CloudError> {
        let Some(rules) = self.classic_node_rules(op, request).await? else {
            return Ok(());
        };
        let reason = format!("instances of {} must admit it", request.name);
        for id in grants(&rules.groups, &rules.source, &rules.needed).into_keys() {
            self.cache
                .update_rules(op, &id, &reason, |group| {
                    let is_admitted = !references(group, &rules.source).is_empty();
                    let missing = (!is_admitted).then(|| all_traffic(&rules.source));
                    RuleChange {
                        grant: missing.into_iter().collect(),
                        ..RuleChange::default()
                    }
                })
                .await?;
        }
        Ok(())
    }

    /// Revokes the rules for a load balancer in groups of the cluster that none of its instances has.
    ///
    /// # Errors
    /// As [`admit_classic`](Self::admit_classic).
    pub(in crate::lb) async fn expel_classic(
        &self,
        op: &Op,
        request: &ClassicRuleRequest<'_>,
    ) -> Result<(), CloudError> {
        let Some(rules) = self.classic_node_rules(op, request).await? else {
            return Ok(());
        };
        self.revoke_classic_rules(op, request.name, &rules.source, &rules.needed)
            .await
    }

    /// Returns the changes of own group and nodes' groups, without making them. Nothing is returned
    /// for a group that does not exist yet.
    ///
    /// # Errors
    /// As [`admit_classic`](Self::admit_classic).
    pub(in crate::lb) async fn plan_classic_rules(
        &self,
        op: &Op,
        desired: Option<&DesiredClassic>,
        request: &ClassicRuleRequest<'_>,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let max_age = SHARED_READ_AGE.min(self.max_rule_age());
        let groups = self.cache.groups(op, max_age).await?;
        let mut changes = Vec::new();
        let own = managed::find(&groups, &group_name(request.name));
        if let (Some(desired), Some(group)) = (desired, own)
            && self.given_classic_groups(&desired.groups).is_none()
        {
            if self.check_own_classic_group(&group, desired, request.groups)? {
                changes.push(PlannedChange {
                    operation: "CreateTags".into(),
                    object: (&*group.id).into(),
                    reason: "the cluster's tag is missing".into(),
                });
            }
            let rules = own_group_rules(desired);
            let change = RuleChange {
                grant: plan::missing(&group.ingress, &rules),
                revoke: managed::surplus_rules(&group, &rules),
                ..RuleChange::default()
            };
            changes.extend(planned_changes(&group.id, &change));
        }
        if let Some(rules) = self.classic_node_rules(op, request).await? {
            let grants = grants(&rules.groups, &rules.source, &rules.needed);
            let revoked =
                revocations(&rules.groups, &self.scope.cluster, &rules.source, &rules.needed);
            for (id, change) in grants.iter().chain(&revoked) {
                changes.extend(planned_changes(id, change));
            }
        }
        Ok(changes)
    }

    /// Returns the rules that a new load balancer needs whose own group does not exist yet: in that group,
    /// and in those of nodes.
    ///
    /// # Errors
    /// As [`admit_classic`](Self::admit_classic).
    pub(in crate::lb) async fn plan_new_classic_rules(
        &self,
        op: &Op,
        desired: &DesiredClassic,
        request: &ClassicRuleRequest<'_>,
    ) -> Result<Vec<PlannedChange>, CloudError> {
        let own = SecurityGroupId::from(&*group_name(request.name));
        let grant = own_group_rules(desired).into_iter().collect();
        let mut changes = planned_changes(&own, &RuleChange { grant, ..RuleChange::default() });
        if self.scope.settings.disable_security_group_ingress {
            return Ok(changes);
        }
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        let (groups, needed) = self
            .managed_groups_of(op, request.instances, groups)
            .await?;
        for (id, change) in grants(&groups, &own, &needed) {
            changes.extend(planned_changes(&id, &change));
        }
        Ok(changes)
    }

    /// Returns the groups that a load balancer would get, without creating one; `None` if its own one
    /// does not exist yet.
    ///
    /// # Errors
    /// Errors of AWS.
    pub(in crate::lb) async fn plan_classic_groups(
        &self,
        op: &Op,
        desired: &DesiredClassic,
    ) -> Result<Option<Vec<SecurityGroupId>>, CloudError> {
        let first = match self.given_classic_groups(&desired.groups) {
            Some(given) => given,
            None => {
                let max_age = SHARED_READ_AGE.min(self.max_rule_age());
                let groups = self.cache.groups(op, max_age).await?;
                match managed::find(&groups, &group_name(&desired.name)) {
                    Some(own) => vec![own.id.clone()],
                    None => return Ok(None),
                }
            }
        };
        Ok(Some(with_extra(first, &desired.groups)))
    }

    /// Computes which groups of nodes must admit which group of a load balancer; `None` if the rules
    /// of nodes are not managed.
    async fn classic_node_rules(
        &self,
        op: &Op,
        request: &ClassicRuleRequest<'_>,
    ) -> Result<Option<ClassicNodeRules>, CloudError> {
        if self.scope.settings.disable_security_group_ingress {
            return Ok(None);
        }
        let groups = self.cache.groups(op, self.max_rule_age()).await?;
        let groups = self.cache.read_missing(op, groups, request.groups).await?;
        let cluster = &self.scope.cluster;
        let is_tagged =
            |id: &SecurityGroupId| groups.get(id).is_some_and(|group| cluster.has(&group.tags));
        let source = traffic_group(request.groups, request.requested, is_tagged);
        let source = source.ok_or_else(|| {
            let message = format!("load balancer {} has no security group", request.name);
            CloudError::new(ErrorKind::Conflict, message)
        })?;
        let (groups, needed) = self
            .managed_groups_of(op, request.instances, groups)
            .await?;
        Ok(Some(ClassicNodeRules { groups, source, needed }))
    }
}

/// The rules of nodes that a load balancer needs.
struct ClassicNodeRules {
    /// All groups of the VPC.
    groups: Arc<GroupsById>,
    /// The group of the load balancer that the rules name.
    source: SecurityGroupId,
    /// The groups of its instances.
    needed: BTreeSet<SecurityGroupId>,
}

/// Adds the extra groups of a Service to the others, without duplicates.
pub(super) fn with_extra(
    mut groups: Vec<SecurityGroupId>,
    requested: &ClassicGroups,
) -> Vec<SecurityGroupId> {
    for extra in &requested.extra {
        if !groups.contains(extra) {
            groups.push(extra.clone());
        }
    }
    groups
}

#[cfg(test)]
#[path = "classic_tests.rs"]
mod tests;
