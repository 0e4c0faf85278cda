//! Rules on the groups of nodes: which group of an instance counts, what each has to admit, and what is to be taken off.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ccm_core::provider::{CloudError, ErrorKind, Op};

use super::{
    Exposure, LeftAlone, SecurityGroups,
    book::Groups,
    plan::{self, Change},
    rules::{self, Admission},
};
use crate::{
    api::{
        InstanceId, SecurityGroupId,
        ec2::{Rule, SecurityGroup},
        elb::TargetType,
    },
    cluster::Cluster,
    lb::pods::Footing,
};

/// What the groups of nodes have to admit for one load balancer.
pub(super) struct Admitted {
    /// All groups.
    pub(super) groups: Arc<Groups>,
    /// Those that nodes are in.
    pub(super) chosen: BTreeSet<SecurityGroupId>,
    /// Rules that each of these needs.
    pub(super) rules: BTreeSet<Rule>,
    /// What would have to admit it and is not ours.
    pub(super) left_alone: LeftAlone,
}

/// Groups that have to admit a load balancer.
#[derive(Default)]
struct Chosen {
    groups: BTreeSet<SecurityGroupId>,
    /// Those that are not ours, as they are called for people.
    foreign: BTreeSet<Box<str>>,
}

/// No rules.
static NONE: BTreeSet<Rule> = BTreeSet::new();

impl Admitted {
    /// Returns the rules that a group needs.
    pub(super) fn wanted(&self, id: &SecurityGroupId) -> &BTreeSet<Rule> {
        if self.chosen.contains(id) { &self.rules } else { &NONE }
    }
}

impl SecurityGroups {
    /// Works out what nodes have to admit; `None` when their groups are not looked after.
    pub(super) async fn admission(
        &self,
        op: &Op,
        e: &Exposure<'_>,
        max_age: Duration,
    ) -> Result<Option<Admitted>, CloudError> {
        if self.scope.settings.disable_security_group_ingress {
            return Ok(None);
        }
        let groups = self.book.groups(op, max_age).await?;
        let shared = self.shared_group(op, &groups);
        let admission = Admission::of(e, shared.as_ref());
        if admission == Admission::Unmanaged {
            if e.wanted.target_type == TargetType::Ip {
                // Nobody but us makes rules for pods, so that there shall be none.
                let (chosen, rules, left_alone) = Default::default();
                return Ok(Some(Admitted { groups, chosen, rules, left_alone }));
            }
            self.note_health(op, e, groups).await;
            return Ok(None);
        }
        let rules = rules::nodes(e, admission);
        let (groups, Chosen { groups: chosen, foreign }) = self.chosen(op, e, groups).await?;
        let left_alone = match e.wanted.target_type {
            TargetType::Instance => LeftAlone::default(),
            TargetType::Ip => LeftAlone { groups: foreign, rules: rules.clone() },
        };
        Ok(Some(Admitted { groups, chosen, rules, left_alone }))
    }

    /// Returns the groups that have to admit a load balancer, and all groups with them.
    async fn chosen(
        &self,
        op: &Op,
        e: &Exposure<'_>,
        groups: Arc<Groups>,
    ) -> Result<(Arc<Groups>, Chosen), CloudError> {
        match e.wanted.target_type {
            TargetType::Instance => self.of_instances(op, e, groups).await,
            TargetType::Ip => self.of_pods(op, e, groups).await,
        }
    }

    async fn of_pods(
        &self,
        op: &Op,
        e: &Exposure<'_>,
        groups: Arc<Groups>,
    ) -> Result<(Arc<Groups>, Chosen), CloudError> {
        let named = e.pods.footings.iter().flat_map(|footing| &footing.groups);
        let groups = self.book.with(op, groups, named).await?;
        let mut chosen = Chosen::default();
        for footing in &e.pods.footings {
            match choose_of(&self.scope.cluster, &groups, footing).filter(|id| !self.is_protected(id)) {
                Some(id) => drop(chosen.groups.insert(id)),
                None => drop(chosen.foreign.insert(described(&groups, footing))),
            }
        }
        Ok((groups, chosen))
    }

    async fn of_instances(
        &self,
        op: &Op,
        e: &Exposure<'_>,
        groups: Arc<Groups>,
    ) -> Result<(Arc<Groups>, Chosen), CloudError> {
        let instances = self.store.look_up(op, e.instances, self.trust()).await?;
        let instances = instances.into_values().flatten().filter(|instance| !instance.is_terminated());
        let instances: Vec<_> = instances.collect();
        let named = instances.iter().flat_map(|instance| &instance.security_groups);
        let groups = self.book.with(op, groups, named).await?;
        let mut chosen = Chosen::default();
        for instance in &instances {
            match choose(&self.scope.cluster, &groups, &instance.id, &instance.security_groups)? {
                Some(id) if self.is_protected(&id) => {}
                Some(id) => drop(chosen.groups.insert(id)),
                None => tracing::warn!(instance = %instance.id, "instance has no security group to open"),
            }
        }
        Ok((groups, chosen))
    }

    /// Notes which health rules a load balancer may live by whose rules nobody looks after. Upstream may have made some, and
    /// while nothing is known of it no health rule goes at all.
    async fn note_health(&self, op: &Op, e: &Exposure<'_>, groups: Arc<Groups>) {
        let rules = rules::nodes(e, Admission::Networks).into_iter().filter(|rule| rules::health_of(rule).is_some());
        match self.chosen(op, e, groups).await {
            Ok((groups, Chosen { groups: chosen, .. })) => {
                let (rules, left_alone) = (rules.collect(), LeftAlone::default());
                self.remember(e, &Admitted { groups, chosen, rules, left_alone });
            }
            // It stays unknown, and its Service does not suffer.
            Err(error) => tracing::debug!(load_balancer = e.lb_name, error = error.chain(), "health rules are kept"),
        }
    }

    /// Keeps what a load balancer needs, for others that have the same need.
    pub(super) fn remember(&self, e: &Exposure<'_>, admitted: &Admitted) {
        let needs = admitted.chosen.iter().map(|id| (id.clone(), admitted.rules.clone())).collect();
        self.needs.lock().insert(e.lb_name.into(), needs);
        self.gone.remove(e.lb_name);
    }

    /// Takes rules of a load balancer off all groups of nodes, but for what `wanted` says of each group.
    pub(super) async fn withdraw<'a>(
        &self,
        op: &Op,
        lb_name: &str,
        groups: &Groups,
        wanted: impl Fn(&SecurityGroupId) -> &'a BTreeSet<Rule>,
    ) -> Result<(), CloudError> {
        self.repay(op).await?;
        let living = self.living(op, groups).await?;
        for (id, group) in groups {
            let wanted = wanted(id);
            let revoked = self.withdrawn(lb_name, group, wanted, &living).revoke;
            if revoked.is_empty() {
                continue;
            }
            self.wait_for_others(op, lb_name, &revoked).await?;
            // From here on, whatever becomes of this call.
            self.owe(id, lb_name, &revoked);
            let why = format!("load balancer {lb_name} does not need it");
            let amended = self.book.amend(op, id, &why, |group| self.withdrawn(lb_name, group, wanted, &living)).await;
            // Whoever came to need it meanwhile saw that it was there.
            self.owe(id, lb_name, &revoked);
            amended?;
            self.repay(op).await?;
        }
        Ok(())
    }

    /// Notes what others than one load balancer need of what is taken off a group.
    fn owe(&self, id: &SecurityGroupId, lb_name: &str, revoked: &[Rule]) {
        let mut needed = self.needed(id, lb_name);
        needed.retain(|rule| plan::holds(revoked, rule));
        if !needed.is_empty() {
            self.owed.lock().entry(id.clone()).or_default().extend(needed);
        }
    }

    /// Grants again what another load balancer needs as well and had under the name of the one that lost it. Whoever comes
    /// next does it if this fails.
    async fn repay(&self, op: &Op) -> Result<(), CloudError> {
        let owed = self.owed.lock().clone();
        for (id, rules) in owed {
            let mut due = rules.clone();
            let needed = self.needed(&id, "");
            due.retain(|rule| needed.contains(rule));
            if !due.is_empty() {
                let change = |group: &_| grants(group, &due);
                match self.book.amend(op, &id, "another load balancer needs it", change).await {
                    Ok(()) => {}
                    Err(error) if matches!(error.kind(), ErrorKind::Throttled | ErrorKind::Transient) => {
                        return Err(error);
                    }
                    // That it cannot be had is no reason to keep what the one has left; the other's next check tells.
                    Err(error) => {
                        let error = error.chain();
                        tracing::warn!(group = %id, error, "cannot grant again what another load balancer needs");
                    }
                }
            }
            let mut owed = self.owed.lock();
            if let Some(left) = owed.get_mut(&id) {
                left.retain(|rule| !rules.contains(rule));
                if left.is_empty() {
                    owed.remove(&id);
                }
            }
        }
        Ok(())
    }

    /// Works out what to take off a group. `living`: load balancers that are there, whether or not their needs are known.
    pub(super) fn withdrawn(
        &self,
        lb_name: &str,
        group: &SecurityGroup,
        wanted: &BTreeSet<Rule>,
        living: &BTreeSet<Box<str>>,
    ) -> Change {
        let foreign = Cluster::any(&group.tags) && !self.scope.cluster.has(&group.tags);
        if foreign || self.is_protected(&group.id) {
            return Change::default();
        }
        let mut revoke = plan::surplus(&group.ingress, wanted, |rule| rules::is_of(rule, lb_name));
        let needed = self.needed(&group.id, lb_name);
        let needed: Vec<Rule> = needed.into_iter().chain(wanted.iter().cloned()).collect();
        let mut others = plan::orphaned_mtu(&group.ingress, &revoke, &needed);
        if group.ingress.iter().any(|rule| rules::health_of(rule).is_some()) {
            let known: BTreeSet<Box<str>> = self.needs.lock().keys().cloned().collect();
            let known = |name: &str| name == lb_name || known.contains(name);
            // A balancer whose needs are not known yet may need a health rule that another's name is on.
            if group.ingress.iter().filter_map(rules::client_of).all(known) {
                let alive = |name: &str| known(name) || living.contains(name);
                others.extend(plan::orphaned_health(&group.ingress, &needed, alive));
            } else {
                revoke.retain(|rule| rules::health_of(rule).is_none());
            }
        }
        let by_absence = !others.is_empty();
        revoke.extend(others);
        Change { revoke, by_absence, ..Change::default() }
    }

    /// Returns what load balancers other than one need of a group.
    fn needed(&self, id: &SecurityGroupId, but: &str) -> BTreeSet<Rule> {
        let needs = self.needs.lock();
        let others = needs.iter().filter(|(name, _)| ***name != *but);
        others.filter_map(|(_, of)| of.get(id)).flatten().cloned().collect()
    }
}

/// Works out what a group lacks.
pub(super) fn grants(group: &SecurityGroup, wanted: &BTreeSet<Rule>) -> Change {
    Change { grant: plan::missing(&group.ingress, wanted), ..Change::default() }
}

/// Chooses the group of an instance among those that it has: the one with the cluster's tag, or the only one.
pub(super) fn choose(
    cluster: &Cluster,
    groups: &Groups,
    instance: &InstanceId,
    of: &[SecurityGroupId],
) -> Result<Option<SecurityGroupId>, CloudError> {
    let known = of.iter().filter_map(|id| groups.get(id));
    let (tagged, untagged): (Vec<_>, Vec<_>) = known.partition(|group| cluster.has(&group.tags));
    match (&*tagged, &*untagged) {
        ([one], _) | ([], [one]) => Ok(Some(one.id.clone())),
        ([], []) => Ok(None),
        ([], _) => Err(CloudError::invalid_input(format!(
            "Multiple untagged security groups found for instance {instance}; ensure the k8s security group is tagged"
        ))),
        (several, _) => {
            let names: Vec<_> = several.iter().map(|group| format!("{}({})", group.id, group.name)).collect();
            Err(CloudError::invalid_input(format!(
                "Multiple tagged security groups found for instance {instance}; ensure only the k8s security group is \
                 tagged; the tagged groups were {}",
                names.join(" ")
            )))
        }
    }
}

/// Chooses the group of an interface that a pod has an address of: the one with the cluster's tag. The only one counts
/// without a tag where it is an instance's of the cluster, as with nodes. Several with the tag are no mistake of the Service.
pub(super) fn choose_of(cluster: &Cluster, groups: &Groups, footing: &Footing) -> Option<SecurityGroupId> {
    let known: Vec<_> = footing.groups.iter().filter_map(|id| groups.get(id)).collect();
    let tagged: Vec<_> = known.iter().filter(|group| cluster.has(&group.tags)).collect();
    match (&*tagged, &*known) {
        ([one], _) => Some(one.id.clone()),
        ([], [one]) if footing.groups.len() == 1 && footing.of_cluster && !Cluster::any(&one.tags) => {
            Some(one.id.clone())
        }
        _ => None,
    }
}

/// Names the groups of an interface, for people.
fn described(groups: &Groups, footing: &Footing) -> Box<str> {
    let name = |id: &SecurityGroupId| match groups.get(id) {
        Some(group) => format!("{id} ({})", group.name),
        None => id.to_string(),
    };
    let names: Vec<_> = footing.groups.iter().map(name).collect();
    if names.is_empty() { "an interface without any".into() } else { names.join(" with ").into() }
}
