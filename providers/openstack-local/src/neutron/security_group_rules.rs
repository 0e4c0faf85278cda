//! Rules of security groups.

use std::net::IpAddr;

use crate::api::neutron::{EtherType, SecurityGroupRule, SecurityGroupRuleCreate};
use ipnet::IpNet;

use super::{
    Resource,
    common::{invalid, owner},
    quotas::{self, Quotable},
    security_groups::{self, new_rule},
};
use crate::state::{ApiError, CloudState, RequestContext};

/// Protocols by name, besides `any`.
const PROTOCOLS: [&str; 24] = [
    "ah",
    "dccp",
    "egp",
    "esp",
    "gre",
    "hopopt",
    "icmp",
    "icmpv6",
    "igmp",
    "ip",
    "ipip",
    "ipv6-encap",
    "ipv6-frag",
    "ipv6-icmp",
    "ipv6-nonxt",
    "ipv6-opts",
    "ipv6-route",
    "ospf",
    "pgm",
    "rsvp",
    "sctp",
    "tcp",
    "udp",
    "udplite",
];
/// Protocols with ports, by number and name.
const WITH_PORTS: [&str; 10] =
    ["tcp", "udp", "sctp", "dccp", "udplite", "6", "17", "132", "33", "136"];
/// ICMP, by number and name.
const ICMP: [&str; 2] = ["icmp", "1"];
/// ICMP for IPv6, by number and name.
const ICMP_V6: [&str; 3] = ["icmpv6", "ipv6-icmp", "58"];

/// Returns the rules that the user may see.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<SecurityGroupRule> {
    let rows = state
        .neutron
        .security_group_rules
        .iter()
        .filter(|rule| ctx.sees(&rule.standard.project_id));
    rows.map(|rule| SecurityGroupRule::clone(rule)).collect()
}

/// Returns one.
///
/// # Errors
/// It does not exist, or the user may not see it.
pub fn get<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s SecurityGroupRule, ApiError> {
    let row = state
        .neutron
        .security_group_rules
        .get(id)
        .filter(|rule| ctx.sees(&rule.standard.project_id));
    row.map(|row| &**row)
        .ok_or_else(|| Resource::SecurityGroupRule.not_found(id))
}

/// Creates rules, all or none.
///
/// # Errors
/// The group does not exist; the rules are of two groups; values contradict each other; a rule
/// exists already; the quota is used up.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    requests: Vec<SecurityGroupRuleCreate>,
) -> Result<Vec<SecurityGroupRule>, ApiError> {
    let mut made: Vec<SecurityGroupRule> = Vec::with_capacity(requests.len());
    // First, check that all are of one group, and the quota.
    let Some(group) = requests
        .first()
        .map(|request| request.security_group_id.clone())
    else {
        return Ok(made);
    };
    if requests
        .iter()
        .any(|request| request.security_group_id != group)
    {
        return Err(ApiError::bad_request(
            "SecurityGroupNotSingleGroupRules",
            "Only allowed to update rules for one security profile at a time.",
        ));
    }
    let (project, is_default) = {
        let row = security_groups::get(state, ctx, &group)?;
        (row.standard.project_id.clone(), row.name == "default")
    };
    quotas::check(state, &project, Quotable::SecurityGroupRule, requests.len())?;
    // Then check each rule.
    for request in requests {
        let project = match request.project_id.clone() {
            None => project.clone(),
            asked => owner(ctx, asked)?,
        };
        let rule = checked(state, ctx, request, new_rule(ctx, &project, &group, is_default))?;
        if made.iter().any(|other| same(other, &rule)) {
            return Err(ApiError::conflict(
                "DuplicateSecurityGroupRuleInPost",
                "Duplicate Security Group Rule in POST.",
            ));
        }
        let mut present = state
            .neutron
            .security_group_rules
            .iter()
            .filter(|other| other.security_group_id == group);
        if let Some(other) = present.find(|other| same(other, &rule)) {
            return Err(ApiError::conflict(
                "SecurityGroupRuleExists",
                format!("Security group rule already exists. Rule id is {}.", other.id),
            ));
        }
        made.push(rule);
    }
    // Finally, store them.
    for rule in &made {
        state.neutron.security_group_rules.put(rule.clone());
    }
    Resource::SecurityGroup.touch(state, ctx, &group);
    Ok(made)
}

/// Returns whether two rules admit the same traffic.
fn same(one: &SecurityGroupRule, other: &SecurityGroupRule) -> bool {
    let key = |rule: &SecurityGroupRule| {
        let protocol = rule.protocol.as_deref().map(canonical);
        (
            rule.direction,
            rule.ethertype,
            protocol,
            rule.port_range_min,
            rule.port_range_max,
            rule.normalized_cidr.clone(),
            rule.remote_group_id.clone(),
        )
    };
    key(one) == key(other)
}

/// Returns one canonical name of a protocol that has several.
fn canonical(protocol: &str) -> String {
    match protocol {
        "6" => "tcp",
        "17" => "udp",
        "132" => "sctp",
        "1" => "icmp",
        "58" | "icmpv6" => "ipv6-icmp",
        other => other,
    }
    .to_owned()
}

/// Checks a request, and completes a rule.
fn checked(
    state: &CloudState,
    ctx: &RequestContext,
    request: SecurityGroupRuleCreate,
    rule: SecurityGroupRule,
) -> Result<SecurityGroupRule, ApiError> {
    let ethertype = request.ethertype.unwrap_or_default();
    let protocol = protocol(request.protocol, ethertype)?;
    check_ports(protocol.as_deref(), request.port_range_min, request.port_range_max)?;
    if request.remote_ip_prefix.is_some() && request.remote_group_id.is_some() {
        return Err(ApiError::bad_request(
            "SecurityGroupMultipleRemoteEntitites",
            "Only one of remote_ip_prefix or remote_group_id may be provided.",
        ));
    }
    if let Some(remote) = &request.remote_group_id {
        security_groups::get(state, ctx, remote)?;
    }
    let normalized_cidr = request
        .remote_ip_prefix
        .as_deref()
        .map(|prefix| remote(prefix, ethertype))
        .transpose()?;
    let mut rule = SecurityGroupRule {
        direction: request.direction,
        ethertype,
        protocol,
        port_range_min: request.port_range_min,
        port_range_max: request.port_range_max,
        remote_ip_prefix: request.remote_ip_prefix,
        remote_group_id: request.remote_group_id,
        normalized_cidr,
        ..rule
    };
    rule.standard.description = request.description.unwrap_or_default();
    Ok(rule)
}

/// Parses the remote CIDR.
fn remote(prefix: &str, ethertype: EtherType) -> Result<String, ApiError> {
    let range = prefix
        .parse::<IpNet>()
        .or_else(|_| prefix.parse::<IpAddr>().map(IpNet::from));
    let range = range
        .map_err(|_| invalid("remote_ip_prefix", format!("'{prefix}' is not a valid CIDR")))?;
    if matches!(range, IpNet::V4(_)) != (ethertype == EtherType::Ipv4) {
        let ethertype = if ethertype == EtherType::Ipv4 {
            "IPv4"
        } else {
            "IPv6"
        };
        return Err(ApiError::bad_request(
            "SecurityGroupRuleParameterConflict",
            format!("Conflicting value ethertype {ethertype} for CIDR {prefix}"),
        ));
    }
    Ok(range.trunc().to_string())
}

/// Parses a protocol; `None` for `any`.
fn protocol(asked: Option<String>, ethertype: EtherType) -> Result<Option<String>, ApiError> {
    let Some(name) = asked
        .map(|name| name.to_lowercase())
        .filter(|name| name != "any")
    else {
        return Ok(None);
    };
    let numbered = name.parse::<u8>().is_ok();
    if !numbered && !PROTOCOLS.contains(&&*name) {
        return Err(ApiError::bad_request(
            "SecurityGroupRuleInvalidProtocol",
            format!(
                "Security group rule protocol {name} not supported. Only protocol values {PROTOCOLS:?} and integer representations [0 to 255] are supported."
            ),
        ));
    }
    // With IPv6, `icmp` means ICMPv6.
    if ethertype == EtherType::Ipv6 && ICMP.contains(&&*name) {
        return Ok(Some("ipv6-icmp".into()));
    }
    if ethertype == EtherType::Ipv4 && ICMP_V6.contains(&&*name) {
        return Err(ApiError::bad_request(
            "SecurityGroupEthertypeConflictWithProtocol",
            format!("Invalid ethertype IPv4 for protocol {name}."),
        ));
    }
    Ok(Some(name))
}

/// Rejects ports that do not match the protocol.
fn check_ports(protocol: Option<&str>, min: Option<u16>, max: Option<u16>) -> Result<(), ApiError> {
    let Some(protocol) = protocol else {
        if min.is_none() && max.is_none() {
            return Ok(());
        }
        return Err(ApiError::bad_request(
            "SecurityGroupProtocolRequiredWithPorts",
            "Must also specify protocol if port range is given.",
        ));
    };
    // Protocols with ports.
    if WITH_PORTS.contains(&protocol) {
        return match (min, max) {
            (None, None) => Ok(()),
            (Some(0), _) | (_, Some(0)) => Err(ApiError::bad_request(
                "SecurityGroupInvalidPortValue",
                "Invalid value for port 0",
            )),
            (Some(min), Some(max)) if min <= max => Ok(()),
            _ => Err(ApiError::bad_request(
                "SecurityGroupInvalidPortRange",
                "For TCP/UDP protocols, port_range_min must be <= port_range_max",
            )),
        };
    }
    // For ICMP, the fields are type and code.
    if ICMP.contains(&protocol) || ICMP_V6.contains(&protocol) {
        for (field, value) in [("type", min), ("code", max)] {
            if value.is_some_and(|value| value > 255) {
                return Err(ApiError::bad_request(
                    "SecurityGroupInvalidIcmpValue",
                    format!(
                        "Invalid value for ICMP {field} ({}). It must be 0 to 255.",
                        value.unwrap_or_default()
                    ),
                ));
            }
        }
        if min.is_none() && max.is_some() {
            return Err(ApiError::bad_request(
                "SecurityGroupMissingIcmpType",
                "ICMP code (port-range-max) is provided but ICMP type (port-range-min) is missing.",
            ));
        }
        return Ok(());
    }
    // Other protocols have no ports.
    if min.is_some() || max.is_some() {
        return Err(ApiError::bad_request(
            "SecurityGroupInvalidProtocolForPort",
            format!("Ports cannot be specified for protocol {protocol}."),
        ));
    }
    Ok(())
}

/// Deletes one.
///
/// # Errors
/// It does not exist.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    let group = get(state, ctx, id)?.security_group_id.clone();
    state.neutron.security_group_rules.remove(id);
    Resource::SecurityGroup.touch(state, ctx, &group);
    Ok(())
}
