//! Compares the rules of a Service's security group, and the ports that have it, with the desired
//! state. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use openstack_api::neutron::{Direction, EtherType, SecurityGroupRuleCreate};

use crate::{
    api::neutron::{Port, SecurityGroupRule},
    lb::{desired_members::NodeBackend, model::SecurityGroupSpec},
};

/// A rule in a form that can be compared. Two rules are equal if all these fields are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Direction of the traffic.
    pub direction: Direction,
    /// Address family.
    pub ethertype: EtherType,
    /// Protocol in lower case, or `None` for any.
    pub protocol: Option<Box<str>>,
    /// First and last port, or `None` for any.
    pub ports: Option<(u16, u16)>,
    /// Remote network in canonical form, or `None` for any.
    pub remote: Option<Box<str>>,
    /// Remote security group or address group, or `None` for any. Desired rules have none.
    pub remote_group: Option<Box<str>>,
}

impl Rule {
    /// Creates a rule that admits a network to a port.
    pub fn ingress(protocol: &str, port: u16, from: &IpNet) -> Self {
        Self {
            direction: Direction::Ingress,
            ethertype: if from.addr().is_ipv4() {
                EtherType::Ipv4
            } else {
                EtherType::Ipv6
            },
            protocol: Some(protocol.to_lowercase().into()),
            ports: Some((port, port)),
            remote: Some(from.trunc().to_string().into()),
            remote_group: None,
        }
    }

    /// Builds the body of the request that creates the rule.
    pub fn body(&self, group: &str) -> SecurityGroupRuleCreate {
        SecurityGroupRuleCreate {
            security_group_id: group.into(),
            direction: self.direction.clone(),
            ethertype: Some(self.ethertype.clone()),
            protocol: self.protocol.as_deref().map(Into::into),
            port_range_min: self.ports.map(|(first, _)| first),
            port_range_max: self.ports.map(|(_, last)| last),
            remote_ip_prefix: self.remote.as_deref().map(Into::into),
            ..SecurityGroupRuleCreate::default()
        }
    }
}

impl From<&SecurityGroupRule> for Rule {
    fn from(rule: &SecurityGroupRule) -> Self {
        let remote_group = rule
            .remote_group_id
            .as_deref()
            .or(rule.remote_address_group_id.as_deref());
        Self {
            direction: rule.direction.clone(),
            ethertype: rule.ethertype.clone(),
            protocol: rule
                .protocol
                .as_deref()
                .map(|protocol| protocol.to_lowercase().into()),
            ports: rule.port_range_min.zip(rule.port_range_max),
            remote: rule.remote_ip_prefix.as_deref().map(canonical_network),
            remote_group: remote_group.map(Into::into),
        }
    }
}

/// Returns a network in its canonical form, so that equal networks compare as equal.
fn canonical_network(text: &str) -> Box<str> {
    match text.parse::<IpNet>() {
        Ok(network) => network.trunc().to_string().into(),
        Err(_) => text.into(),
    }
}

/// Returns the rules that a group should have. `subnet` is the subnet of members, which the load
/// balancer's own traffic comes from.
pub fn desired_rules(group: &SecurityGroupSpec, subnet: &IpNet) -> BTreeSet<Rule> {
    let mut rules = BTreeSet::new();
    if let Some(port) = group.health_port {
        rules.insert(Rule::ingress("tcp", port, subnet));
    }
    let sources = group
        .clients
        .as_deref()
        .unwrap_or(std::slice::from_ref(subnet));
    for (protocol, port) in &group.ports {
        for source in sources {
            rules.insert(Rule::ingress(protocol, *port, source));
        }
    }
    rules
}

/// Differences between desired and observed rules.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RuleDiff {
    /// Rules to create.
    pub missing: Vec<Rule>,
    /// IDs of rules to delete.
    pub surplus: Vec<String>,
}

/// Compares rules. If several observed rules are equal, all but one are surplus.
pub fn diff_rules(desired: &BTreeSet<Rule>, observed: &[SecurityGroupRule]) -> RuleDiff {
    let mut kept = BTreeSet::new();
    let mut surplus = Vec::new();
    for rule in observed {
        let comparable = Rule::from(rule);
        if !desired.contains(&comparable) || !kept.insert(comparable) {
            surplus.push(rule.id.clone());
        }
    }
    RuleDiff {
        missing: desired.difference(&kept).cloned().collect(),
        surplus,
    }
}

/// Finds the ports that lack the group: ports with port security and the address that the load
/// balancer sends to, on the subnet of members.
pub fn ports_to_add<'a>(
    group: &str,
    subnet: &str,
    backends: &[NodeBackend],
    ports: impl IntoIterator<Item = &'a Port>,
) -> Vec<&'a Port> {
    let addresses: BTreeMap<&str, IpAddr> = backends
        .iter()
        .filter_map(|backend| Some((backend.server.as_deref()?, backend.address)))
        .collect();
    let mut lacking = Vec::new();
    for port in ports {
        let Some(address) = addresses.get(&*port.device_id) else {
            continue;
        };
        let has_address = port
            .fixed_ips
            .iter()
            .any(|fixed| fixed.ip_address == *address && *fixed.subnet_id == *subnet);
        let has_group = port.has_security_group(group);
        if has_address && !has_group && port.port_security_enabled != Some(false) {
            lacking.push(port);
        }
    }
    lacking
}

/// Finds the ports that must lose the group: ports of servers that are not members any more.
pub fn ports_to_remove<'a>(
    backends: &[NodeBackend],
    holders: impl IntoIterator<Item = &'a Port>,
) -> Vec<&'a Port> {
    let servers: BTreeSet<&str> = backends
        .iter()
        .filter_map(|backend| backend.server.as_deref())
        .collect();
    holders
        .into_iter()
        .filter(|port| is_of_server(port) && !servers.contains(&*port.device_id))
        .collect()
}

/// Returns true if a port belongs to a server.
pub fn is_of_server(port: &Port) -> bool {
    ["compute:", "baremetal:"]
        .iter()
        .any(|owner| port.device_owner.starts_with(owner))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    fn seen(
        id: &str,
        direction: Direction,
        protocol: Option<&str>,
        port: Option<u16>,
        remote: Option<&str>,
    ) -> SecurityGroupRule {
        SecurityGroupRule {
            id: id.into(),
            direction,
            ethertype: EtherType::Ipv4,
            protocol: protocol.map(Into::into),
            port_range_min: port,
            port_range_max: port,
            remote_ip_prefix: remote.map(Into::into),
            ..SecurityGroupRule::default()
        }
    }

    fn tcp(port: u16, from: &str) -> Rule {
        Rule::ingress("tcp", port, &from.parse().unwrap())
    }

    fn ids(found: &[String]) -> Vec<&str> {
        found.iter().map(|id| &**id).collect()
    }

    // G01 G02 G03 G04 G05 G06 G07
    #[test]
    fn rules_differ_by_what_they_admit() {
        let net = "10.0.0.0/24";
        let ingress = |id: &str, protocol: &str, port: u16, from: &str| {
            seen(id, Direction::Ingress, Some(protocol), Some(port), Some(from))
        };
        let egress = |id: &str| seen(id, Direction::Egress, None, None, None);
        type Case<'a> = (&'a str, Vec<Rule>, Vec<SecurityGroupRule>, Vec<Rule>, Vec<&'a str>);
        let cases: [Case<'_>; 9] = [
            ("nothing", vec![], vec![], vec![], vec![]),
            (
                "default rules",
                vec![tcp(80, net)],
                vec![egress("a"), egress("b")],
                vec![tcp(80, net)],
                vec!["a", "b"],
            ),
            (
                "case of letters",
                vec![Rule::ingress("TCP", 80, &net.parse().unwrap())],
                vec![ingress("a", "tcp", 80, net)],
                vec![],
                vec![],
            ),
            (
                "another port",
                vec![tcp(443, net)],
                vec![ingress("a", "tcp", 80, net)],
                vec![tcp(443, net)],
                vec!["a"],
            ),
            (
                "another network",
                vec![tcp(80, "10.1.0.0/24")],
                vec![ingress("a", "tcp", 80, net)],
                vec![tcp(80, "10.1.0.0/24")],
                vec!["a"],
            ),
            (
                "none wanted",
                vec![],
                vec![ingress("a", "tcp", 80, net), egress("b"), egress("c")],
                vec![],
                vec!["a", "b", "c"],
            ),
            (
                "none there",
                vec![tcp(80, net), tcp(81, net), tcp(82, net)],
                vec![],
                vec![tcp(80, net), tcp(81, net), tcp(82, net)],
                vec![],
            ),
            (
                "twice there",
                vec![tcp(80, net)],
                vec![ingress("a", "tcp", 80, net), ingress("b", "tcp", 80, net)],
                vec![],
                vec!["b"],
            ),
            (
                "another spelling",
                vec![tcp(80, net)],
                vec![ingress("a", "TCP", 80, "10.0.0.7/24")],
                vec![],
                vec![],
            ),
        ];
        for (case, wanted, there, create, delete) in cases {
            let RuleDiff { missing, surplus } = diff_rules(&wanted.into_iter().collect(), &there);
            assert_eq!((missing, ids(&surplus)), (create, delete), "{case}");
        }
    }

    #[test]
    fn a_rule_for_a_group_is_never_the_wanted_one() {
        let mut rule = seen("a", Direction::Ingress, Some("tcp"), Some(80), Some("10.0.0.0/24"));
        rule.remote_group_id = Some("g".into());
        let RuleDiff { missing, surplus } = diff_rules(&[tcp(80, "10.0.0.0/24")].into(), &[rule]);
        assert_eq!((missing.len(), ids(&surplus)), (1, vec!["a"]));
    }

    #[test]
    fn health_checks_come_from_the_subnet_and_clients_of_ovn_from_theirs() {
        let subnet: IpNet = "10.0.0.0/24".parse().unwrap();
        let group = |clients| SecurityGroupSpec {
            name: "g".into(),
            description: "d".into(),
            ports: vec![("tcp", 30080), ("udp", 30053)],
            health_port: Some(32100),
            clients,
        };
        let plain = desired_rules(&group(None), &subnet);
        let udp = |from: &str| Rule::ingress("udp", 30053, &from.parse().unwrap());
        assert_eq!(
            plain,
            [tcp(32100, "10.0.0.0/24"), tcp(30080, "10.0.0.0/24"), udp("10.0.0.0/24")].into()
        );
        let ovn = desired_rules(&group(Some(vec!["0.0.0.0/0".parse().unwrap()])), &subnet);
        assert_eq!(
            ovn,
            [tcp(32100, "10.0.0.0/24"), tcp(30080, "0.0.0.0/0"), udp("0.0.0.0/0")].into()
        );
        assert_eq!(
            Rule::ingress("tcp", 1, &"2001:db8::/64".parse().unwrap()).ethertype,
            EtherType::Ipv6
        );
    }

    fn port(id: &str, server: &str, address: &str, groups: &[&str]) -> Port {
        let fixed_ips = vec![crate::api::neutron::FixedIp {
            subnet_id: "s".into(),
            ip_address: address.parse().unwrap(),
        }];
        let security_groups = Some(groups.iter().map(ToString::to_string).collect());
        let device_owner = "compute:nova".into();
        Port {
            id: id.into(),
            device_id: server.into(),
            device_owner,
            fixed_ips,
            security_groups,
            ..Port::default()
        }
    }

    #[test]
    fn ports_join_and_leave_with_their_nodes() {
        let backend = |server: &str, address: &str| NodeBackend {
            node: server.into(),
            address: address.parse().unwrap(),
            server: Some(server.into()),
        };
        let backends = [backend("a", "10.0.0.1"), backend("b", "10.0.0.2")];
        let mut insecure = port("insecure", "b", "10.0.0.2", &[]);
        insecure.port_security_enabled = Some(false);
        let ports = [
            port("lacks", "a", "10.0.0.1", &["default"]),
            port("has", "b", "10.0.0.2", &["default", "g"]),
            port("other address", "a", "10.0.0.9", &[]),
            insecure,
        ];
        let names =
            |found: Vec<&Port>| found.iter().map(|port| port.id.clone()).collect::<Vec<_>>();
        assert_eq!(names(ports_to_add("g", "s", &backends, &ports)), ["lacks"]);
        assert_eq!(names(ports_to_add("g", "elsewhere", &backends, &ports)), [""; 0]);
        let holders =
            [port("stays", "a", "10.0.0.1", &["g"]), port("departed", "c", "10.0.0.3", &["g"])];
        assert_eq!(names(ports_to_remove(&backends, &holders)), ["departed"]);
    }

    fn any_rules() -> impl Strategy<Value = Vec<SecurityGroupRule>> {
        let one = (
            select(vec![Direction::Ingress, Direction::Egress]),
            select(vec![None, Some("tcp"), Some("TCP"), Some("udp")]),
            select(vec![None, Some(80), Some(443)]),
            select(vec![None, Some("10.0.0.0/24"), Some("10.0.0.7/24"), Some("fd00::/64")]),
        );
        vec(one, 0..8).prop_map(|rules| {
            let rules = rules.into_iter().enumerate();
            rules
                .map(|(at, (direction, protocol, port, from))| {
                    seen(&format!("r{at}"), direction, protocol, port, from)
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn a_difference_leaves_exactly_what_is_wanted(
            ports in vec((select(vec!["tcp", "udp"]), select(vec![80_u16, 443])), 0..4),
            there in any_rules(),
            by in 0..8_usize,
        ) {
            let subnet: IpNet = "10.0.0.0/24".parse().unwrap();
            let wanted: BTreeSet<Rule> = ports.iter().map(|(protocol, port)| Rule::ingress(protocol, *port, &subnet)).collect();
            let RuleDiff { missing, surplus } = diff_rules(&wanted, &there);
            let mut after: Vec<_> = there.iter().filter(|rule| !surplus.contains(&rule.id)).cloned().collect();
            after.extend(missing.iter().enumerate().map(|(at, rule)| {
                let port = rule.ports.map(|(port, _)| port);
                seen(&format!("new{at}"), rule.direction.clone(), rule.protocol.as_deref(), port, rule.remote.as_deref())
            }));
            let kept: Vec<Rule> = after.iter().map(Rule::from).collect();
            prop_assert_eq!(kept.len(), wanted.len(), "each once");
            prop_assert_eq!(kept.into_iter().collect::<BTreeSet<_>>(), wanted.clone());
            prop_assert_eq!(diff_rules(&wanted, &after), RuleDiff::default());
            // In another order the same are missing, and as many are surplus.
            let mut turned = there.clone();
            turned.rotate_left(by.min(there.len()));
            let RuleDiff { missing: also_missing, surplus: also_surplus } = diff_rules(&wanted, &turned);
            prop_assert_eq!((also_missing, also_surplus.len()), (missing, surplus.len()));
        }

        #[test]
        fn ports_of_no_server_and_of_members_never_leave(owners in vec(select(vec!["compute:a", "network:dhcp", "baremetal:x", "Octavia", ""]), 0..6)) {
            let backends = [NodeBackend { node: "n".into(), address: "10.0.0.1".parse().unwrap(), server: Some("0".into()) }];
            let holders: Vec<Port> = owners.iter().enumerate().map(|(at, owner)| {
                Port { device_owner: (*owner).into(), ..port(&format!("p{at}"), &at.to_string(), "10.0.0.1", &["g"]) }
            }).collect();
            for port in ports_to_remove(&backends, &holders) {
                prop_assert!(port.device_owner.starts_with("compute:") || port.device_owner.starts_with("baremetal:"));
                prop_assert!(port.device_id != "0");
            }
            // Whoever has left is there no more, and whoever joined need not join again.
            let gone: Vec<String> = ports_to_remove(&backends, &holders).iter().map(|port| port.id.clone()).collect();
            let rest: Vec<Port> = holders.iter().filter(|port| !gone.contains(&port.id)).cloned().collect();
            prop_assert_eq!(ports_to_remove(&backends, &rest).len(), 0);
            prop_assert_eq!(ports_to_add("g", "s", &backends, &holders).len(), 0);
        }
    }
}
