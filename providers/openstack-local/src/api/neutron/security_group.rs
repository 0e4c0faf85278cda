use serde::{Deserialize, Serialize};

use super::{Standard, envelopes};
use crate::api::lenient::or_default;

/// A set of rules for ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecurityGroup {
    /// Identifier, a UUID.
    pub id: String,
    /// Name; not unique.
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    /// True if responses to admitted packets are admitted too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stateful: Option<bool>,
    /// True if other projects may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<bool>,
    /// Rules.
    #[serde(default, deserialize_with = "or_default")]
    pub security_group_rules: Vec<SecurityGroupRule>,
    /// Project, times, revision, tags.
    #[serde(flatten)]
    pub standard: Standard,
}

envelopes!(
    SecurityGroupEnvelope,
    security_group: SecurityGroup,
    SecurityGroups,
    security_groups,
    security_groups_links
);

/// Lets something through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecurityGroupRule {
    /// Identifier, a UUID.
    pub id: String,
    /// Group.
    #[serde(default, deserialize_with = "or_default")]
    pub security_group_id: String,
    /// Into or out of the port.
    #[serde(default, deserialize_with = "or_default")]
    pub direction: Direction,
    /// IP version.
    #[serde(default, deserialize_with = "or_default")]
    pub ethertype: EtherType,
    /// Name or number; null is any.
    #[serde(default)]
    pub protocol: Option<String>,
    /// First port, or type of ICMP; null is any.
    #[serde(default)]
    pub port_range_min: Option<u16>,
    /// Last port, or code of ICMP; null is any.
    #[serde(default)]
    pub port_range_max: Option<u16>,
    /// Range at the other end; null is any.
    #[serde(default)]
    pub remote_ip_prefix: Option<String>,
    /// Group at the other end; null is any.
    #[serde(default)]
    pub remote_group_id: Option<String>,
    /// Address group at the other end; null is any.
    #[serde(default)]
    pub remote_address_group_id: Option<String>,
    /// `remote_ip_prefix` without host bits.
    #[serde(default)]
    pub normalized_cidr: Option<String>,
    /// True if the rule belongs to a `default` group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub belongs_to_default_sg: Option<bool>,
    /// Project, times, revision, tags.
    #[serde(flatten)]
    pub standard: Standard,
}

envelopes!(
    SecurityGroupRuleEnvelope,
    security_group_rule: SecurityGroupRule,
    SecurityGroupRules,
    security_group_rules,
    security_group_rules_links
);

/// Direction of the traffic.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Into the port.
    #[default]
    Ingress,
    /// Out of the port.
    Egress,
}

/// IP version of the traffic.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum EtherType {
    /// IPv4.
    #[default]
    #[serde(rename = "IPv4", alias = "ipv4")]
    Ipv4,
    /// IPv6.
    #[serde(rename = "IPv6", alias = "ipv6")]
    Ipv6,
}

/// Asks for a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecurityGroupCreate {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// True when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stateful: Option<bool>,
    /// For administrators: project it shall belong to.
    #[serde(default, alias = "tenant_id", skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
}

/// Changes a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecurityGroupUpdate {
    /// Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// True if responses to admitted packets are admitted too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stateful: Option<bool>,
}

/// Asks for a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SecurityGroupRuleCreate {
    /// Group.
    pub security_group_id: String,
    /// Into or out of the port.
    pub direction: Direction,
    /// IP version; 4 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ethertype: Option<EtherType>,
    /// Name or number; any when absent.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "protocol"
    )]
    pub protocol: Option<String>,
    /// First port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_range_min: Option<u16>,
    /// Last port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port_range_max: Option<u16>,
    /// Range at the other end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_ip_prefix: Option<String>,
    /// Group at the other end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_group_id: Option<String>,
    /// Free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// For administrators: project it shall belong to.
    #[serde(default, alias = "tenant_id", skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
}

/// Asks for several rules, all or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecurityGroupRulesCreate {
    /// The rules.
    pub security_group_rules: Vec<SecurityGroupRuleCreate>,
}

/// Reads a protocol, which may be a number.
fn protocol<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Name(String),
        Number(u8),
    }
    Ok(Option::deserialize(deserializer)?.map(|protocol| match protocol {
        Either::Name(name) => name,
        Either::Number(number) => number.to_string(),
    }))
}
