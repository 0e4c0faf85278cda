//! Keeps the observed state of a Service up to date while a plan is applied. Each applied action
//! updates it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    api::{
        ListenerArn, LoadBalancerArn, Tags, TargetGroupArn,
        elb::{
            Attributes, Listener, LoadBalancer, LoadBalancerZone, SourceNatPrefix, SubnetMapping,
            Target, TargetGroup,
        },
    },
    lb::{
        model::ListenerKey,
        observe::observed::{
            ObservedListener, ObservedLoadBalancer, ObservedState, ObservedTargetGroup,
            registered_targets, set_attributes, set_tags,
        },
        plan::{ActionKind, ListenerRef, ListenerSettings, TargetGroupRef, default_attributes},
    },
};

/// The observed state while a plan is applied.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkingState {
    /// The observed state, after the actions applied so far.
    pub observed: ObservedState,
    /// Target groups that the plan created, by the key of their listener.
    created_groups: BTreeMap<ListenerKey, TargetGroupArn>,
}

impl WorkingState {
    /// Creates the working state from the observed state.
    pub(crate) fn new(observed: ObservedState) -> Self {
        Self { observed, created_groups: BTreeMap::new() }
    }

    /// Returns the load balancer's ARN; `None` if it does not exist yet.
    pub(crate) fn load_balancer_arn(&self) -> Option<&LoadBalancerArn> {
        self.observed
            .load_balancer
            .as_ref()
            .map(|observed| &observed.resource.arn)
    }

    /// Returns the ARN of a referenced target group; `None` if it was not created yet.
    pub(crate) fn target_group_arn(&self, group: &TargetGroupRef) -> Option<TargetGroupArn> {
        match group {
            TargetGroupRef::Existing(arn) => Some(arn.clone()),
            TargetGroupRef::New(key) => self.created_groups.get(key).cloned(),
        }
    }

    /// Returns the ARN of a referenced listener; `None` if it was not created yet.
    pub(crate) fn listener_arn(&self, listener: &ListenerRef) -> Option<ListenerArn> {
        match listener {
            ListenerRef::Existing(arn) => Some(arn.clone()),
            ListenerRef::New(key) => self
                .observed
                .listener(*key)
                .map(|observed| observed.resource.arn.clone()),
        }
    }

    /// Records a new load balancer, with the tags and default attributes that it has.
    pub(crate) fn load_balancer_created(&mut self, load_balancer: LoadBalancer, tags: &Tags) {
        let attributes = Some(to_attributes(&default_attributes::load_balancer()));
        self.observed.load_balancer = Some(ObservedLoadBalancer {
            tags: Some(tags.clone()),
            attributes,
            capacity_units: Some(0),
            ..ObservedLoadBalancer::bare(load_balancer)
        });
    }

    /// Records a new target group.
    pub(crate) fn target_group_created(
        &mut self,
        key: ListenerKey,
        group: TargetGroup,
        tags: &Tags,
    ) {
        let attributes = if let Some(target_type) = group.target_type
            && let Some(protocol) = group.protocol
        {
            Some(to_attributes(&default_attributes::target_group(target_type, protocol)))
        } else {
            None
        };
        let observed = ObservedTargetGroup {
            tags: Some(tags.clone()),
            attributes,
            targets: Some(BTreeMap::new()),
            ..ObservedTargetGroup::bare(group)
        };
        self.target_group_adopted(key, observed);
    }

    /// Records a target group that existed already but had not been observed.
    pub(crate) fn target_group_adopted(&mut self, key: ListenerKey, observed: ObservedTargetGroup) {
        self.created_groups
            .insert(key, observed.resource.arn.clone());
        self.observed
            .target_groups
            .retain(|group| group.resource.arn != observed.resource.arn);
        self.observed.target_groups.push(observed);
    }

    /// Records a new listener.
    pub(crate) fn listener_created(&mut self, listener: Listener, tags: &Tags) {
        let observed = ObservedListener {
            tags: Some(tags.clone()),
            attributes: Some(to_attributes(&default_attributes::listener())),
            certificates: Some(BTreeSet::new()),
            ..ObservedListener::bare(listener)
        };
        if let Some(load_balancer) = &mut self.observed.load_balancer {
            load_balancer.listeners.push(observed);
        }
    }

    /// Records registrations and deregistrations of targets.
    pub(crate) fn targets_changed(
        &mut self,
        arn: &TargetGroupArn,
        registered: &[Target],
        deregistered: &[Target],
    ) {
        if let Some(targets) = self
            .observed
            .group_mut(arn)
            .and_then(|group| group.targets.as_mut())
        {
            targets.retain(|id, _| !registered_targets(deregistered).contains_key(id));
            targets.extend(registered_targets(registered));
        }
    }

    /// Records an applied action whose response has no content.
    // length: one arm for each action
    pub(crate) fn action_applied(&mut self, action: &ActionKind) {
        match action {
            // Settings of the load balancer.
            ActionKind::SetIpAddressType(family) => {
                self.update_load_balancer(|observed| {
                    observed.resource.ip_address_type = Some(*family);
                });
            }
            ActionKind::SetSubnets(change) => self.update_load_balancer(|observed| {
                observed.resource.ip_address_type =
                    change.ip_address_type.or(observed.resource.ip_address_type);
                observed.resource.zones = change
                    .subnets
                    .iter()
                    .map(|mapping| updated_zone(mapping, &observed.resource.zones))
                    .collect();
                observed.resource.ipv6_source_nat =
                    change.ipv6_source_nat.or(observed.resource.ipv6_source_nat);
                if change.ipv6_source_nat == Some(false) {
                    for zone in &mut observed.resource.zones {
                        zone.source_nat_prefixes.clear();
                    }
                }
            }),
            ActionKind::SetSecurityGroups(groups, rules) => {
                let before = self
                    .observed
                    .load_balancer
                    .iter()
                    .flat_map(|observed| &observed.resource.security_groups);
                self.observed
                    .detached_security_groups
                    .extend(before.filter(|group| !groups.contains(group)).cloned());
                self.update_load_balancer(|observed| {
                    observed.resource.security_groups.clone_from(groups);
                    observed.resource.private_link_rules =
                        rules.or(observed.resource.private_link_rules);
                });
            }
            ActionKind::ModifyLoadBalancerAttributes(set) => {
                self.update_load_balancer(|observed| set_attributes(&mut observed.attributes, set));
            }
            ActionKind::ReserveCapacity(units) => {
                self.update_load_balancer(|observed| observed.capacity_units = Some(*units));
            }
            // Tags.
            ActionKind::AddTags(arns, tags) => self.tags_changed(arns, tags, &[]),
            ActionKind::RemoveTags(arns, keys) => self.tags_changed(arns, &Tags::new(), keys),
            // Target groups.
            ActionKind::ModifyTargetGroup(arn, check) => {
                if let Some(observed) = self.observed.group_mut(arn) {
                    observed.resource.health_check = Some(check.clone());
                }
            }
            ActionKind::ModifyTargetGroupAttributes(group, set) => {
                let arn = self.target_group_arn(group);
                if let Some(observed) = arn.and_then(|arn| self.observed.group_mut(&arn)) {
                    set_attributes(&mut observed.attributes, set);
                }
            }
            // Listeners.
            ActionKind::ModifyListener(arn, settings) => self.listener_changed(arn, settings),
            ActionKind::ModifyListenerAttributes(listener, set) => {
                self.update_listener(listener, |observed| {
                    set_attributes(&mut observed.attributes, set);
                });
            }
            ActionKind::AddListenerCertificate(listener, add) => {
                self.update_listener(listener, |observed| {
                    if let Some(certificates) = &mut observed.certificates {
                        certificates.insert(add.clone());
                    }
                });
            }
            ActionKind::RemoveListenerCertificate(arn, remove) => {
                self.update_listener(&ListenerRef::Existing(arn.clone()), |observed| {
                    if let Some(certificates) = &mut observed.certificates {
                        certificates.remove(remove);
                    }
                });
            }
            // Deletions.
            ActionKind::DeleteListener(arn) => {
                self.update_load_balancer(|observed| {
                    observed
                        .listeners
                        .retain(|observed| observed.resource.arn != *arn);
                });
            }
            ActionKind::DeleteTargetGroup(arn) => {
                self.observed
                    .target_groups
                    .retain(|observed| observed.resource.arn != *arn);
                self.observed.unmodifiable_groups.remove(arn);
            }
            ActionKind::CleanUpSecurityGroups(groups) => {
                self.observed
                    .detached_security_groups
                    .retain(|group| !groups.contains(group));
            }
            // Recorded by the methods above, or not part of the observed state.
            ActionKind::CreateLoadBalancer(_)
            | ActionKind::CreateTargetGroup(..)
            | ActionKind::CreateListener(_)
            | ActionKind::RegisterTargets(..)
            | ActionKind::DeregisterTargets(..)
            | ActionKind::AddSecurityGroupRules
            | ActionKind::RemoveSecurityGroupRules
            | ActionKind::RemoveSecurityGroupMarks => {}
        }
    }

    fn update_load_balancer(&mut self, change: impl FnOnce(&mut ObservedLoadBalancer)) {
        if let Some(observed) = &mut self.observed.load_balancer {
            change(observed);
        }
    }

    fn update_listener(
        &mut self,
        listener: &ListenerRef,
        change: impl FnOnce(&mut ObservedListener),
    ) {
        let arn = self.listener_arn(listener);
        if let Some(observed) = arn.and_then(|arn| self.observed.listener_mut(&arn)) {
            change(observed);
        }
    }

    fn listener_changed(&mut self, arn: &ListenerArn, settings: &ListenerSettings) {
        let group = self.target_group_arn(&settings.group);
        if let Some(observed) = self.observed.listener_mut(arn) {
            let listener = &mut observed.resource;
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

    fn tags_changed(&mut self, arns: &[Box<str>], set: &Tags, remove: &[Box<str>]) {
        for arn in arns {
            if let Some(tags) = self.tags_mut(arn) {
                set_tags(tags, set, remove);
            }
        }
    }

    /// Returns the tags of an observed object.
    fn tags_mut(&mut self, arn: &str) -> Option<&mut Option<Tags>> {
        if let Some(observed) = &mut self.observed.load_balancer {
            if *observed.resource.arn == *arn {
                return Some(&mut observed.tags);
            }
            for listener in &mut observed.listeners {
                if *listener.resource.arn == *arn {
                    return Some(&mut listener.tags);
                }
            }
        }
        let groups = &mut self.observed.target_groups;
        let group = groups
            .iter_mut()
            .find(|group| *group.resource.arn == *arn)?;
        Some(&mut group.tags)
    }
}

/// Returns the zone of a load balancer after its subnets were set.
fn updated_zone(mapping: &SubnetMapping, before: &[LoadBalancerZone]) -> LoadBalancerZone {
    let mut zone = match LoadBalancerZone::find(before, &mapping.subnet) {
        Some(zone) => zone.clone(),
        None => new_zone(mapping),
    };
    // Which one AWS chooses is read at the next comparison.
    if let Some(SourceNatPrefix::Network(network)) = mapping.source_nat_prefix {
        zone.source_nat_prefixes = vec![network.to_string().into()];
    }
    zone
}

fn new_zone(mapping: &SubnetMapping) -> LoadBalancerZone {
    LoadBalancerZone {
        subnet: Some(mapping.subnet.clone()),
        allocations: mapping.allocation.iter().cloned().collect(),
        private_ipv4: mapping
            .private_ipv4
            .iter()
            .map(|ip| ip.to_string().into())
            .collect(),
        ipv6: mapping
            .ipv6
            .iter()
            .map(|ip| ip.to_string().into())
            .collect(),
        ..LoadBalancerZone::default()
    }
}

fn to_attributes(attributes: &[(&str, &str)]) -> Attributes {
    attributes
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect()
}
