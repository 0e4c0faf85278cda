//! Parses the source ranges and security groups, which decide which clients may connect.

use ccm_core::{k8s::IpFamily, provider::SourceRanges};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{DefaultsSource, SpecReader};
use crate::{
    api::elb::IpAddressType,
    lb::{
        model::{NodeRuleSource, SecurityGroupChoice, SecurityGroupSpec},
        spec::annotations as a,
    },
};

/// Parses the networks that may connect. Invalid ones are reported as errors and count as unset.
pub(super) fn source_ranges(
    reader: &mut SpecReader<'_>,
    ip_address_type: IpAddressType,
) -> Vec<IpNet> {
    let found = match SourceRanges::of(reader.service) {
        Ok(SourceRanges::Only(found)) => found,
        Ok(SourceRanges::Unset) => Vec::new(),
        Err(errors) => {
            reader.annotations.add_errors(errors);
            Vec::new()
        }
    };
    if ip_address_type != IpAddressType::Dualstack {
        let of_spec = !reader.service.source_ranges.is_empty();
        let field = if of_spec {
            "spec.loadBalancerSourceRanges".into()
        } else {
            a::SOURCE_RANGES.definition.key()
        };
        for network in found
            .iter()
            .filter(|network| IpFamily::of(network) == IpFamily::V6)
        {
            let message = format!("unsupported v6 cidr {network} when lb is not dualstack");
            // Upstream accepts it where no rule is made of it.
            let is_used = !reader.settings.disable_security_group_ingress
                || reader.settings.managed_security_groups;
            if is_used || !reader.is_upstream() {
                reader.annotations.add_error(field.clone(), message);
            } else {
                reader.warn("SourceRangesNotEnforced", format!("{field}: {message}"));
            }
        }
    }
    // Without source ranges, all clients may connect.
    if found.is_empty() {
        any_source(ip_address_type)
    } else {
        found
    }
}

/// Returns the ranges that contain all addresses of the load balancer's families.
pub(super) fn any_source(ip_address_type: IpAddressType) -> Vec<IpNet> {
    let mut all = vec![IpNet::V4(Ipv4Net::default())];
    if ip_address_type == IpAddressType::Dualstack {
        all.push(IpNet::V6(Ipv6Net::default()));
    }
    all
}

/// Parses the security groups. Also returns the source ranges, which prefix lists replace if the
/// Service names none.
pub(super) fn read(
    reader: &mut SpecReader<'_>,
    sources: Vec<IpNet>,
) -> (SecurityGroupSpec, Vec<IpNet>) {
    let groups = groups(reader);
    let mut prefix_lists = reader.annotations.get(&a::PREFIX_LISTS).unwrap_or_default();
    prefix_lists.sort_unstable();
    prefix_lists.dedup();
    match &groups {
        // The rules of given groups alone decide which clients may connect.
        SecurityGroupChoice::Given(_) => prefix_lists.clear(),
        // Without a managed group, other clients could connect too.
        SecurityGroupChoice::Keep | SecurityGroupChoice::None if !prefix_lists.is_empty() => {
            let message =
                "prefix lists need a managed security group (NLBSecurityGroupMode=Managed)";
            reader
                .annotations
                .invalid_value(&a::PREFIX_LISTS.definition, message);
        }
        SecurityGroupChoice::Managed | SecurityGroupChoice::Keep | SecurityGroupChoice::None => {}
    }
    let unset = matches!(SourceRanges::of(reader.service), Ok(SourceRanges::Unset));
    let sources = if unset && !prefix_lists.is_empty() {
        Vec::new()
    } else {
        sources
    };
    // cloud-provider-aws has no prefix lists, and no CIDR rule can express them.
    let as_upstream =
        reader.defaults_source == DefaultsSource::CloudProviderAws && prefix_lists.is_empty();
    let backend_rules = backend_rules(reader, &groups);
    let security = SecurityGroupSpec {
        node_rules: if as_upstream && !backend_rules.refer_to_shared_group {
            NodeRuleSource::Networks
        } else {
            NodeRuleSource::Group
        },
        manage_backend_rules: backend_rules.are_managed,
        private_link_rules: reader.annotations.get(&a::PRIVATE_LINK_RULES),
        prefix_lists,
        groups,
    };
    (security, sources)
}

fn groups(reader: &mut SpecReader<'_>) -> SecurityGroupChoice {
    let mut given = reader
        .annotations
        .get(&a::SECURITY_GROUPS)
        .unwrap_or_default();
    given.sort_unstable();
    given.dedup();
    if reader.annotations.get(&a::DISABLE_SECURITY_GROUP) == Some(true) {
        if !given.is_empty() {
            let message = "conflicting security groups configuration";
            reader
                .annotations
                .invalid_value(&a::DISABLE_SECURITY_GROUP.definition, message);
        }
        return SecurityGroupChoice::None;
    }
    let is_managed = reader.settings.managed_security_groups;
    let may_give = is_managed || reader.defaults_source == DefaultsSource::LoadBalancerController;
    if !given.is_empty() && may_give {
        return SecurityGroupChoice::Given(given);
    }
    if is_managed {
        return SecurityGroupChoice::Managed;
    }
    if !given.is_empty() {
        let note = format!(
            "{} has no effect unless NLBSecurityGroupMode is Managed in cloud.conf",
            a::SECURITY_GROUPS.definition.key()
        );
        reader.warn("SecurityGroupsIgnored", note);
    }
    SecurityGroupChoice::Keep
}

/// The management of the rules in nodes' groups.
struct BackendRules {
    are_managed: bool,
    /// True if the rules refer to the shared group next to given ones.
    refer_to_shared_group: bool,
}

/// Parses the management of the rules in nodes' groups. cloud-provider-aws manages them with any
/// groups. The load balancer controller does so for given groups only on request.
fn backend_rules(reader: &mut SpecReader<'_>, groups: &SecurityGroupChoice) -> BackendRules {
    let has_given_groups = matches!(groups, SecurityGroupChoice::Given(_));
    let requested = reader.annotations.get(&a::MANAGE_BACKEND_RULES);
    let is_requested = requested == Some(true);
    let has_shared_group = reader.settings.shared_backend_security_group
        || reader.settings.backend_security_group.is_some();
    let as_upstream = reader.defaults_source == DefaultsSource::CloudProviderAws;
    if has_given_groups && is_requested && !has_shared_group && !as_upstream {
        let message = "backendSG feature is required to manage worker node SG rules when frontendSG is manually specified";
        reader
            .annotations
            .invalid_value(&a::MANAGE_BACKEND_RULES.definition, message);
    }
    BackendRules {
        are_managed: requested.unwrap_or(!has_given_groups || as_upstream),
        refer_to_shared_group: has_given_groups && is_requested && has_shared_group,
    }
}
