//! What a change does to what there is: keeps the picture of a Service's objects true while a plan is carried out. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    model::ListenerKey,
    plan::{Action, GroupRef, ListenerRef, ListenerSettings, default_attributes},
    seen::{Observed, SeenBalancer, SeenGroup, SeenListener, members, set_attributes, set_tags},
};
use crate::api::{
    ListenerArn, LoadBalancerArn, Tags, TargetGroupArn,
    elb::{Attributes, Listener, LoadBalancer, LoadBalancerZone, SubnetMapping, Target, TargetGroup},
};

/// The picture while a plan is carried out.
#[derive(Clone, Debug, Default)]
pub struct Picture {
    /// What there is.
    pub observed: Observed,
    /// Target groups that the plan made, by the place of their listener.
    made: BTreeMap<ListenerKey, TargetGroupArn>,
}

impl Picture {
    /// Starts from what was read.
    pub fn new(observed: Observed) -> Self {
        Self { observed, made: BTreeMap::new() }
    }

    /// Returns the balancer's ARN; `None` as long as there is none.
    pub fn balancer(&self) -> Option<&LoadBalancerArn> {
        self.observed.balancer.as_ref().map(|seen| &seen.balancer.arn)
    }

    /// Returns which target group is meant; `None` for one that was not made.
    pub fn group(&self, group: &GroupRef) -> Option<TargetGroupArn> {
        match group {
            GroupRef::Existing(arn) => Some(arn.clone()),
            GroupRef::New(key) => self.made.get(key).cloned(),
        }
    }

    /// Returns which listener is meant; `None` for one that was not made.
    pub fn listener(&self, listener: &ListenerRef) -> Option<ListenerArn> {
        match listener {
            ListenerRef::Existing(arn) => Some(arn.clone()),
            ListenerRef::New(key) => self.observed.listener(*key).map(|seen| seen.listener.arn.clone()),
        }
    }

    /// Notes a balancer that was made.
    pub fn made_balancer(&mut self, balancer: LoadBalancer, tags: &Tags) {
        let attributes = Some(owned(&default_attributes::balancer()));
        self.observed.balancer =
            Some(SeenBalancer { tags: Some(tags.clone()), attributes, ..SeenBalancer::bare(balancer) });
    }

    /// Notes a target group that was made.
    pub fn made_group(&mut self, key: ListenerKey, group: TargetGroup, tags: &Tags) {
        let attributes = match (group.target_type, group.protocol) {
            (Some(target_type), Some(protocol)) => {
                Some(owned(&default_attributes::target_group(target_type, protocol)))
            }
            _ => None,
        };
        let seen = SeenGroup {
            tags: Some(tags.clone()),
            attributes,
            targets: Some(BTreeMap::new()),
            ..SeenGroup::bare(group)
        };
        self.found_group(key, seen);
    }

    /// Notes a target group that was there already, although it had not been seen.
    pub fn found_group(&mut self, key: ListenerKey, seen: SeenGroup) {
        self.made.insert(key, seen.group.arn.clone());
        self.observed.groups.retain(|group| group.group.arn != seen.group.arn);
        self.observed.groups.push(seen);
    }

    /// Notes a listener that was made.
    pub fn made_listener(&mut self, listener: Listener, tags: &Tags) {
        let seen = SeenListener {
            tags: Some(tags.clone()),
            attributes: Some(owned(&default_attributes::listener())),
            certificates: Some(BTreeSet::new()),
            ..SeenListener::bare(listener)
        };
        if let Some(balancer) = &mut self.observed.balancer {
            balancer.listeners.push(seen);
        }
    }

    /// Notes registrations and deregistrations.
    pub fn note_targets(&mut self, arn: &TargetGroupArn, registered: &[Target], deregistered: &[Target]) {
        if let Some(targets) = self.observed.group_mut(arn).and_then(|group| group.targets.as_mut()) {
            targets.retain(|id, _| !members(deregistered).contains_key(id));
            targets.extend(members(registered));
        }
    }

    /// Notes a change that was made and answered nothing.
    // length: one arm for each action
    pub fn note(&mut self, action: &Action) {
        match action {
            Action::SetIpAddressType(family) => self.balancer_mut(|seen| seen.balancer.ip_address_type = Some(*family)),
            Action::SetSubnets(change) => self.balancer_mut(|seen| {
                seen.balancer.ip_address_type = change.ip_address_type.or(seen.balancer.ip_address_type);
                seen.balancer.zones =
                    change.subnets.iter().map(|mapping| zone(mapping, &seen.balancer.zones)).collect();
                seen.balancer.ipv6_source_nat = change.ipv6_source_nat.or(seen.balancer.ipv6_source_nat);
            }),
            Action::SetSecurityGroups(groups, rules) => {
                let before = self.observed.balancer.iter().flat_map(|seen| &seen.balancer.security_groups);
                self.observed.detached.extend(before.filter(|group| !groups.contains(group)).cloned());
                self.balancer_mut(|seen| {
                    seen.balancer.security_groups.clone_from(groups);
                    seen.balancer.private_link_rules = rules.or(seen.balancer.private_link_rules);
                });
            }
            Action::ModifyLoadBalancerAttributes(set) => {
                self.balancer_mut(|seen| set_attributes(&mut seen.attributes, set));
            }
            Action::AddTags(arns, tags) => self.note_tags(arns, tags, &[]),
            Action::RemoveTags(arns, keys) => self.note_tags(arns, &Tags::new(), keys),
            Action::ModifyTargetGroup(arn, check) => {
                if let Some(seen) = self.observed.group_mut(arn) {
                    seen.group.health_check = Some(check.clone());
                }
            }
            Action::ModifyTargetGroupAttributes(group, set) => {
                let arn = self.group(group);
                if let Some(seen) = arn.and_then(|arn| self.observed.group_mut(&arn)) {
                    set_attributes(&mut seen.attributes, set);
                }
            }
            Action::ModifyListener(arn, settings) => self.note_listener(arn, settings),
            Action::ModifyListenerAttributes(listener, set) => {
                self.listener_mut(listener, |seen| set_attributes(&mut seen.attributes, set));
            }
            Action::AddListenerCertificate(listener, add) => self.listener_mut(listener, |seen| {
                seen.certificates.iter_mut().for_each(|have| _ = have.insert(add.clone()));
            }),
            Action::RemoveListenerCertificate(arn, remove) => {
                self.listener_mut(&ListenerRef::Existing(arn.clone()), |seen| {
                    seen.certificates.iter_mut().for_each(|have| _ = have.remove(remove));
                });
            }
            Action::DeleteListener(arn) => {
                self.balancer_mut(|seen| seen.listeners.retain(|seen| seen.listener.arn != *arn));
            }
            Action::DeleteTargetGroup(arn) => {
                self.observed.groups.retain(|seen| seen.group.arn != *arn);
                self.observed.frozen.remove(arn);
            }
            Action::ReleaseSecurityGroups(groups) => self.observed.detached.retain(|group| !groups.contains(group)),
            Action::CreateLoadBalancer(_)
            | Action::CreateTargetGroup(..)
            | Action::CreateListener(_)
            | Action::RegisterTargets(..)
            | Action::DeregisterTargets(..)
            | Action::OpenSecurityGroups
            | Action::CloseSecurityGroups => {}
        }
    }

    fn balancer_mut(&mut self, change: impl FnOnce(&mut SeenBalancer)) {
        if let Some(seen) = &mut self.observed.balancer {
            change(seen);
        }
    }

    fn listener_mut(&mut self, listener: &ListenerRef, change: impl FnOnce(&mut SeenListener)) {
        let arn = self.listener(listener);
        if let Some(seen) = arn.and_then(|arn| self.observed.listener_mut(&arn)) {
            change(seen);
        }
    }

    fn note_listener(&mut self, arn: &ListenerArn, settings: &ListenerSettings) {
        let group = self.group(&settings.group);
        if let Some(seen) = self.observed.listener_mut(arn) {
            let listener = &mut seen.listener;
            listener.target_group = group;
            listener.certificate.clone_from(&settings.certificate);
            if settings.ssl_policy.is_some() {
                listener.ssl_policy.clone_from(&settings.ssl_policy);
            }
            if settings.alpn_policy.is_some() {
                listener.alpn_policy.clone_from(&settings.alpn_policy);
            }
        }
    }

    fn note_tags(&mut self, arns: &[Box<str>], set: &Tags, remove: &[Box<str>]) {
        let named = |arn: &str| arns.iter().any(|named| **named == *arn);
        if let Some(seen) = &mut self.observed.balancer {
            if named(&seen.balancer.arn) {
                set_tags(&mut seen.tags, set, remove);
            }
            for listener in seen.listeners.iter_mut().filter(|seen| named(&seen.listener.arn)) {
                set_tags(&mut listener.tags, set, remove);
            }
        }
        for group in self.observed.groups.iter_mut().filter(|seen| named(&seen.group.arn)) {
            set_tags(&mut group.tags, set, remove);
        }
    }
}

fn zone(mapping: &SubnetMapping, before: &[LoadBalancerZone]) -> LoadBalancerZone {
    let same = before.iter().find(|zone| zone.subnet.as_ref() == Some(&mapping.subnet));
    same.cloned().unwrap_or_else(|| LoadBalancerZone {
        subnet: Some(mapping.subnet.clone()),
        allocations: mapping.allocation.iter().cloned().collect(),
        private_ipv4: mapping.private_ipv4.iter().map(|ip| ip.to_string().into()).collect(),
        ipv6: mapping.ipv6.iter().map(|ip| ip.to_string().into()).collect(),
        ..LoadBalancerZone::default()
    })
}

fn owned(attributes: &[(&str, &str)]) -> Attributes {
    attributes.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
}
