//! Plans the rule changes of one security group, and the groups of a load balancer. Pure.

use std::{collections::BTreeSet, fmt::Write};

use ccm_core::provider::CloudError;
use ipnet::IpNet;

use super::super::model::{DesiredLoadBalancer, NodeRuleSource, SecurityGroupChoice};
use crate::{
    api::{
        SecurityGroupId,
        ec2::{Rule, RuleSource},
    },
    config::Settings,
    lb::security_groups::desired_rules,
};

/// Rules to add to a group and to remove from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleChange {
    /// Rules that are missing.
    pub(crate) grant: Vec<Rule>,
    /// Rules, as observed, that are not desired.
    pub(crate) revoke: Vec<Rule>,
    /// True if some of them are revoked because other rules are absent. Somebody may have added
    /// those since the read.
    pub(crate) by_absence: bool,
}

/// Returns the rules that a group lacks.
pub(crate) fn missing<'a>(
    observed: &[Rule],
    desired: impl IntoIterator<Item = &'a Rule>,
) -> Vec<Rule> {
    let mut missing: Vec<Rule> = Vec::new();
    for rule in desired {
        if !has_rule(observed, rule) && !has_rule(&missing, rule) {
            missing.push(rule.clone());
        }
    }
    missing
}

/// Returns the rules of ours that are not desired. A rule that is desired with another description
/// stays: AWS does not accept both.
pub(crate) fn surplus(
    observed: &[Rule],
    desired: &BTreeSet<Rule>,
    is_ours: impl Fn(&Rule) -> bool,
) -> Vec<Rule> {
    observed
        .iter()
        .filter(|rule| is_ours(rule) && !has_rule(desired, rule))
        .cloned()
        .collect()
}

/// Returns the path-MTU rules that become unused with the `revoked` client rules: those for
/// networks without a remaining client rule, except those in `needed`.
pub(crate) fn unused_mtu_rules(observed: &[Rule], revoked: &[Rule], needed: &[Rule]) -> Vec<Rule> {
    let revoked_networks: BTreeSet<IpNet> = revoked
        .iter()
        .filter(|rule| desired_rules::is_client(rule))
        .filter_map(network)
        .collect();
    let remaining_networks: BTreeSet<IpNet> = observed
        .iter()
        .filter(|rule| desired_rules::is_client(rule) && !revoked.contains(rule))
        .filter_map(network)
        .collect();
    let mut unused = Vec::new();
    for rule in observed {
        let is_orphan = network(rule).is_some_and(|network| {
            revoked_networks.contains(&network) && !remaining_networks.contains(&network)
        });
        if desired_rules::is_mtu(rule) && is_orphan && !has_rule(needed, rule) {
            unused.push(rule.clone());
        }
    }
    unused
}

/// Returns the rules of a group after a change.
#[cfg(test)]
pub(crate) fn apply_change(observed: &[Rule], change: &RuleChange) -> Vec<Rule> {
    let mut rules = observed.to_vec();
    rules.extend(change.grant.iter().cloned());
    rules.retain(|rule| !change.revoke.contains(rule));
    rules
}

/// Returns unused health rules of deleted load balancers, which stayed because others might have
/// needed them: those with names that no client rule has, except those in `needed` and those of
/// existing load balancers.
pub(crate) fn unused_health_rules(
    observed: &[Rule],
    needed: &[Rule],
    exists: impl Fn(&str) -> bool,
) -> Vec<Rule> {
    let names: BTreeSet<&str> = health_only_names(observed).collect();
    let mut unused = Vec::new();
    for rule in observed {
        let Some(name) = desired_rules::health_of(rule) else {
            continue;
        };
        if names.contains(name) && !exists(name) && !has_rule(needed, rule) {
            unused.push(rule.clone());
        }
    }
    unused
}

/// Returns the names on health rules that no client rule has.
pub(crate) fn health_only_names(observed: &[Rule]) -> impl Iterator<Item = &str> {
    let clients: BTreeSet<&str> = observed
        .iter()
        .filter_map(desired_rules::client_of)
        .collect();
    observed
        .iter()
        .filter_map(desired_rules::health_of)
        .filter(move |name| !clients.contains(name))
}

/// Returns true if a rule is among others, with any description.
pub(crate) fn has_rule<'a>(rules: impl IntoIterator<Item = &'a Rule>, rule: &Rule) -> bool {
    rules
        .into_iter()
        .any(|other| desired_rules::is_same_rule(other, rule))
}

/// Describes rules in a few words, for an event or log.
pub(crate) fn summary(rules: &[Rule]) -> String {
    let mut text = String::new();
    for rule in rules.iter().take(3) {
        let comma = if text.is_empty() { "" } else { ", " };
        let ports = match rule.ports {
            Some((from, to)) if from == to => format!(" {from}"),
            Some((from, to)) => format!(" {from}-{to}"),
            None => String::new(),
        };
        let source = match &rule.source {
            RuleSource::Cidr(network) => network.to_string(),
            RuleSource::Group(id, _) => id.to_string(),
            RuleSource::PrefixList(id) => id.to_string(),
        };
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}{}{ports} from {source}", rule.protocol);
    }
    match rules.len() {
        0..=3 => text,
        count => format!("{text} and {} more", count - 3),
    }
}

/// The source of a load balancer's security groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FrontendGroups<'a> {
    /// It has none, or keeps the existing ones.
    None,
    /// A group that we create and fill.
    Managed {
        /// True if the shared group is added.
        shared: bool,
    },
    /// Groups that the Service names.
    Given {
        /// IDs, or values of the tag `Name`.
        names: &'a [Box<str>],
        /// True if the shared group is added.
        shared: bool,
    },
}

/// Decides which groups a load balancer gets. `existing` has its current groups, or `None` if it
/// does not exist yet.
///
/// # Errors
/// The request cannot be met.
pub(crate) fn frontend_groups<'a>(
    desired: &'a DesiredLoadBalancer,
    existing: Option<&[SecurityGroupId]>,
    settings: &Settings,
) -> Result<FrontendGroups<'a>, CloudError> {
    let security = &desired.security;
    // A load balancer that was created without a group can never get one.
    let cannot_get_groups = existing.is_some_and(<[_]>::is_empty);
    let as_upstream = security.node_rules == NodeRuleSource::Networks;
    let shared = settings.shared_backend_security_group && security.manage_backend_rules;
    match &security.groups {
        SecurityGroupChoice::None if existing.is_some_and(|groups| !groups.is_empty()) => {
            Err(CloudError::invalid_input(format!(
                "service.beta.kubernetes.io/aws-load-balancer-disable-nlb-sg: conflicting security groups configuration: \
             load balancer {} has security groups, which cannot be taken off",
                desired.name
            )))
        }
        SecurityGroupChoice::Keep | SecurityGroupChoice::None => Ok(FrontendGroups::None),
        SecurityGroupChoice::Given(_)
            if security.manage_backend_rules && !as_upstream && !shared =>
        {
            Err(CloudError::invalid_input(
                "service.beta.kubernetes.io/aws-load-balancer-manage-backend-security-group-rules: backendSG feature is \
             required to manage worker node SG rules when frontendSG is manually specified",
            ))
        }
        _ if cannot_get_groups => Ok(FrontendGroups::None),
        SecurityGroupChoice::Managed => Ok(FrontendGroups::Managed { shared }),
        // Exactly the given ones, unless the shared one was requested.
        SecurityGroupChoice::Given(names) => {
            Ok(FrontendGroups::Given { names, shared: shared && !as_upstream })
        }
    }
}

fn network(rule: &Rule) -> Option<IpNet> {
    match &rule.source {
        RuleSource::Cidr(network) => Some(network.trunc()),
        _ => None,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
