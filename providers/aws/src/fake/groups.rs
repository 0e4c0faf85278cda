//! EC2: security groups and their rules.

use std::collections::BTreeSet;

use super::{
    ACCOUNT,
    error::{ApiResult, refuse},
    lists::{Filters, page},
    network::check_ec2_tags,
    state::{AccountState, SecurityGroup},
};
use crate::api::{
    Page, SecurityGroupId,
    ec2::{self, Rule, RuleSource},
};
use ipnet::IpNet;

const GROUP_FILTERS: &[&str] =
    &["description", "group-id", "group-name", "ip-permission.group-id", "vpc-id"];
const UNKNOWN: &str = "InvalidGroup.NotFound";

impl AccountState {
    pub(super) fn describe_groups(
        &self,
        c: &ec2::DescribeSecurityGroups,
    ) -> ApiResult<Page<ec2::SecurityGroup>> {
        let filters = Filters::new(&c.filters, GROUP_FILTERS)?;
        for id in &c.ids {
            if !self
                .groups
                .get(id)
                .is_some_and(|group| group.created.shown())
            {
                return refuse(UNKNOWN, format!("The security group '{id}' does not exist"));
            }
        }
        let found = self.groups.iter().filter(|(id, group)| {
            (c.ids.is_empty() || c.ids.contains(id))
                && group.created.shown()
                && filters.accept(&group.tags, |name| match name {
                    "description" => vec![group.description.to_string()],
                    "group-id" => vec![id.to_string()],
                    "group-name" => vec![group.name.to_string()],
                    "ip-permission.group-id" => group
                        .ingress
                        .iter()
                        .filter_map(group_of)
                        .map(ToString::to_string)
                        .collect(),
                    _ => vec![group.vpc.to_string()],
                })
        });
        let found = found.map(|(id, group)| (id.to_string(), show(id, group)));
        page(found.collect(), c.token.as_deref(), self.options.page_size, "InvalidNextToken")
    }

    pub(super) fn create_group(
        &mut self,
        c: &ec2::CreateSecurityGroup,
    ) -> ApiResult<SecurityGroupId> {
        // First, check VPC, name, description and tags.
        if !self.vpcs.contains_key(&c.vpc) {
            return refuse(
                "InvalidVpcID.NotFound",
                format!("The vpc ID '{}' does not exist", c.vpc),
            );
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || " ._-:/()#,@[]+=&;{}!$*".contains(c);
        for (field, text) in [("GroupName", &c.name), ("GroupDescription", &c.description)] {
            if text.is_empty() {
                return refuse(
                    "MissingParameter",
                    format!("The request must contain the parameter {field}"),
                );
            }
            if text.len() > 255 || !text.chars().all(allowed) {
                return refuse(
                    "InvalidParameterValue",
                    format!("Value ({text}) for parameter {field} is invalid."),
                );
            }
        }
        if c.name.starts_with("sg-") {
            return refuse("InvalidParameterValue", "Group names may not be in the format sg-*.");
        }
        if *c.name == *"default" {
            return refuse("InvalidGroup.Reserved", "The security group 'default' is reserved");
        }
        check_ec2_tags(&c.tags, c.tags.len(), self.options.quotas.tags)?;
        // Then check for a duplicate, and the quota.
        let in_vpc = || self.groups.values().filter(|group| group.vpc == c.vpc);
        if in_vpc().any(|group| group.name == c.name) {
            let message =
                format!("The security group '{}' already exists for VPC '{}'", c.name, c.vpc);
            return refuse("InvalidGroup.Duplicate", message);
        }
        if in_vpc().count() >= self.options.quotas.security_groups_per_vpc {
            return refuse(
                "SecurityGroupLimitExceeded",
                "The maximum number of security groups has been reached.",
            );
        }
        // Finally, create the group.
        let id = SecurityGroupId::from(self.id("sg"));
        let group = SecurityGroup {
            name: c.name.clone(),
            description: c.description.clone(),
            vpc: c.vpc.clone(),
            ingress: Vec::new(),
            tags: c.tags.clone(),
            created: self.creation_time(),
        };
        self.groups.insert(id.clone(), group);
        Ok(id)
    }

    pub(super) fn delete_group(&mut self, c: &ec2::DeleteSecurityGroup) -> ApiResult<()> {
        let group = self.group(&c.id)?;
        if *group.name == *"default" {
            return refuse(
                "CannotDelete",
                format!("the specified group: \"{}\" cannot be deleted by a user", c.id),
            );
        }
        let attached = self.enis.values().any(|eni| eni.groups.contains(&c.id))
            || self
                .balancers
                .values()
                .any(|balancer| balancer.groups.contains(&c.id))
            || self
                .classics
                .values()
                .any(|classic| classic.groups.contains(&c.id));
        let others = || self.groups.iter().filter(|(id, _)| **id != c.id);
        let referred = others().any(|(_, group)| {
            group
                .ingress
                .iter()
                .filter_map(group_of)
                .any(|id| *id == c.id)
        });
        if attached || referred {
            return refuse(
                "DependencyViolation",
                format!("resource {} has a dependent object", c.id),
            );
        }
        self.groups.remove(&c.id);
        Ok(())
    }

    pub(super) fn authorize(&mut self, c: &ec2::AuthorizeSecurityGroupIngress) -> ApiResult<()> {
        // First, normalize and check the new rules.
        let vpc = self.group(&c.id)?.vpc.clone();
        let mut rules: Vec<Rule> = Vec::new();
        for rule in &c.rules {
            let rule = normal(rule)?;
            if let Some(source) = group_of(&rule)
                && !self
                    .groups
                    .get(source)
                    .is_some_and(|group| group.vpc == vpc && group.created.found())
            {
                let message = format!(
                    "You have specified two resources that belong to different networks, or none: {source}"
                );
                return refuse(UNKNOWN, message);
            }
            if rules.iter().any(|have| same(have, &rule)) {
                return refuse(
                    "InvalidParameterValue",
                    "The same permission must not appear multiple times",
                );
            }
            rules.push(rule);
        }
        // Then compare them with the existing rules, and check the quota of each address family.
        let most = self.options.quotas.rules_per_security_group;
        let group = self.group(&c.id)?;
        if rules.is_empty() {
            return refuse(
                "MissingParameter",
                "Either 'ipPermissions' or 'securityGroupRuleIds' should be provided.",
            );
        }
        if let Some(rule) = rules
            .iter()
            .find(|rule| group.ingress.iter().any(|have| same(have, rule)))
        {
            let message = format!("the specified rule \"{}\" already exists", describe(rule));
            return refuse("InvalidPermission.Duplicate", message);
        }
        let all = || group.ingress.iter().chain(&rules);
        let of = |v4: bool| {
            all()
                .filter(|rule| matches!(&rule.source, RuleSource::Cidr(net) if matches!(net, IpNet::V4(_)) == v4))
                .count()
        };
        let both = all()
            .filter(|rule| !matches!(rule.source, RuleSource::Cidr(_)))
            .count();
        if of(true).max(of(false)) + both > most {
            let message = "The maximum number of rules per security group has been reached.";
            return refuse("RulesPerSecurityGroupLimitExceeded", message);
        }
        // Finally, add them.
        if let Some(group) = self.groups.get_mut(&c.id) {
            group.ingress.extend(rules);
            group.ingress.sort();
        }
        Ok(())
    }

    pub(super) fn revoke(&mut self, c: &ec2::RevokeSecurityGroupIngress) -> ApiResult<()> {
        self.group(&c.id)?;
        let default_vpc = self.options.default_vpc;
        let rules = c.rules.iter().map(normal).collect::<ApiResult<Vec<_>>>()?;
        let Some(group) = self.groups.get_mut(&c.id) else {
            return Ok(());
        };
        let missing = rules
            .iter()
            .any(|rule| !group.ingress.iter().any(|have| same(have, rule)));
        if missing && !default_vpc {
            return refuse(
                "InvalidPermission.NotFound",
                "The specified rule does not exist in this security group.",
            );
        }
        group
            .ingress
            .retain(|have| !rules.iter().any(|rule| same(have, rule)));
        Ok(())
    }

    pub(super) fn group(&self, id: &SecurityGroupId) -> ApiResult<&SecurityGroup> {
        match self.groups.get(id).filter(|group| group.created.found()) {
            Some(group) => Ok(group),
            None => refuse(UNKNOWN, format!("The security group '{id}' does not exist")),
        }
    }

    /// Checks security groups that a load balancer or an interface is to get.
    pub(super) fn check_groups(&self, groups: &[SecurityGroupId], vpc: &str) -> ApiResult<()> {
        for id in groups {
            match self.groups.get(id).filter(|group| group.created.found()) {
                Some(group) if *group.vpc == *vpc => {}
                Some(_) => {
                    let message =
                        format!("One or more security groups are invalid: {id} is of another VPC");
                    return refuse("InvalidSecurityGroup", message);
                }
                None => {
                    return refuse(
                        "InvalidSecurityGroup",
                        format!("The security group '{id}' does not exist"),
                    );
                }
            }
        }
        let distinct: BTreeSet<_> = groups.iter().collect();
        if distinct.len() > self.options.quotas.security_groups_per_interface {
            let message =
                "The maximum number of security groups per load balancer has been reached";
            return refuse("InvalidConfigurationRequest", message);
        }
        Ok(())
    }
}

pub(super) fn show(id: &SecurityGroupId, group: &SecurityGroup) -> ec2::SecurityGroup {
    ec2::SecurityGroup {
        id: id.clone(),
        name: group.name.clone(),
        description: group.description.clone(),
        vpc: Some(group.vpc.clone()),
        ingress: group.ingress.clone(),
        tags: group.tags.clone(),
    }
}

pub(super) fn group_of(rule: &Rule) -> Option<&SecurityGroupId> {
    match &rule.source {
        RuleSource::Group(id, _) => Some(id),
        RuleSource::Cidr(_) | RuleSource::PrefixList(_) => None,
    }
}

/// Returns true if two rules are the same to AWS, which ignores the description.
fn same(a: &Rule, b: &Rule) -> bool {
    a.protocol == b.protocol && a.ports == b.ports && a.source == b.source
}

fn describe(rule: &Rule) -> String {
    let (from, to) = rule.ports.unwrap_or((-1, -1));
    format!("peer: {:?}, {}, from port: {from}, to port: {to}, ALLOW", rule.source, rule.protocol)
}

/// Normalizes a rule as AWS does: names for protocols that have one, CIDRs without host bits, the
/// owner of a security group.
fn normal(rule: &Rule) -> ApiResult<Rule> {
    // Protocol.
    let protocol = match rule.protocol.to_ascii_lowercase().as_str() {
        "1" => "icmp".to_owned(),
        "6" => "tcp".to_owned(),
        "17" => "udp".to_owned(),
        "58" => "icmpv6".to_owned(),
        "all" => "-1".to_owned(),
        other => other.to_owned(),
    };
    let known = matches!(protocol.as_str(), "tcp" | "udp" | "icmp" | "icmpv6" | "-1")
        || protocol.parse::<u8>().is_ok();
    if !known {
        let message = format!("Invalid value '{protocol}' for IP protocol. Unknown protocol.");
        return refuse("InvalidParameterValue", message);
    }
    // Ports.
    let ports = match (protocol.as_str(), rule.ports) {
        ("tcp" | "udp", Some((from, to)))
            if (0..=65535).contains(&from) && (from..=65535).contains(&to) =>
        {
            Some((from, to))
        }
        ("tcp" | "udp", _) => {
            let message =
                format!("Invalid value for port range of protocol {protocol}: {:?}", rule.ports);
            return refuse("InvalidParameterValue", message);
        }
        ("icmp" | "icmpv6", None | Some((-1, _))) => None,
        ("icmp" | "icmpv6", Some((kind, code)))
            if (-1..=255).contains(&kind) && (-1..=255).contains(&code) =>
        {
            Some((kind, code))
        }
        ("icmp" | "icmpv6", Some(ports)) => {
            return refuse(
                "InvalidParameterValue",
                format!("ICMP type or code is out of range: {ports:?}"),
            );
        }
        _ => None,
    };
    // Description and source.
    let allowed = |c: char| c.is_ascii_alphanumeric() || " ._-:/()#,@[]+=&;{}!$*".contains(c);
    if rule.description.len() > 255 || !rule.description.chars().all(allowed) {
        return refuse("InvalidParameterValue", "Invalid rule description");
    }
    let source = match &rule.source {
        RuleSource::Cidr(net) => RuleSource::Cidr(net.trunc()),
        RuleSource::Group(id, None) => RuleSource::Group(id.clone(), Some(ACCOUNT.into())),
        other => other.clone(),
    };
    Ok(Rule {
        protocol: protocol.into(),
        ports,
        source,
        description: rule.description.clone(),
    })
}
