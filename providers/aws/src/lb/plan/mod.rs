//! Plans the actions that turn the observed into the desired state: an ordered list of single
//! requests. Pure.
//!
//! The order keeps traffic flowing and allows an interruption anywhere: load balancer, target
//! groups with their targets, security group rules, listeners, and only then the removal of what
//! nothing refers to any more. After an interruption, a new plan from the new observed state has
//! the remaining actions.

mod action;
pub mod default_attributes;
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
use super::model::{DesiredLoadBalancer, Targets};
use crate::{
    api::{
        SecurityGroupId, SubnetId, Tags, VpcId,
        elb::{
            Attributes, CreateLoadBalancer, IpAddressType, LoadBalancer, LoadBalancerZone,
            MAX_TAGGED, SubnetMapping,
        },
    },
    lb::observe::observed::{ObservedLoadBalancer, ObservedState},
};

/// The part of the desired state that depends on the VPC and the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedInput {
    /// VPC of target groups.
    pub vpc: VpcId,
    /// Complete tags of all objects.
    pub tags: Tags,
    /// Subnets with addresses; `None` keeps those of an existing load balancer.
    pub subnets: Option<Vec<SubnetMapping>>,
    /// Security groups of the load balancer; empty keeps the existing ones.
    pub groups: Vec<SecurityGroupId>,
    /// Targets of each listener's target group.
    pub targets: Targets,
    /// Digest of all inputs of the security group rules.
    pub rules_digest: Digest,
}

/// Plans the actions; empty if observed and desired state agree.
///
/// # Errors
/// A difference that AWS can only resolve with a new load balancer.
pub fn plan(
    desired: &DesiredLoadBalancer,
    resolved: &ResolvedInput,
    observed: &ObservedState,
) -> Result<Vec<PlannedAction>, CloudError> {
    let mut planner = Planner { desired, resolved, observed, steps: Vec::new() };
    match &observed.load_balancer {
        None => planner.create_load_balancer()?,
        Some(seen) => planner.update_load_balancer(seen)?,
    }
    planner.tags();
    let pairing = TargetGroupPairing::of(desired, observed);
    planner.delete_conflicting_groups(&pairing);
    planner.groups(&pairing);
    let rules = observed.rules_digest != Some(resolved.rules_digest);
    if rules {
        planner.add(ActionKind::AddSecurityGroupRules, "rules of security groups may be missing");
    }
    planner.listeners(&pairing);
    planner.delete_unused_groups(&pairing);
    if rules {
        planner
            .add(ActionKind::RemoveSecurityGroupRules, "rules of security groups may be left over");
    }
    planner.clean_up_detached_groups();
    Ok(planner.steps)
}

/// Plans only the registration and deregistration of targets in existing target groups.
pub fn plan_targets_only(
    desired: &DesiredLoadBalancer,
    targets: &Targets,
    observed: &ObservedState,
) -> Vec<PlannedAction> {
    let resolved = ResolvedInput {
        vpc: VpcId::from(""),
        tags: Tags::new(),
        subnets: None,
        groups: Vec::new(),
        targets: targets.clone(),
        rules_digest: Digest(0),
    };
    let mut planner = Planner { desired, resolved: &resolved, observed, steps: Vec::new() };
    planner.sync_targets(&TargetGroupPairing::of(desired, observed));
    planner.steps
}

/// Keys of tags.
type Keys = Vec<Box<str>>;

struct Planner<'a> {
    desired: &'a DesiredLoadBalancer,
    resolved: &'a ResolvedInput,
    observed: &'a ObservedState,
    steps: Vec<PlannedAction>,
}

impl Planner<'_> {
    fn add(&mut self, action: ActionKind, why: impl Into<Box<str>>) {
        self.steps
            .push(PlannedAction { action, reason: why.into() });
    }

    fn create_load_balancer(&mut self) -> Result<(), CloudError> {
        let desired = self.desired;
        let resolved = self.resolved;
        let Some(subnets) = resolved
            .subnets
            .clone()
            .filter(|subnets| !subnets.is_empty())
        else {
            return Err(CloudError::invalid_input(
                "could not find any suitable subnets for creating the ELB",
            ));
        };
        let create = CreateLoadBalancer {
            name: desired.name.clone(),
            scheme: desired.scheme,
            ip_address_type: desired.ip_address_type,
            subnets,
            security_groups: resolved.groups.clone(),
            ipv6_source_nat: desired.ipv6_source_nat,
            tags: resolved.tags.clone(),
        };
        let why = format!("service {} has no load balancer", desired.owner.key());
        self.add(ActionKind::CreateLoadBalancer(Box::new(create)), why);
        // A new load balancer is created without this setting; AWS' default is on.
        if desired.security.private_link_rules == Some(false) && !resolved.groups.is_empty() {
            let action = ActionKind::SetSecurityGroups(resolved.groups.clone(), Some(false));
            self.add(action, "rules for PrivateLink are to be off");
        }
        let attributes =
            without_defaults(&self.desired.attributes, &default_attributes::load_balancer());
        if !attributes.is_empty() {
            let why = format!("{} differ from AWS' defaults", keys(&attributes));
            self.add(ActionKind::ModifyLoadBalancerAttributes(attributes), why);
        }
        Ok(())
    }

    fn update_load_balancer(&mut self, observed: &ObservedLoadBalancer) -> Result<(), CloudError> {
        let desired = self.desired;
        let load_balancer = &observed.load_balancer;
        if let Some(scheme) = load_balancer
            .scheme
            .filter(|scheme| *scheme != desired.scheme)
        {
            return Err(CloudError::invalid_input(format!(
                "scheme cannot be changed from {scheme} to {} on load balancer {}; delete and recreate the Service",
                desired.scheme, load_balancer.name
            )));
        }
        let old_type = load_balancer
            .ip_address_type
            .filter(|current| *current != desired.ip_address_type);
        let source_nat = desired
            .ipv6_source_nat
            .filter(|on| *on != load_balancer.ipv6_source_nat.unwrap_or(false));
        if old_type.is_some() && source_nat.is_some() {
            // UDP requires both families together with prefixes: neither may change alone.
            self.subnets(observed, source_nat, Some(desired.ip_address_type))?;
        } else if desired.ip_address_type == IpAddressType::Dualstack {
            // An IPv6 prefix requires both families, so these are enabled first.
            self.ip_address_type(old_type);
            self.subnets(observed, source_nat, None)?;
        } else {
            self.subnets(observed, source_nat, None)?;
            self.ip_address_type(old_type);
        }
        self.security_groups(observed);
        if let Some(attributes) = &observed.attributes {
            let differing = changed_attributes(&desired.attributes, attributes);
            if !differing.is_empty() {
                let why = format!("{} differ", keys(&differing));
                self.add(ActionKind::ModifyLoadBalancerAttributes(differing), why);
            }
        }
        Ok(())
    }

    fn ip_address_type(&mut self, old: Option<IpAddressType>) {
        let Some(old) = old else { return };
        let why = format!("address families are {old}");
        self.add(ActionKind::SetIpAddressType(self.desired.ip_address_type), why);
    }

    fn subnets(
        &mut self,
        observed: &ObservedLoadBalancer,
        nat: Option<bool>,
        families: Option<IpAddressType>,
    ) -> Result<(), CloudError> {
        let load_balancer = &observed.load_balancer;
        let set = |subnets: Vec<SubnetMapping>, removes: bool| {
            ActionKind::SetSubnets(SubnetChange {
                subnets,
                ipv6_source_nat: nat,
                ip_address_type: families,
                removes,
            })
        };
        let prefixes = match families {
            Some(families) => {
                format!("IPv6 source prefixes differ, and address families are to be {families}")
            }
            None => "IPv6 source prefixes differ".to_owned(),
        };
        let current: BTreeSet<SubnetId> = load_balancer
            .zones
            .iter()
            .filter_map(|zone| zone.subnet.clone())
            .collect();
        // Without a choice of subnets, only the IPv6 prefixes may change.
        let Some(mappings) = &self.resolved.subnets else {
            self.addresses(load_balancer)?;
            if nat.is_some() {
                let v6 = families != Some(IpAddressType::Ipv4);
                let subnets = load_balancer
                    .zones
                    .iter()
                    .filter_map(|zone| existing_mapping(zone, v6))
                    .collect();
                self.add(set(subnets, false), prefixes);
            }
            return Ok(());
        };
        // With one, check first that no address in a subnet that stays differs: AWS cannot change
        // these.
        for mapping in mappings {
            let zone = load_balancer
                .zones
                .iter()
                .find(|zone| zone.subnet.as_ref() == Some(&mapping.subnet));
            let Some(zone) = zone else { continue };
            let other_allocation = mapping.allocation.as_ref().is_some_and(|desired| {
                !zone.allocations.is_empty() && !zone.allocations.contains(desired)
            });
            let other_address = mapping.private_ipv4.is_some_and(|wanted| {
                !zone.private_ipv4.is_empty()
                    && !zone
                        .private_ipv4
                        .iter()
                        .any(|have| **have == *wanted.to_string())
            });
            let other_ipv6 = mapping
                .ipv6
                .is_some_and(|wanted| first_undesired(&zone.ipv6, &[wanted]).is_some());
            if other_allocation || other_address || other_ipv6 {
                return Err(CloudError::invalid_input(format!(
                    "addresses of load balancer {} in subnet {} cannot be changed; delete and recreate the Service",
                    load_balancer.name, mapping.subnet
                )));
            }
        }
        // Then set the subnets, if they or the prefixes differ.
        let chosen: BTreeSet<SubnetId> = mappings
            .iter()
            .map(|mapping| mapping.subnet.clone())
            .collect();
        if chosen != current || nat.is_some() {
            let added = join_ids(chosen.difference(&current));
            let removed = join_ids(current.difference(&chosen));
            let why = subnets_reason(&added, &removed).unwrap_or(prefixes);
            self.add(set(mappings.clone(), !removed.is_empty()), why);
        }
        Ok(())
    }

    /// Checks that the addresses of discovered subnets are the desired ones. These subnets and
    /// addresses are never changed.
    fn addresses(&self, load_balancer: &LoadBalancer) -> Result<(), CloudError> {
        let desired = self.desired;
        for zone in &load_balancer.zones {
            let mut other = first_undesired(&zone.private_ipv4, &desired.private_ipv4);
            if other.is_none() {
                other = first_undesired(&zone.ipv6, &desired.ipv6);
            }
            if other.is_none() && !desired.allocations.is_empty() {
                other = zone
                    .allocations
                    .iter()
                    .find(|id| !desired.allocations.contains(id))
                    .map(|id| &**id);
            }
            if let Some(other) = other {
                return Err(CloudError::invalid_input(format!(
                    "addresses of load balancer {} cannot be changed, and it has {other}; delete and recreate the Service",
                    load_balancer.name
                )));
            }
        }
        Ok(())
    }

    fn security_groups(&mut self, observed: &ObservedLoadBalancer) {
        let load_balancer = &observed.load_balancer;
        let current: BTreeSet<_> = load_balancer.security_groups.iter().collect();
        let desired: BTreeSet<_> = self.resolved.groups.iter().collect();
        // A load balancer that was created without security groups cannot get any.
        if current.is_empty() {
            return;
        }
        let rules = self.desired.security.private_link_rules;
        let other_rules =
            rules.is_some_and(|rules| rules != load_balancer.private_link_rules.unwrap_or(true));
        let other_groups = !desired.is_empty() && desired != current;
        if other_groups || other_rules {
            let groups = if desired.is_empty() {
                &load_balancer.security_groups
            } else {
                &self.resolved.groups
            };
            let why = if other_groups {
                "security groups differ"
            } else {
                "rules for PrivateLink differ"
            };
            self.add(ActionKind::SetSecurityGroups(groups.clone(), rules), why);
        }
    }

    /// Plans tag changes of existing objects. New objects get their tags at creation.
    fn tags(&mut self) {
        let desired = &self.resolved.tags;
        let obsolete: BTreeSet<_> = self
            .observed
            .removable_tag_keys
            .iter()
            .filter(|key| !desired.contains_key(*key))
            .collect();
        let load_balancer = self
            .observed
            .load_balancer
            .iter()
            .map(|b| (b.load_balancer.arn.as_str(), &b.tags));
        let listeners = self
            .observed
            .load_balancer
            .iter()
            .flat_map(|b| &b.listeners);
        let listeners = listeners.map(|listener| (listener.listener.arn.as_str(), &listener.tags));
        let groups = self
            .observed
            .target_groups
            .iter()
            .map(|group| (group.group.arn.as_str(), &group.tags));
        // First, collect the objects that need the same change, since one request can tag several.
        let mut arns_by_missing_tags: Vec<(Tags, Vec<Box<str>>)> = Vec::new();
        let mut arns_by_obsolete_keys: Vec<(Keys, Vec<Box<str>>)> = Vec::new();
        for (arn, seen) in load_balancer.chain(listeners).chain(groups) {
            let Some(seen) = seen else { continue };
            let missing = changed_attributes(desired, seen);
            if !missing.is_empty() {
                push_grouped(&mut arns_by_missing_tags, missing, arn.into());
            }
            let left_over: Keys = obsolete
                .iter()
                .filter(|key| seen.contains_key(**key))
                .map(|key| (*key).clone())
                .collect();
            if !left_over.is_empty() {
                push_grouped(&mut arns_by_obsolete_keys, left_over, arn.into());
            }
        }
        // Then plan one action for each group.
        for (tags, arns) in arns_by_missing_tags {
            let why = format!("tags {} differ", keys(&tags));
            for chunk in arns.chunks(MAX_TAGGED) {
                self.add(ActionKind::AddTags(chunk.to_vec(), tags.clone()), why.clone());
            }
        }
        for (keys, arns) in arns_by_obsolete_keys {
            let why = format!("tags {} are not wanted any more", keys.join(", "));
            for chunk in arns.chunks(MAX_TAGGED) {
                self.add(ActionKind::RemoveTags(chunk.to_vec(), keys.clone()), why.clone());
            }
        }
    }

    /// Plans the clean-up of security groups that are detached from the load balancer, now or
    /// earlier, after everything that needs them.
    fn clean_up_detached_groups(&mut self) {
        let Some(seen) = &self.observed.load_balancer else {
            return;
        };
        let planned = self.steps.iter().find_map(|step| match &step.action {
            ActionKind::SetSecurityGroups(groups, _) => Some(groups),
            _ => None,
        });
        let current = &seen.load_balancer.security_groups;
        let remaining = planned.unwrap_or(current);
        let mut detached: Vec<SecurityGroupId> = Vec::new();
        for group in current
            .iter()
            .chain(&self.observed.detached_security_groups)
        {
            let in_use = remaining.contains(group) || self.resolved.groups.contains(group);
            if !in_use && !detached.contains(group) {
                detached.push(group.clone());
            }
        }
        if !detached.is_empty() {
            self.add(
                ActionKind::CleanUpSecurityGroups(detached),
                "they are not on the load balancer any more",
            );
        }
    }
}

fn join_ids<'a>(ids: impl Iterator<Item = &'a SubnetId>) -> String {
    ids.map(SubnetId::as_str).collect::<Vec<_>>().join(", ")
}

/// Says why subnets are set; `None` if the same ones stay.
fn subnets_reason(added: &str, removed: &str) -> Option<String> {
    if added.is_empty() && removed.is_empty() {
        None
    } else if removed.is_empty() {
        Some(format!("subnets {added} are missing"))
    } else if added.is_empty() {
        Some(format!("subnets {removed} are not wanted"))
    } else {
        Some(format!("subnets {added} are missing, {removed} not wanted"))
    }
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

/// Returns the current mapping of a subnet, to keep it.
fn existing_mapping(zone: &LoadBalancerZone, v6: bool) -> Option<SubnetMapping> {
    Some(SubnetMapping {
        subnet: zone.subnet.clone()?,
        allocation: zone.allocations.first().cloned(),
        private_ipv4: zone
            .private_ipv4
            .first()
            .and_then(|address| address.parse().ok()),
        ipv6: zone
            .ipv6
            .first()
            .filter(|_| v6)
            .and_then(|address| address.parse().ok()),
    })
}

fn push_grouped<K: PartialEq, V>(list: &mut Vec<(K, Vec<V>)>, key: K, value: V) {
    match list.iter_mut().find(|(have, _)| *have == key) {
        Some((_, values)) => values.push(value),
        None => list.push((key, vec![value])),
    }
}

/// Returns the desired entries that are missing or have another value.
fn changed_attributes(desired: &Attributes, observed: &Attributes) -> Attributes {
    desired
        .iter()
        .filter(|(key, value)| observed.get(*key) != Some(value))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}

fn keys(attributes: &Attributes) -> String {
    attributes
        .keys()
        .map(|key| &**key)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests;
