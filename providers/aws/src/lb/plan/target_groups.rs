//! Plans target groups: which existing group serves which listener, and what happens to the others.

use std::collections::BTreeSet;

use ccm_core::k8s::IpFamily;

use super::{
    Planner,
    action::{ActionKind, TargetGroupRef},
    changed_attributes,
    default_attributes::{self, without_defaults},
    has_mark, join_keys,
};
use crate::{
    api::{
        TargetGroupArn,
        elb::{CreateTargetGroup, HealthCheck, IpAddressType, Target, TargetGroup},
    },
    lb::{
        model::{DesiredListener, DesiredLoadBalancer, DesiredTargetGroup, ListenerKey},
        names,
        observe::observed::{ObservedState, ObservedTargetGroup, registered_targets},
    },
};

/// Maximum number of targets per request.
const MAX_TARGETS: usize = 200;
/// Number of names of a target group, the first included, so that a new group can replace one that cannot
/// be changed. More unchangeable groups at a time do not occur.
const MAX_NAMES: usize = 4;

/// The existing target group of each listener.
pub(super) struct TargetGroupPairing<'a> {
    pub(super) pairs: Vec<ListenerGroupPair<'a>>,
    kept: BTreeSet<TargetGroupArn>,
}

pub(super) struct ListenerGroupPair<'a> {
    pub(super) desired: &'a DesiredListener,
    /// The existing group that the listener keeps or takes over; `None` if it gets a new one.
    group: Option<&'a ObservedTargetGroup>,
    /// The name of a new group.
    name: Box<str>,
    /// An existing group of the Service that has the name of the new group and must be deleted
    /// first.
    name_conflict: Option<&'a ObservedTargetGroup>,
}

impl ListenerGroupPair<'_> {
    pub(super) fn key(&self) -> ListenerKey {
        (self.desired.port, self.desired.protocol)
    }

    /// Returns the existing group that the listener keeps or takes over.
    pub(super) fn observed_group(&self) -> Option<&ObservedTargetGroup> {
        self.group
    }

    pub(super) fn group(&self) -> TargetGroupRef {
        match self.group {
            Some(observed) => TargetGroupRef::Existing(observed.resource.arn.clone()),
            None => TargetGroupRef::New(self.key()),
        }
    }
}

impl<'a> ListenerGroupPair<'a> {
    /// Chooses the name of the group that a listener without one gets.
    fn with_new_group(
        desired: &'a DesiredLoadBalancer,
        listener: &'a DesiredListener,
        observed: &'a ObservedState,
        kept: &BTreeSet<TargetGroupArn>,
    ) -> Self {
        let first_name = &listener.target_group.name;
        let conflict = observed.group_by_name(first_name);
        // After a manual change, another listener may keep the group of that name.
        let is_used = conflict.is_some_and(|group| kept.contains(&group.resource.arn));
        // A group whose health check cannot be changed serves until a new group with another name
        // replaces it.
        // One whose tags could not be read is never deleted. A group that was kept with its load
        // balancer, or adopted by another Service, keeps its name.
        let is_unmodifiable = conflict.is_some_and(|group| {
            group.tags.is_none() || observed.unmodifiable_groups.contains(&group.resource.arn)
        });
        let is_reserved = observed.reserved_group_names.contains(first_name);
        let max_names = if is_used || is_unmodifiable || is_reserved {
            MAX_NAMES
        } else {
            1
        };
        let is_taken = |name: &str| {
            observed.group_by_name(name).is_some() || observed.reserved_group_names.contains(name)
        };
        let free_name = candidate_names(desired, listener)
            .take(max_names)
            .find(|name| !is_taken(name));
        let name_conflict = if free_name.is_none() && !is_used {
            conflict.filter(|group| group.tags.is_some())
        } else {
            None
        };
        Self {
            desired: listener,
            group: None,
            name: free_name.unwrap_or_else(|| first_name.clone()),
            name_conflict,
        }
    }
}

impl<'a> TargetGroupPairing<'a> {
    /// Pairs listeners with groups. A listener keeps its group if that can serve it. The others
    /// take a group that no desired listener uses: first one with the right name, left by an
    /// interrupted sync, then one of a listener on the same port that will be deleted.
    pub(super) fn new(desired: &'a DesiredLoadBalancer, observed: &'a ObservedState) -> Self {
        // Existing listeners keep their groups.
        let mut kept = BTreeSet::new();
        let mut groups: Vec<Option<&ObservedTargetGroup>> = Vec::new();
        for listener in &desired.listeners {
            let group = current_group(listener, observed).filter(|group| {
                can_serve(group, listener, observed) && !kept.contains(&group.resource.arn)
            });
            kept.extend(group.map(|group| group.resource.arn.clone()));
            groups.push(group);
        }
        // The other listeners take unused groups.
        for (listener, group) in desired.listeners.iter().zip(&mut groups) {
            if group.is_some() {
                continue;
            }
            let names: Vec<_> = candidate_names(desired, listener).take(MAX_NAMES).collect();
            let named = observed
                .target_groups
                .iter()
                .filter(|group| names.contains(&group.resource.name));
            *group = named
                .chain(groups_on_port(listener, observed))
                .find(|group| {
                    can_serve(group, listener, observed) && !kept.contains(&group.resource.arn)
                });
            kept.extend(group.map(|group| group.resource.arn.clone()));
        }
        // Listeners that are still without a group get a new one.
        let mut pairs = Vec::new();
        for (listener, group) in desired.listeners.iter().zip(groups) {
            pairs.push(match group {
                Some(group) => ListenerGroupPair {
                    desired: listener,
                    group: Some(group),
                    name: listener.target_group.name.clone(),
                    name_conflict: None,
                },
                None => ListenerGroupPair::with_new_group(desired, listener, observed, &kept),
            });
        }
        Self { pairs, kept }
    }
}

/// Returns the target group that an existing listener has now.
fn current_group<'a>(
    desired: &DesiredListener,
    observed: &'a ObservedState,
) -> Option<&'a ObservedTargetGroup> {
    let listener = observed.listener(desired.key())?;
    observed.group(listener.resource.target_group.as_ref()?)
}

/// Returns the target groups of the existing listeners on the port of a desired one.
fn groups_on_port<'a>(
    desired: &DesiredListener,
    observed: &'a ObservedState,
) -> impl Iterator<Item = &'a ObservedTargetGroup> + use<'a> {
    let port = desired.port.get();
    observed
        .load_balancer
        .iter()
        .flat_map(|load_balancer| &load_balancer.listeners)
        .filter(move |listener| listener.resource.port == port)
        .filter_map(|listener| observed.group(listener.resource.target_group.as_ref()?))
}

/// Returns the names that the group of a listener may have, in order of preference.
fn candidate_names<'a>(
    desired: &'a DesiredLoadBalancer,
    listener: &'a DesiredListener,
) -> impl Iterator<Item = Box<str>> + 'a {
    std::iter::successors(Some(listener.target_group.name.clone()), |name| {
        Some(names::another_target_group(&desired.owner, name))
    })
}

/// Returns true if a group can serve a listener, as it is or with another health check.
fn can_serve(
    candidate: &ObservedTargetGroup,
    listener: &DesiredListener,
    observed: &ObservedState,
) -> bool {
    let group = &candidate.resource;
    let desired = &listener.target_group;
    if observed.unmodifiable_groups.contains(&group.arn)
        && health_check_differs(group, &desired.health_check)
    {
        return false;
    }
    group.protocol == Some(desired.protocol)
        && group.target_type == Some(desired.target_type)
        && group.port == desired.port.get()
        && group.ip_address_type.unwrap_or(IpAddressType::Ipv4) == family(desired)
}

/// Returns true if the health check of a group differs from the desired one, or is unknown.
fn health_check_differs(group: &TargetGroup, desired: &HealthCheck) -> bool {
    match &group.health_check {
        Some(current) => differs(current, desired),
        None => true,
    }
}

fn family(target_group: &DesiredTargetGroup) -> IpAddressType {
    match target_group.family {
        IpFamily::V4 => IpAddressType::Ipv4,
        IpFamily::V6 => IpAddressType::Ipv6,
    }
}

/// Returns true if a health check differs from the desired one. Settings that are left to AWS are
/// ignored.
pub fn differs(current: &HealthCheck, desired: &HealthCheck) -> bool {
    let mut desired = desired.clone();
    if desired.path.is_none() {
        desired.path.clone_from(&current.path);
    }
    if desired.matcher.is_none() {
        desired.matcher.clone_from(&current.matcher);
    }
    *current != desired
}

impl Planner<'_> {
    /// Deletes groups whose name a new group needs, such as one of the other address family.
    /// Service is interrupted meanwhile.
    pub(super) fn delete_conflicting_groups(&mut self, pairing: &TargetGroupPairing<'_>) {
        for conflict in pairing.pairs.iter().filter_map(|pair| pair.name_conflict) {
            let arn = &conflict.resource.arn;
            let listeners = self
                .observed
                .load_balancer
                .iter()
                .flat_map(|load_balancer| &load_balancer.listeners);
            for listener in listeners {
                if listener.resource.target_group.as_ref() == Some(arn) {
                    let reason =
                        format!("target group {} must be replaced", conflict.resource.name);
                    self.add(ActionKind::DeleteListener(listener.resource.arn.clone()), reason);
                }
            }
            self.add(ActionKind::DeleteTargetGroup(arn.clone()), "another one needs its name");
        }
    }

    pub(super) fn plan_groups(&mut self, pairing: &TargetGroupPairing<'_>) {
        for pair in &pairing.pairs {
            match pair.group {
                Some(observed) => self.update_group(pair, observed),
                None => self.create_group(pair),
            }
        }
    }

    fn create_group(&mut self, pair: &ListenerGroupPair<'_>) {
        let key = pair.key();
        let target_group = &pair.desired.target_group;
        let create = CreateTargetGroup {
            name: pair.name.clone(),
            protocol: target_group.protocol,
            port: target_group.port,
            vpc: self.input.vpc.clone(),
            target_type: target_group.target_type,
            ip_address_type: Some(family(target_group))
                .filter(|family| *family != IpAddressType::Ipv4),
            health_check: target_group.health_check.clone(),
            tags: self.input.tags.clone(),
        };
        let reason = format!("listener {}/{} has no fitting target group", key.1, key.0);
        self.add(ActionKind::CreateTargetGroup(key, Box::new(create)), reason);
        let attributes = without_defaults(
            &target_group.attributes,
            &default_attributes::target_group(target_group.target_type, target_group.protocol),
        );
        if !attributes.is_empty() {
            let reason = format!("{} differ from AWS' defaults", join_keys(&attributes));
            self.add(
                ActionKind::ModifyTargetGroupAttributes(TargetGroupRef::New(key), attributes),
                reason,
            );
        }
        for chunk in self.desired_targets(key).chunks(MAX_TARGETS) {
            let register = ActionKind::RegisterTargets(TargetGroupRef::New(key), chunk.to_vec());
            self.add(register, format!("{} targets are missing", chunk.len()));
        }
    }

    fn update_group(&mut self, pair: &ListenerGroupPair<'_>, observed: &ObservedTargetGroup) {
        let arn = &observed.resource.arn;
        let target_group = &pair.desired.target_group;
        if health_check_differs(&observed.resource, &target_group.health_check) {
            let modify =
                ActionKind::ModifyTargetGroup(arn.clone(), target_group.health_check.clone());
            self.add(modify, "health check differs");
        }
        if let Some(attributes) = &observed.attributes {
            let differing = changed_attributes(&target_group.attributes, attributes);
            if !differing.is_empty() {
                let reason = format!("{} differ", join_keys(&differing));
                let group = TargetGroupRef::Existing(arn.clone());
                self.add(ActionKind::ModifyTargetGroupAttributes(group, differing), reason);
            }
        }
        let desired = self.desired_targets(pair.key());
        self.plan_targets(observed, &desired);
    }

    /// Plans registrations and deregistrations. Deregistrations come first, so that a full group
    /// can exchange targets. There are none while targets are kept.
    fn plan_targets(&mut self, observed: &ObservedTargetGroup, desired: &[Target]) {
        let Some(registered) = &observed.targets else {
            return;
        };
        let arn = &observed.resource.arn;
        let desired_targets = registered_targets(desired);
        let surplus: Vec<_> = registered
            .iter()
            .filter(|(key, _)| !desired_targets.contains_key(*key))
            .map(|(_, target)| target.clone())
            .collect();
        let missing: Vec<_> = desired_targets
            .iter()
            .filter(|(key, _)| !registered.contains_key(*key))
            .map(|(_, target)| target.clone())
            .collect();
        let surplus = if self.input.keeps_targets {
            Vec::new()
        } else {
            surplus
        };
        for chunk in surplus.chunks(MAX_TARGETS) {
            let reason = format!("{} targets are not desired", chunk.len());
            self.add(ActionKind::DeregisterTargets(arn.clone(), chunk.to_vec()), reason);
        }
        for chunk in missing.chunks(MAX_TARGETS) {
            let reason = format!("{} targets are missing", chunk.len());
            self.add(
                ActionKind::RegisterTargets(TargetGroupRef::Existing(arn.clone()), chunk.to_vec()),
                reason,
            );
        }
    }

    /// Plans the targets of existing groups.
    pub(super) fn plan_existing_targets(&mut self, pairing: &TargetGroupPairing<'_>) {
        for pair in &pairing.pairs {
            if let Some(observed) = pair.group {
                let desired = self.desired_targets(pair.key());
                self.plan_targets(observed, &desired);
            }
        }
    }

    fn desired_targets(&self, key: ListenerKey) -> Vec<Target> {
        let desired = self.input.targets.get(&key).into_iter().flatten();
        registered_targets(desired).into_values().collect()
    }

    /// Plans the deletion of groups that no desired listener uses, after every listener has left
    /// them.
    pub(super) fn delete_unused_groups(&mut self, pairing: &TargetGroupPairing<'_>) {
        let already_deleted: BTreeSet<_> = pairing
            .pairs
            .iter()
            .filter_map(|pair| pair.name_conflict)
            .map(|conflict| &conflict.resource.arn)
            .collect();
        for group in &self.observed.target_groups {
            let arn = &group.resource.arn;
            // Without its tags, nothing proves that the group may be deleted.
            if group.tags.is_none() {
                continue;
            }
            // What is being adopted stays until the adoption is about to be finished.
            if self.input.keeps_targets && has_mark(group.tags.as_ref()) {
                continue;
            }
            if !pairing.kept.contains(arn) && !already_deleted.contains(arn) {
                self.add(ActionKind::DeleteTargetGroup(arn.clone()), "no listener needs it");
            }
        }
    }
}
