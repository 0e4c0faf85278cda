//! Plans the actions that turn the observed into the desired state, as an ordered list of single
//! requests.
//!
//! The order keeps traffic flowing and allows an interruption anywhere: load balancer, target
//! groups with their targets, security group rules, listeners, and last the removal of objects that
//! nothing refers to any more. After an interruption, a new plan from the new observed state
//! contains the remaining actions.

mod action;
pub mod default_attributes;
mod kept_settings;
mod listeners;
pub mod subnets;
mod target_groups;

use std::{collections::BTreeSet, str::FromStr};

use ccm_core::provider::{CloudError, Digest};

pub use self::{
    action::{
        ActionKind, ListenerRef, ListenerSettings, PlannedAction, SubnetChange, TargetGroupRef,
    },
    target_groups::differs as health_check_differs,
};
use self::{default_attributes::without_defaults, target_groups::TargetGroupPairing};
use super::model::{DesiredLoadBalancer, Targets, UpdateScope};
use crate::{
    api::{
        AllocationId, SecurityGroupId, SubnetId, Tags, TargetGroupArn, VpcId,
        elb::{
            Attributes, CreateLoadBalancer, ElbProtocol, IpAddressType, LoadBalancer,
            LoadBalancerZone, MAX_TAGGED, SubnetMapping,
        },
    },
    lb::observe::observed::{ObservedLoadBalancer, ObservedState},
    ownership_tags::{ADOPTER_TAG, RETAINED_TAG, owner_tags},
};

/// The part of the desired state that depends on the VPC and the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanInput {
    /// The VPC of target groups.
    pub vpc: VpcId,
    /// The tags of all objects, including the ownership tags.
    pub tags: Tags,
    /// The subnets with addresses; `None` keeps the subnets of an existing load balancer.
    pub subnets: Option<Vec<SubnetMapping>>,
    /// The security groups of the load balancer; empty keeps the existing ones.
    pub groups: Vec<SecurityGroupId>,
    /// The targets of each listener's target group.
    pub targets: Targets,
    /// The digest of all inputs of the security group rules.
    pub rules_digest: Digest,
    /// True if no registered target is deregistered, and no security group, rule, mark and marked target
    /// group is removed: the load balancer is being adopted, and the targets of its former Service serve
    /// until others do.
    pub keeps_targets: bool,
}

/// Compares the desired with the observed state and returns the actions that remove the
/// differences.
///
/// # Errors
/// A difference that only a new load balancer could resolve.
pub fn plan(
    desired: &DesiredLoadBalancer,
    input: &PlanInput,
    observed: &ObservedState,
) -> Result<Vec<PlannedAction>, CloudError> {
    let merged = kept_settings::merge(desired, observed);
    let desired = &*merged;
    let mut planner = Planner::new(desired, input, observed);
    match &observed.load_balancer {
        None => planner.create_load_balancer()?,
        Some(load_balancer) => planner.update_load_balancer(load_balancer)?,
    }
    planner.plan_tags();
    let pairing = TargetGroupPairing::new(desired, observed);
    planner.delete_conflicting_groups(&pairing);
    planner.plan_groups(&pairing);
    let rules_differ = observed.rules_digest != Some(input.rules_digest);
    if rules_differ {
        planner.add(ActionKind::AddSecurityGroupRules, "rules of security groups may be missing");
    }
    planner.plan_listeners(&pairing);
    let after_listeners = std::mem::take(&mut planner.after_listeners);
    planner.actions.extend(after_listeners);
    planner.delete_unused_groups(&pairing);
    if input.keeps_targets {
        return Ok(planner.actions);
    }
    if rules_differ {
        planner
            .add(ActionKind::RemoveSecurityGroupRules, "rules of security groups may be left over");
    }
    planner.clean_up_detached_groups();
    planner.remove_marks();
    planner.reserve_capacity();
    Ok(planner.actions)
}

/// Plans only the registration and deregistration of targets in existing target groups.
pub fn plan_targets_only(
    desired: &DesiredLoadBalancer,
    targets: &Targets,
    observed: &ObservedState,
) -> Vec<PlannedAction> {
    let input = PlanInput {
        vpc: VpcId::from(""),
        tags: Tags::new(),
        subnets: None,
        groups: Vec::new(),
        targets: targets.clone(),
        rules_digest: Digest(0),
        keeps_targets: false,
    };
    let mut planner = Planner::new(desired, &input, observed);
    planner.plan_existing_targets(&TargetGroupPairing::new(desired, observed));
    planner.actions
}

/// Keys of tags.
type TagKeys = Vec<Box<str>>;

/// Collects the actions of a plan.
struct Planner<'a> {
    desired: &'a DesiredLoadBalancer,
    input: &'a PlanInput,
    observed: &'a ObservedState,
    actions: Vec<PlannedAction>,
    /// Actions that are possible once listeners are as desired.
    after_listeners: Vec<PlannedAction>,
}

impl<'a> Planner<'a> {
    fn new(
        desired: &'a DesiredLoadBalancer,
        input: &'a PlanInput,
        observed: &'a ObservedState,
    ) -> Self {
        Self {
            desired,
            input,
            observed,
            actions: Vec::new(),
            after_listeners: Vec::new(),
        }
    }
}

impl Planner<'_> {
    fn add(&mut self, action: ActionKind, reason: impl Into<Box<str>>) {
        self.actions
            .push(PlannedAction { action, reason: reason.into() });
    }

    /// Plans the creation of the load balancer, and of settings that creation cannot set.
    fn create_load_balancer(&mut self) -> Result<(), CloudError> {
        let desired = self.desired;
        let input = self.input;
        let Some(subnets) = input.subnets.clone().filter(|subnets| !subnets.is_empty()) else {
            return Err(CloudError::invalid_input(
                "could not find any suitable subnets for creating the ELB",
            ));
        };
        let create = CreateLoadBalancer {
            name: desired.name.clone(),
            scheme: desired.scheme,
            ip_address_type: desired.ip_address_type,
            subnets,
            security_groups: input.groups.clone(),
            ipv6_source_nat: desired.ipv6_source_nat,
            tags: input.tags.clone(),
        };
        let reason = format!("service {} has no load balancer", desired.owner.key());
        self.add(ActionKind::CreateLoadBalancer(Box::new(create)), reason);
        // A new load balancer is created without this setting; AWS' default is on.
        if desired.security.private_link_rules == Some(false) && !input.groups.is_empty() {
            let action = ActionKind::SetSecurityGroups(input.groups.clone(), Some(false));
            self.add(action, "rules for PrivateLink are to be off");
        }
        let attributes =
            without_defaults(&self.desired.attributes, &default_attributes::load_balancer());
        if !attributes.is_empty() {
            let reason = format!("{} differ from AWS' defaults", join_keys(&attributes));
            self.add(ActionKind::ModifyLoadBalancerAttributes(attributes), reason);
        }
        Ok(())
    }

    /// Plans changes of an existing load balancer's settings.
    fn update_load_balancer(&mut self, observed: &ObservedLoadBalancer) -> Result<(), CloudError> {
        let desired = self.desired;
        let load_balancer = &observed.resource;
        if let Some(scheme) = load_balancer
            .scheme
            .filter(|scheme| *scheme != desired.scheme)
        {
            return Err(CloudError::invalid_input(format!(
                "scheme cannot be changed from {scheme} to {} on load balancer {}; delete and recreate the Service",
                desired.scheme, load_balancer.name
            )));
        }
        let previous_type = load_balancer
            .ip_address_type
            .filter(|current| *current != desired.ip_address_type);
        let has_source_nat = load_balancer.ipv6_source_nat.unwrap_or(false);
        let loses_ipv6 = previous_type.is_some() && desired.ip_address_type == IpAddressType::Ipv4;
        // A prefix needs both families. While they stay, AWS would turn it off if it were not named.
        let kept_source_nat = has_source_nat.then_some(!loses_ipv6);
        let ipv6_source_nat = desired.ipv6_source_nat.or(kept_source_nat);
        let mut changes = SubnetSettings {
            ipv6_source_nat,
            source_nat_differs: ipv6_source_nat.is_some_and(|on| on != has_source_nat),
            ip_address_type: None,
        };
        if previous_type.is_some() && changes.source_nat_differs {
            // UDP needs both families together with prefixes, so that neither may change alone.
            changes.ip_address_type = Some(desired.ip_address_type);
            self.plan_subnets(load_balancer, &changes)?;
        } else if desired.ip_address_type == IpAddressType::Dualstack {
            // An IPv6 prefix needs both families, so that these are enabled first.
            self.plan_ip_address_type(previous_type);
            self.plan_subnets(load_balancer, &changes)?;
        } else {
            self.plan_subnets(load_balancer, &changes)?;
            self.plan_ip_address_type(previous_type);
        }
        self.plan_security_groups(observed);
        if let Some(attributes) = &observed.attributes {
            let differing = changed_attributes(&desired.attributes, attributes);
            if !differing.is_empty() {
                let reason = format!("{} differ", join_keys(&differing));
                self.add(ActionKind::ModifyLoadBalancerAttributes(differing), reason);
            }
        }
        Ok(())
    }

    fn plan_ip_address_type(&mut self, old: Option<IpAddressType>) {
        let Some(old) = old else { return };
        let reason = format!("address families are {old}");
        self.add(ActionKind::SetIpAddressType(self.desired.ip_address_type), reason);
    }

    /// Plans the change of subnets, and of the settings that AWS changes together with them.
    fn plan_subnets(
        &mut self,
        load_balancer: &LoadBalancer,
        changes: &SubnetSettings,
    ) -> Result<(), CloudError> {
        // Without a choice of subnets, only the IPv6 prefixes may change.
        let Some(mappings) = &self.input.subnets else {
            self.check_kept_addresses(load_balancer)?;
            if changes.source_nat_differs {
                let existing = existing_mappings(load_balancer, changes);
                self.add(changes.action(existing, false), changes.reason());
            }
            return Ok(());
        };
        let mut mappings = subnets::keep_allocations(load_balancer, mappings);
        check_fixed_addresses(load_balancer, &mappings)?;
        let prefix_change = self.prefix_change(load_balancer, &mappings)?;
        if changes.ipv6_source_nat == Some(true) {
            mappings = subnets::keep_source_nat_prefixes(load_balancer, mappings);
        }
        let current: BTreeSet<SubnetId> = load_balancer
            .zones
            .iter()
            .filter_map(|zone| zone.subnet.clone())
            .collect();
        let chosen: BTreeSet<SubnetId> = mappings
            .iter()
            .map(|mapping| mapping.subnet.clone())
            .collect();
        let prefixes_differ = prefix_change != PrefixChange::None;
        if chosen != current || changes.source_nat_differs || prefixes_differ {
            let added = join_ids(chosen.difference(&current));
            let removed = join_ids(current.difference(&chosen));
            let reason = subnets_reason(&added, &removed).unwrap_or_else(|| changes.reason());
            let action = changes.action(mappings, !removed.is_empty());
            if prefix_change == PrefixChange::AfterListeners {
                let reason = reason.into();
                self.after_listeners.push(PlannedAction { action, reason });
            } else {
                self.add(action, reason);
            }
        }
        Ok(())
    }

    /// Returns when to change the prefixes for source NAT of the load balancer's subnets.
    ///
    /// # Errors
    /// AWS cannot change one, because UDP uses it.
    fn prefix_change(
        &self,
        load_balancer: &LoadBalancer,
        mappings: &[SubnetMapping],
    ) -> Result<PrefixChange, CloudError> {
        let differing: Vec<_> = subnets::differing_prefixes(load_balancer, mappings).collect();
        let mut used = differing
            .iter()
            .filter(|zone| !zone.source_nat_prefixes.is_empty());
        let Some(used) = used.next() else {
            return Ok(match differing.is_empty() {
                true => PrefixChange::None,
                false => PrefixChange::Now,
            });
        };
        // AWS changes a prefix only while there is no UDP listener.
        let mut listeners = self
            .observed
            .load_balancer
            .iter()
            .flat_map(|it| &it.listeners);
        let has_udp =
            listeners.any(|listener| listener.resource.protocol.is_some_and(ElbProtocol::has_udp));
        if !has_udp {
            return Ok(PrefixChange::Now);
        }
        let mut desired = self.desired.listeners.iter();
        if !desired.any(|listener| listener.protocol.has_udp()) {
            return Ok(PrefixChange::AfterListeners);
        }
        let subnet = used.subnet.as_ref().map_or("", |subnet| subnet.as_str());
        Err(CloudError::invalid_input(format!(
            "source-nat-ipv6-prefixes: the prefix of load balancer {} in subnet {subnet} cannot be changed while it has \
             UDP listeners",
            load_balancer.name
        )))
    }

    /// Checks that the addresses of discovered subnets are the desired ones. These subnets and
    /// addresses are never changed.
    fn check_kept_addresses(&self, load_balancer: &LoadBalancer) -> Result<(), CloudError> {
        let desired = self.desired;
        for zone in &load_balancer.zones {
            if let Some(address) = undesired_address(zone, desired) {
                return Err(CloudError::invalid_input(format!(
                    "addresses of load balancer {} cannot be changed, and it has {address}; delete and recreate the Service",
                    load_balancer.name
                )));
            }
        }
        Ok(())
    }

    fn plan_security_groups(&mut self, observed: &ObservedLoadBalancer) {
        let load_balancer = &observed.resource;
        let current: BTreeSet<_> = load_balancer.security_groups.iter().collect();
        let desired: BTreeSet<_> = self.input.groups.iter().collect();
        // A load balancer that was created without security groups cannot get any.
        if current.is_empty() {
            return;
        }
        let private_link_rules = self.desired.security.private_link_rules;
        let rules_differ = private_link_rules
            .is_some_and(|desired| desired != load_balancer.private_link_rules.unwrap_or(true));
        let groups_differ = !desired.is_empty() && desired != current;
        if !groups_differ && !rules_differ {
            return;
        }
        let mut groups = if desired.is_empty() {
            load_balancer.security_groups.clone()
        } else {
            self.input.groups.clone()
        };
        // The nodes of the former Service may admit only the former groups.
        if self.input.keeps_targets {
            for group in &load_balancer.security_groups {
                if !groups.contains(group) {
                    groups.push(group.clone());
                }
            }
            if groups.len() == current.len() && !rules_differ {
                return;
            }
        }
        let reason = if groups_differ {
            "security groups differ"
        } else {
            "rules for PrivateLink differ"
        };
        self.add(ActionKind::SetSecurityGroups(groups, private_link_rules), reason);
    }

    /// Plans tag changes of existing objects. New objects get their tags at creation.
    fn plan_tags(&mut self) {
        if self.desired.updates != UpdateScope::All {
            return;
        }
        let desired = &self.input.tags;
        let obsolete: BTreeSet<_> = self
            .observed
            .removable_tag_keys
            .iter()
            .filter(|key| !desired.contains_key(*key) && ***key != *ADOPTER_TAG)
            .collect();
        // Collect the objects that need the same change, because one request can tag several.
        let mut arns_by_missing_tags: Vec<(Tags, Vec<Box<str>>)> = Vec::new();
        let mut arns_by_obsolete_keys: Vec<(TagKeys, Vec<Box<str>>)> = Vec::new();
        for (arn, tags) in tagged_objects(self.observed) {
            let missing = changed_attributes(desired, tags);
            if !missing.is_empty() {
                push_grouped(&mut arns_by_missing_tags, missing, arn.into());
            }
            let obsolete_here: TagKeys = obsolete
                .iter()
                .filter(|key| tags.contains_key(**key))
                .map(|key| (*key).clone())
                .collect();
            if !obsolete_here.is_empty() {
                push_grouped(&mut arns_by_obsolete_keys, obsolete_here, arn.into());
            }
        }
        for (tags, arns) in arns_by_missing_tags {
            let reason = format!("tags {} differ", join_keys(&tags));
            for chunk in arns.chunks(MAX_TAGGED) {
                self.add(ActionKind::AddTags(chunk.to_vec(), tags.clone()), reason.clone());
            }
        }
        for (keys, arns) in arns_by_obsolete_keys {
            let reason = format!("tags {} are no longer desired", keys.join(", "));
            for chunk in arns.chunks(MAX_TAGGED) {
                self.add(ActionKind::RemoveTags(chunk.to_vec(), keys.clone()), reason.clone());
            }
        }
    }

    /// Plans the clean-up of security groups that this plan or an earlier one detached from the
    /// load balancer.
    fn clean_up_detached_groups(&mut self) {
        let Some(observed) = &self.observed.load_balancer else {
            return;
        };
        let planned_groups = self
            .actions
            .iter()
            .find_map(|planned| match &planned.action {
                ActionKind::SetSecurityGroups(groups, _) => Some(groups),
                _ => None,
            });
        let current = &observed.resource.security_groups;
        let remaining = planned_groups.unwrap_or(current);
        let mut detached: Vec<SecurityGroupId> = Vec::new();
        for group in current
            .iter()
            .chain(&self.observed.detached_security_groups)
        {
            let in_use = remaining.contains(group) || self.input.groups.contains(group);
            if !in_use && !detached.contains(group) {
                detached.push(group.clone());
            }
        }
        if !detached.is_empty() {
            self.add(
                ActionKind::CleanUpSecurityGroups(detached),
                "they are no longer on the load balancer",
            );
        }
    }
}

impl Planner<'_> {
    /// Plans the removal of the marks of a load balancer that is the Service's again, as the last
    /// step: until then, an interrupted adoption begins anew. The load balancer's own mark decides.
    fn remove_marks(&mut self) {
        let Some(observed) = &self.observed.load_balancer else {
            return;
        };
        if !has_mark(observed.tags.as_ref()) {
            return;
        }
        let deleted = |arn: &TargetGroupArn| {
            let mut actions = self.actions.iter();
            actions.any(|planned| planned.action == ActionKind::DeleteTargetGroup(arn.clone()))
        };
        let marked: Vec<Box<str>> = self
            .observed
            .target_groups
            .iter()
            .filter(|group| has_mark(group.tags.as_ref()) && !deleted(&group.resource.arn))
            .map(|group| group.resource.arn.as_str().into())
            .collect();
        let reason = "it is the Service's now";
        let keys: TagKeys = vec![RETAINED_TAG.into()];
        // Reads may still show tags that were removed when it was let go of. Without owner and mark,
        // nobody would find it any more.
        let mut owned = marked.clone();
        owned.push(observed.resource.arn.as_str().into());
        let adopter = observed.tags.iter().flatten();
        let adopter = adopter.filter(|(key, _)| ***key == *ADOPTER_TAG);
        let mut tags: Tags = adopter
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        tags.extend(owner_tags(&self.input.tags));
        for chunk in owned.chunks(MAX_TAGGED) {
            self.add(ActionKind::AddTags(chunk.to_vec(), tags.clone()), reason);
        }
        for chunk in marked.chunks(MAX_TAGGED) {
            self.add(ActionKind::RemoveTags(chunk.to_vec(), keys.clone()), reason);
        }
        self.add(ActionKind::RemoveSecurityGroupMarks, reason);
        let load_balancer = vec![observed.resource.arn.as_str().into()];
        self.add(ActionKind::RemoveTags(load_balancer, keys), reason);
    }
}

impl Planner<'_> {
    /// Plans the reservation of capacity as the last step: AWS may reject it or have none, and everything
    /// else works without.
    fn reserve_capacity(&mut self) {
        let reserved = match &self.observed.load_balancer {
            Some(observed) => observed.capacity_units,
            None => Some(0),
        };
        if let Some(desired) = self.desired.capacity_units
            && let Some(reserved) = reserved
            && desired != reserved
        {
            let reason = format!("{reserved} capacity units are reserved, {desired} are requested");
            self.add(ActionKind::ReserveCapacity(desired), reason);
        }
    }
}

pub(crate) fn has_mark(tags: Option<&Tags>) -> bool {
    tags.is_some_and(|tags| tags.contains_key(RETAINED_TAG))
}

/// When the prefixes for source NAT are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrefixChange {
    /// They are the desired ones.
    None,
    /// At once.
    Now,
    /// When the listeners that use them are gone.
    AfterListeners,
}

/// Settings that AWS changes together with the subnets of a load balancer.
struct SubnetSettings {
    /// Whether it has IPv6 prefixes for source NAT; `None` if it has none and needs none.
    ipv6_source_nat: Option<bool>,
    /// True if that is a change.
    source_nat_differs: bool,
    /// Its address families; `None` keeps them.
    ip_address_type: Option<IpAddressType>,
}

impl SubnetSettings {
    fn action(&self, subnets: Vec<SubnetMapping>, removes: bool) -> ActionKind {
        ActionKind::SetSubnets(SubnetChange {
            subnets,
            ipv6_source_nat: self.ipv6_source_nat,
            ip_address_type: self.ip_address_type,
            removes,
        })
    }

    fn reason(&self) -> String {
        match self.ip_address_type {
            Some(families) => {
                format!("IPv6 source prefixes differ, and address families are to be {families}")
            }
            None => "IPv6 source prefixes differ".to_owned(),
        }
    }
}

/// Checks that no address differs in a subnet that the load balancer keeps, and that no Elastic IP
/// address moves from one of its subnets to a new one: AWS can change neither. A subnet that is
/// removed holds its address until the change is made.
fn check_fixed_addresses(
    load_balancer: &LoadBalancer,
    mappings: &[SubnetMapping],
) -> Result<(), CloudError> {
    for mapping in mappings {
        let zone = LoadBalancerZone::find(&load_balancer.zones, &mapping.subnet);
        let is_impossible = match zone {
            Some(zone) => has_other_address(zone, mapping),
            None => mapping.allocation.as_ref().is_some_and(|id| {
                let mut zones = load_balancer.zones.iter();
                zones.any(|zone| zone.allocations.contains(id))
            }),
        };
        if is_impossible {
            return Err(CloudError::invalid_input(format!(
                "addresses of load balancer {} in subnet {} cannot be changed; delete and recreate the Service",
                load_balancer.name, mapping.subnet
            )));
        }
    }
    Ok(())
}

/// Returns true if a zone has another address than the desired one.
fn has_other_address(zone: &LoadBalancerZone, desired: &SubnetMapping) -> bool {
    let other_allocation = desired
        .allocation
        .as_ref()
        .is_some_and(|id| !zone.allocations.is_empty() && !zone.allocations.contains(id));
    let other_private_ipv4 = desired.private_ipv4.is_some_and(|address| {
        let address = address.to_string();
        !zone.private_ipv4.is_empty() && !zone.private_ipv4.iter().any(|text| **text == *address)
    });
    let other_ipv6 = desired
        .ipv6
        .is_some_and(|address| first_undesired(&zone.ipv6, &[address]).is_some());
    other_allocation || other_private_ipv4 || other_ipv6
}

/// Returns the existing load balancer, listeners and target groups whose tags were read.
fn tagged_objects(observed: &ObservedState) -> Vec<(&str, &Tags)> {
    let mut objects = Vec::new();
    if let Some(observed) = &observed.load_balancer {
        objects.push((observed.resource.arn.as_str(), &observed.tags));
        for listener in &observed.listeners {
            objects.push((listener.resource.arn.as_str(), &listener.tags));
        }
    }
    for group in &observed.target_groups {
        objects.push((group.resource.arn.as_str(), &group.tags));
    }
    objects
        .into_iter()
        .filter_map(|(arn, tags)| Some((arn, tags.as_ref()?)))
        .collect()
}

fn join_ids<'a>(ids: impl Iterator<Item = &'a SubnetId>) -> String {
    ids.map(SubnetId::as_str).collect::<Vec<_>>().join(", ")
}

/// Describes how the subnets differ; `None` if they do not.
fn subnets_reason(added: &str, removed: &str) -> Option<String> {
    if added.is_empty() && removed.is_empty() {
        None
    } else if removed.is_empty() {
        Some(format!("subnets {added} are missing"))
    } else if added.is_empty() {
        Some(format!("subnets {removed} are not desired"))
    } else {
        Some(format!("subnets {added} are missing, {removed} are not desired"))
    }
}

/// Returns the first address of a zone that is not desired. Ignores kinds of addresses that the
/// Service does not request.
fn undesired_address<'a>(
    zone: &'a LoadBalancerZone,
    desired: &DesiredLoadBalancer,
) -> Option<&'a str> {
    let undesired = first_undesired(&zone.private_ipv4, &desired.private_ipv4)
        .or_else(|| first_undesired(&zone.ipv6, &desired.ipv6));
    if undesired.is_some() || desired.allocations.is_empty() {
        return undesired;
    }
    let mut allocations = zone.allocations.iter();
    allocations
        .find(|id| !desired.allocations.contains(id))
        .map(AllocationId::as_str)
}

/// Returns the first address that is not desired; `None` if no address is requested.
fn first_undesired<'a, A: FromStr + PartialEq>(
    current: &'a [Box<str>],
    desired: &[A],
) -> Option<&'a str> {
    if desired.is_empty() {
        return None;
    }
    for text in current {
        let is_desired = text
            .parse()
            .is_ok_and(|address: A| desired.contains(&address));
        if !is_desired {
            return Some(text);
        }
    }
    None
}

/// Returns the current mappings of all subnets, to keep them.
fn existing_mappings(load_balancer: &LoadBalancer, changes: &SubnetSettings) -> Vec<SubnetMapping> {
    let keeps_ipv6 = changes.ip_address_type != Some(IpAddressType::Ipv4);
    let mut mappings = Vec::new();
    for zone in &load_balancer.zones {
        let Some(subnet) = zone.subnet.clone() else {
            continue;
        };
        mappings.push(SubnetMapping {
            subnet,
            allocation: zone.allocations.first().cloned(),
            private_ipv4: first_address(&zone.private_ipv4),
            ipv6: if keeps_ipv6 {
                first_address(&zone.ipv6)
            } else {
                None
            },
            source_nat_prefix: None,
        });
    }
    mappings
}

fn first_address<A: FromStr>(addresses: &[Box<str>]) -> Option<A> {
    addresses.first()?.parse().ok()
}

fn push_grouped<K: PartialEq, V>(list: &mut Vec<(K, Vec<V>)>, key: K, value: V) {
    match list.iter_mut().find(|(existing, _)| *existing == key) {
        Some((_, values)) => values.push(value),
        None => list.push((key, vec![value])),
    }
}

/// Returns the desired entries that are missing or have another value.
fn changed_attributes(desired: &Attributes, observed: &Attributes) -> Attributes {
    desired
        .iter()
        .filter(|(key, value)| observed.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn join_keys(attributes: &Attributes) -> String {
    attributes
        .keys()
        .map(|key| &**key)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests;
