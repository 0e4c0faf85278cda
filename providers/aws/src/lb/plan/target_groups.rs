//! Plans target groups: which existing group serves which listener, and what happens to the others.

use std::collections::BTreeSet;

use ccm_core::k8s::IpFamily;

use super::{
    Planner,
    action::{ActionKind, TargetGroupRef},
    changed_attributes,
    default_attributes::{self, without_defaults},
    keys,
};
use crate::{
    api::{
        TargetGroupArn,
        elb::{CreateTargetGroup, HealthCheck, IpAddressType},
    },
    lb::{
        model::{DesiredListener, DesiredLoadBalancer, DesiredTargetGroup, ListenerKey},
        names,
        observe::observed::{ObservedState, ObservedTargetGroup, registered_targets},
    },
};

/// Maximum number of targets per request.
const MAX_TARGETS: usize = 200;
/// How many names a target group may have, so that a new group can replace one that cannot be
/// changed. That many unchangeable groups at a time do not occur.
const MAX_NAMES: usize = 4;

/// The existing target group of each listener.
pub(super) struct TargetGroupPairing<'a> {
    pub(super) pairs: Vec<ListenerGroupPair<'a>>,
    kept: BTreeSet<TargetGroupArn>,
}

pub(super) struct ListenerGroupPair<'a> {
    pub(super) desired: &'a DesiredListener,
    /// The group that it keeps or takes over; `None` for a new one.
    group: Option<&'a ObservedTargetGroup>,
    /// Name of a new group.
    name: Box<str>,
    /// A group of ours that cannot serve this listener but has the name that the new group needs.
    name_conflict: Option<&'a ObservedTargetGroup>,
}

impl ListenerGroupPair<'_> {
    pub(super) fn key(&self) -> ListenerKey {
        (self.desired.port, self.desired.protocol)
    }

    pub(super) fn group(&self) -> TargetGroupRef {
        match self.group {
            Some(observed) => TargetGroupRef::Existing(observed.group.arn.clone()),
            None => TargetGroupRef::New(self.key()),
        }
    }
}

impl<'a> TargetGroupPairing<'a> {
    /// Pairs listeners with groups. A listener keeps its group if that can serve it. The others
    /// take a group that no desired listener uses: first one with the right name, left by an
    /// interrupted sync, then one of a listener on the same port that will be deleted.
    pub(super) fn of(desired: &'a DesiredLoadBalancer, observed: &'a ObservedState) -> Self {
        // First, keep the groups of existing listeners.
        let mut kept = BTreeSet::new();
        let mut found: Vec<Option<&ObservedTargetGroup>> = Vec::new();
        for desired_listener in &desired.listeners {
            let listener = observed.listener(desired_listener.key());
            let group = listener
                .and_then(|seen| seen.listener.target_group.as_ref())
                .and_then(|arn| observed.group(arn))
                .filter(|group| {
                    can_serve(group, desired_listener, observed) && !kept.contains(&group.group.arn)
                });
            kept.extend(group.map(|group| group.group.arn.clone()));
            found.push(group);
        }
        // Then look for unused groups for the other listeners.
        for (want, group) in desired
            .listeners
            .iter()
            .zip(&mut found)
            .filter(|(_, group)| group.is_none())
        {
            let free = |target_group: &&ObservedTargetGroup| {
                can_serve(target_group, want, observed) && !kept.contains(&target_group.group.arn)
            };
            let names: Vec<_> = names_of(desired, want).take(MAX_NAMES).collect();
            let named = observed
                .target_groups
                .iter()
                .filter(free)
                .find(|group| names.contains(&group.group.name));
            let on_port = || {
                let listeners = observed
                    .load_balancer
                    .iter()
                    .flat_map(|load_balancer| &load_balancer.listeners);
                listeners
                    .filter(|listener| listener.listener.port == want.port.get())
                    .filter_map(|listener| observed.group(listener.listener.target_group.as_ref()?))
                    .find(free)
            };
            *group = named.or_else(on_port);
            kept.extend(group.map(|group| group.group.arn.clone()));
        }
        // Finally, name the groups that will be created.
        let pairs = desired.listeners.iter().zip(found).map(|(want, group)| {
            let taken = |name: &str| {
                observed
                    .target_groups
                    .iter()
                    .find(|seen| *seen.group.name == *name)
            };
            let named = taken(&want.target_group.name).filter(|_| group.is_none());
            // A group whose health check cannot be changed serves until a new one with another name
            // takes over. A group that another listener keeps, as after a manual change, continues
            // to serve that one.
            let used = named.is_some_and(|seen| kept.contains(&seen.group.arn));
            let stays = used
                || named.is_some_and(|seen| observed.unmodifiable_groups.contains(&seen.group.arn));
            let mut names = names_of(desired, want).take(if stays { MAX_NAMES } else { 1 });
            let name = names.find(|name| taken(name).is_none());
            let in_the_way = if name.is_none() && !used { named } else { None };
            ListenerGroupPair {
                desired: want,
                group,
                name: name.unwrap_or_else(|| want.target_group.name.clone()),
                name_conflict: in_the_way,
            }
        });
        let pairs = pairs.collect();
        Self { pairs, kept }
    }
}

/// Returns the names that the group of a listener may have, in order of preference.
fn names_of<'a>(
    desired: &'a DesiredLoadBalancer,
    listener: &'a DesiredListener,
) -> impl Iterator<Item = Box<str>> + 'a {
    std::iter::successors(Some(listener.target_group.name.clone()), |name| {
        Some(names::another_target_group(&desired.owner, name))
    })
}

/// Tells whether a group can serve a listener, as it is or with another health check.
fn can_serve(
    seen: &ObservedTargetGroup,
    desired_listener: &DesiredListener,
    observed: &ObservedState,
) -> bool {
    let group = &seen.group;
    let want = &desired_listener.target_group;
    let frozen = observed.unmodifiable_groups.contains(&group.arn)
        && group
            .health_check
            .as_ref()
            .is_none_or(|have| differs(have, &want.health_check));
    group.protocol == Some(want.protocol)
        && group.target_type == Some(want.target_type)
        && group.port == want.port.get()
        && group.ip_address_type.unwrap_or(IpAddressType::Ipv4) == family(want)
        && !frozen
}

fn family(target_group: &DesiredTargetGroup) -> IpAddressType {
    match target_group.family {
        IpFamily::V4 => IpAddressType::Ipv4,
        IpFamily::V6 => IpAddressType::Ipv6,
    }
}

/// Tells whether a health check differs from the desired one. Settings that are left to AWS are
/// ignored.
pub fn differs(have: &HealthCheck, desired_check: &HealthCheck) -> bool {
    let left_to_aws = HealthCheck {
        path: desired_check.path.clone().or_else(|| have.path.clone()),
        matcher: desired_check
            .matcher
            .clone()
            .or_else(|| have.matcher.clone()),
        ..desired_check.clone()
    };
    *have != left_to_aws
}

impl Planner<'_> {
    /// Deletes groups whose name a new group needs, such as one of the other address family.
    /// Service is interrupted meanwhile.
    pub(super) fn delete_conflicting_groups(&mut self, pairing: &TargetGroupPairing<'_>) {
        for observed in pairing.pairs.iter().filter_map(|pair| pair.name_conflict) {
            let arn = &observed.group.arn;
            let listeners = self
                .observed
                .load_balancer
                .iter()
                .flat_map(|load_balancer| &load_balancer.listeners);
            let using =
                listeners.filter(|listener| listener.listener.target_group.as_ref() == Some(arn));
            for listener in using {
                let why = format!("target group {} has to be made anew", observed.group.name);
                self.add(ActionKind::DeleteListener(listener.listener.arn.clone()), why);
            }
            self.add(ActionKind::DeleteTargetGroup(arn.clone()), "another one needs its name");
        }
    }

    pub(super) fn groups(&mut self, pairing: &TargetGroupPairing<'_>) {
        for pair in &pairing.pairs {
            match pair.group {
                Some(observed) => self.existing_group(pair, observed),
                None => self.new_group(pair),
            }
        }
    }

    fn new_group(&mut self, pair: &ListenerGroupPair<'_>) {
        let key = pair.key();
        let target_group = &pair.desired.target_group;
        let create = CreateTargetGroup {
            name: pair.name.clone(),
            protocol: target_group.protocol,
            port: target_group.port,
            vpc: self.resolved.vpc.clone(),
            target_type: target_group.target_type,
            ip_address_type: Some(family(target_group))
                .filter(|family| *family != IpAddressType::Ipv4),
            health_check: target_group.health_check.clone(),
            tags: self.resolved.tags.clone(),
        };
        let why = format!("listener {}/{} has no fitting target group", key.1, key.0);
        self.add(ActionKind::CreateTargetGroup(key, Box::new(create)), why);
        let attributes = without_defaults(
            &target_group.attributes,
            &default_attributes::target_group(target_group.target_type, target_group.protocol),
        );
        if !attributes.is_empty() {
            let why = format!("{} differ from AWS' defaults", keys(&attributes));
            self.add(
                ActionKind::ModifyTargetGroupAttributes(TargetGroupRef::New(key), attributes),
                why,
            );
        }
        for chunk in self.targets(key).chunks(MAX_TARGETS) {
            let register = ActionKind::RegisterTargets(TargetGroupRef::New(key), chunk.to_vec());
            self.add(register, format!("{} targets are missing", chunk.len()));
        }
    }

    fn existing_group(&mut self, pair: &ListenerGroupPair<'_>, observed: &ObservedTargetGroup) {
        let arn = &observed.group.arn;
        let target_group = &pair.desired.target_group;
        if observed
            .group
            .health_check
            .as_ref()
            .is_none_or(|have| differs(have, &target_group.health_check))
        {
            let modify =
                ActionKind::ModifyTargetGroup(arn.clone(), target_group.health_check.clone());
            self.add(modify, "health check differs");
        }
        if let Some(attributes) = &observed.attributes {
            let differing = changed_attributes(&target_group.attributes, attributes);
            if !differing.is_empty() {
                let why = format!("{} differ", keys(&differing));
                let of = TargetGroupRef::Existing(arn.clone());
                self.add(ActionKind::ModifyTargetGroupAttributes(of, differing), why);
            }
        }
        let desired = self.targets(pair.key());
        self.plan_targets(observed, &desired);
    }

    /// Plans registrations and deregistrations. Deregistrations come first, so that a full group
    /// can exchange targets.
    fn plan_targets(
        &mut self,
        observed: &ObservedTargetGroup,
        desired: &[crate::api::elb::Target],
    ) {
        let Some(have) = &observed.targets else {
            return;
        };
        let arn = &observed.group.arn;
        let desired_targets = registered_targets(desired);
        let surplus: Vec<_> = have
            .iter()
            .filter(|(id, _)| !desired_targets.contains_key(*id))
            .map(|(_, t)| t.clone())
            .collect();
        let missing: Vec<_> = desired_targets
            .iter()
            .filter(|(id, _)| !have.contains_key(*id))
            .map(|(_, t)| t.clone())
            .collect();
        for chunk in surplus.chunks(MAX_TARGETS) {
            let why = format!("{} targets are not wanted", chunk.len());
            self.add(ActionKind::DeregisterTargets(arn.clone(), chunk.to_vec()), why);
        }
        for chunk in missing.chunks(MAX_TARGETS) {
            let why = format!("{} targets are missing", chunk.len());
            self.add(
                ActionKind::RegisterTargets(TargetGroupRef::Existing(arn.clone()), chunk.to_vec()),
                why,
            );
        }
    }

    /// Plans the targets of existing groups.
    pub(super) fn sync_targets(&mut self, pairing: &TargetGroupPairing<'_>) {
        for pair in &pairing.pairs {
            if let Some(observed) = pair.group {
                let desired = self.targets(pair.key());
                self.plan_targets(observed, &desired);
            }
        }
    }

    fn targets(&self, key: ListenerKey) -> Vec<crate::api::elb::Target> {
        let desired = self
            .resolved
            .targets
            .get(&key)
            .map_or(&[][..], Vec::as_slice);
        registered_targets(desired).into_values().collect()
    }

    /// Plans the deletion of groups that no desired listener uses, after every listener has left
    /// them.
    pub(super) fn delete_unused_groups(&mut self, pairing: &TargetGroupPairing<'_>) {
        let cleared: BTreeSet<_> = pairing
            .pairs
            .iter()
            .filter_map(|pair| pair.name_conflict)
            .map(|observed| &observed.group.arn)
            .collect();
        for seen in &self.observed.target_groups {
            let arn = &seen.group.arn;
            if !pairing.kept.contains(arn) && !cleared.contains(arn) {
                self.add(ActionKind::DeleteTargetGroup(arn.clone()), "no listener needs it");
            }
        }
    }
}
