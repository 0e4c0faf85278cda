//! Computes the ingress rules that a load balancer needs in its own group and in those of its
//! targets.

use std::collections::BTreeSet;

use ccm_core::k8s::IpFamily;
use ipnet::IpNet;

use super::{
    super::model::{DesiredListener, DesiredLoadBalancer, NodeRuleSource},
    RuleRequest,
};
use crate::api::{
    SecurityGroupId,
    ec2::{Rule, RuleSource},
    elb::{ElbProtocol, HealthPort, IpAddressType, TargetType},
};

/// Description of path-MTU rules in groups of nodes. All load balancers share them.
pub(crate) const MTU: &str = "kubernetes.io/rule/nlb/mtu";
/// Description of the rules by which nodes admit the shared group.
pub(crate) const SHARED: &str = "elbv2.k8s.aws/targetGroupBinding=shared";

const CLIENT: &str = "kubernetes.io/rule/nlb/client=";
const HEALTH: &str = "kubernetes.io/rule/nlb/health=";
const GROUP: &str = "kubernetes.io/rule/nlb/sg=";

/// Protocol, type and code of "fragmentation needed" (ICMP) and "packet too big" (ICMPv6).
const TOO_BIG: (&str, (i32, i32)) = ("icmp", (3, 4));
const TOO_BIG_V6: (&str, (i32, i32)) = ("icmpv6", (2, 0));

/// The API server's default range of node ports.
const NODE_PORTS: (u16, u16) = (30000, 32767);

/// Returns true if a rule admits clients of any load balancer.
pub(crate) fn is_client(rule: &Rule) -> bool {
    rule.description.starts_with(CLIENT)
}

/// Returns the name of the load balancer whose clients a rule admits.
pub(crate) fn client_of(rule: &Rule) -> Option<&str> {
    rule.description.strip_prefix(CLIENT)
}

/// Returns the name of the load balancer whose health checks a rule admits.
pub(crate) fn health_of(rule: &Rule) -> Option<&str> {
    rule.description.strip_prefix(HEALTH)
}

/// Returns true if AWS treats both as the same rule. A group has only one rule with a protocol,
/// ports and source, whatever the description.
pub(crate) fn is_same_rule(a: &Rule, b: &Rule) -> bool {
    is_same_source(&a.source, &b.source)
        && protocol_name(&a.protocol) == protocol_name(&b.protocol)
        && a.ports == b.ports
}

fn is_same_source(a: &RuleSource, b: &RuleSource) -> bool {
    match (a, b) {
        (RuleSource::Cidr(a), RuleSource::Cidr(b)) => a.trunc() == b.trunc(),
        (RuleSource::Group(a, a_account), RuleSource::Group(b, b_account)) => {
            // Responses always have the account ID; our own rules have it only for other accounts.
            let is_same_account =
                a_account.is_none() || b_account.is_none() || a_account == b_account;
            a == b && is_same_account
        }
        (a, b) => a == b,
    }
}

/// Returns the name of a protocol that AWS may report by number.
fn protocol_name(text: &str) -> &str {
    match text {
        "1" => "icmp",
        "6" => "tcp",
        "17" => "udp",
        "58" => "icmpv6",
        other => other,
    }
}

/// Returns true if a rule is a path-MTU rule.
pub(crate) fn is_mtu(rule: &Rule) -> bool {
    *rule.description == *MTU
}

/// Returns true if a rule in a node's group belongs to a load balancer, according to its
/// description.
pub(crate) fn belongs_to(rule: &Rule, lb_name: &str) -> bool {
    [CLIENT, HEALTH, GROUP]
        .iter()
        .any(|prefix| rule.description.strip_prefix(prefix) == Some(lb_name))
}

/// Returns true if a rule admits clients on a port that several load balancers may use. Only ports
/// of pods, which are outside the range of node ports, can be shared.
pub(crate) fn may_be_shared(rule: &Rule) -> bool {
    let admits_clients = [CLIENT, GROUP]
        .iter()
        .any(|prefix| rule.description.starts_with(prefix));
    let first = i32::from(NODE_PORTS.0);
    let last = i32::from(NODE_PORTS.1);
    admits_clients
        && rule
            .ports
            .is_some_and(|(from, to)| from < first || to > last)
}

/// The rules by which targets admit a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleSourceKind<'a> {
    /// Rules are not managed and stay as they are.
    Unmanaged,
    /// By the CIDRs of the clients and of the load balancer's subnets.
    Cidrs,
    /// By the load balancer's group.
    Group(&'a SecurityGroupId),
    /// By the group that all load balancers share.
    Shared(&'a SecurityGroupId),
}

impl<'a> RuleSourceKind<'a> {
    /// Decides by which rules targets admit a load balancer. `shared` is the shared group.
    pub(crate) fn for_request(request: &RuleRequest<'a>, shared: Option<&SecurityGroupId>) -> Self {
        if !request.desired.security.manage_backend_rules {
            return Self::Unmanaged;
        }
        // Any group of the load balancer would do. The smallest ID is always the same one, in
        // whatever order AWS returns them.
        let own_group = request
            .lb_groups
            .iter()
            .filter(|group| Some(*group) != shared)
            .min();
        let shared_group = request
            .lb_groups
            .iter()
            .find(|group| Some(*group) == shared);
        let node_rules = request.desired.security.node_rules;
        if let Some(shared_group) = shared_group {
            if request.desired.target_type == TargetType::Instance {
                return Self::Shared(shared_group);
            }
            // Rules for the shared group open only node ports, so that pods need rules for each
            // Service.
            return match node_rules {
                NodeRuleSource::Group => Self::Group(own_group.unwrap_or(shared_group)),
                // With a rule that refers to the managed group, upstream could not delete that
                // group.
                NodeRuleSource::Networks => Self::Group(shared_group),
            };
        }
        match own_group {
            Some(group) if node_rules == NodeRuleSource::Group => Self::Group(group),
            _ => Self::Cidrs,
        }
    }
}

/// Returns the rules of the managed group: each listener and "packet too big", from all permitted
/// sources.
pub(crate) fn managed_group_rules(desired: &DesiredLoadBalancer) -> BTreeSet<Rule> {
    let networks = desired
        .sources
        .iter()
        .map(|network| RuleSource::Cidr(network.trunc()));
    let prefix_lists = desired
        .security
        .prefix_lists
        .iter()
        .map(|list| RuleSource::PrefixList(list.clone()));
    let mut rules = BTreeSet::new();
    for source in networks.chain(prefix_lists) {
        for listener in &desired.listeners {
            for protocol in protocols(listener.protocol) {
                rules.insert(rule(protocol, listener.port.get(), source.clone(), ""));
            }
        }
    }
    rules.extend(desired.sources.iter().map(|network| too_big(*network, "")));
    rules
}

/// Returns the rules that a target's group needs for one load balancer.
pub(crate) fn rules_for_nodes(
    request: &RuleRequest<'_>,
    source_kind: RuleSourceKind<'_>,
) -> BTreeSet<Rule> {
    match source_kind {
        RuleSourceKind::Unmanaged => BTreeSet::new(),
        RuleSourceKind::Cidrs => cidr_rules(request),
        RuleSourceKind::Group(group) => security_group_rules(request, group),
        RuleSourceKind::Shared(group) => shared_group_rules(request, group),
    }
}

fn cidr_rules(request: &RuleRequest<'_>) -> BTreeSet<Rule> {
    let client = format!("{CLIENT}{}", request.lb_name);
    let health = format!("{HEALTH}{}", request.lb_name);
    let mut rules = BTreeSet::new();
    for (listener, port) in target_ports(request) {
        for network in source_networks(request, listener) {
            for protocol in protocols(listener.target_group.protocol) {
                rules.insert(rule(protocol, port, RuleSource::Cidr(network), &client));
            }
            rules.insert(too_big(network, MTU));
        }
    }
    if clients_cover_health(request) {
        return rules;
    }
    // A health rule that equals a client rule is left out.
    let mut health_rules = BTreeSet::new();
    for (listener, port) in target_ports(request) {
        let port = health_port(listener, port);
        for network in subnets_of(request, listener.target_group.family) {
            let rule = rule("tcp", port, RuleSource::Cidr(network), &health);
            let is_covered = rules
                .iter()
                .any(|other| is_client(other) && is_same_rule(other, &rule));
            if !is_covered {
                health_rules.insert(rule);
            }
        }
    }
    rules.extend(health_rules);
    rules
}

/// Returns true if client rules also admit the health checks. Like upstream, no health rules are
/// added if all clients may connect, all listeners are TCP, and health checks use exactly the ports
/// of the clients.
fn clients_cover_health(request: &RuleRequest<'_>) -> bool {
    let sources = &request.desired.sources;
    if sources.iter().any(|network| network.prefix_len() > 0) {
        return false;
    }
    let mut client_ports = BTreeSet::new();
    let mut health_ports = BTreeSet::new();
    for (listener, port) in target_ports(request) {
        let group = &listener.target_group;
        if !matches!(group.protocol, ElbProtocol::Tcp | ElbProtocol::Tls)
            || !contain_all_addresses(sources, group.family)
            || !admits_client_cidrs(request, listener)
        {
            return false;
        }
        client_ports.insert(port);
        health_ports.insert(health_port(listener, port));
    }
    client_ports == health_ports
}

/// Returns true if one of the networks contains every address of a family.
fn contain_all_addresses<'a>(
    networks: impl IntoIterator<Item = &'a IpNet>,
    family: IpFamily,
) -> bool {
    networks
        .into_iter()
        .any(|network| network.prefix_len() == 0 && IpFamily::of(network) == family)
}

/// Returns true if the CIDRs of clients are admitted. Upstream admits them to nodes even if client
/// addresses are not preserved. Pods, which upstream does not serve, admit only the addresses that
/// really reach them.
fn admits_client_cidrs(request: &RuleRequest<'_>, listener: &DesiredListener) -> bool {
    request.desired.target_type == TargetType::Instance || listener.target_group.preserves_client_ip
}

/// Returns the networks from which connections reach a target: those of the clients, and those of
/// the load balancer if it replaces the clients' addresses.
fn source_networks(request: &RuleRequest<'_>, listener: &DesiredListener) -> BTreeSet<IpNet> {
    if !admits_client_cidrs(request, listener) {
        return subnets_of(request, listener.target_group.family).collect();
    }
    let mut networks: BTreeSet<IpNet> = request.desired.sources.iter().map(IpNet::trunc).collect();
    let family = listener.target_group.family;
    let has_other_family = networks
        .iter()
        .any(|network| IpFamily::of(network) != family);
    let is_dualstack = request.desired.ip_address_type == IpAddressType::Dualstack;
    // Clients of the other family reach the targets by addresses of the load balancer.
    let replaces_addresses =
        !listener.target_group.preserves_client_ip || (has_other_family && is_dualstack);
    if replaces_addresses && !contain_all_addresses(&networks, family) {
        networks.extend(subnets_of(request, family));
    }
    networks
}

fn security_group_rules(request: &RuleRequest<'_>, group: &SecurityGroupId) -> BTreeSet<Rule> {
    let description = format!("{GROUP}{}", request.lb_name);
    let source = RuleSource::Group(group.clone(), None);
    ports(request)
        .map(|(protocol, port)| rule(protocol, port, source.clone(), &description))
        .collect()
}

fn shared_group_rules(request: &RuleRequest<'_>, group: &SecurityGroupId) -> BTreeSet<Rule> {
    let source = RuleSource::Group(group.clone(), None);
    let (first, last) = NODE_PORTS;
    let mut rules = BTreeSet::new();
    for (protocol, port) in ports(request) {
        if !(first..=last).contains(&port) {
            rules.insert(rule(protocol, port, source.clone(), SHARED));
        }
    }
    for protocol in ["tcp", "udp"] {
        rules.insert(Rule {
            protocol: protocol.into(),
            ports: Some((first.into(), last.into())),
            source: source.clone(),
            description: SHARED.into(),
        });
    }
    rules
}

/// Returns the protocols and ports of all connections from the load balancer to its targets.
fn ports<'a>(request: &'a RuleRequest<'_>) -> impl Iterator<Item = (&'static str, u16)> + use<'a> {
    target_ports(request).flat_map(|(listener, port)| {
        let traffic = protocols(listener.target_group.protocol)
            .iter()
            .map(move |protocol| (*protocol, port));
        traffic.chain([("tcp", health_port(listener, port))])
    })
}

/// Returns each listener with each of its target ports.
fn target_ports<'a>(
    request: &RuleRequest<'a>,
) -> impl Iterator<Item = (&'a DesiredListener, u16)> + use<'a> {
    let desired = request.desired;
    let pods = request.pods;
    desired.listeners.iter().flat_map(move |listener| {
        let ports = match desired.target_port(listener) {
            Some(port) => BTreeSet::from([port]),
            // The target port has a name.
            None => pods.ports.get(&listener.key()).cloned().unwrap_or_default(),
        };
        ports.into_iter().map(move |port| (listener, port))
    })
}

fn health_port(listener: &DesiredListener, traffic_port: u16) -> u16 {
    match listener.target_group.health_check.port {
        HealthPort::Traffic => traffic_port,
        HealthPort::Number(port) => port.get(),
    }
}

fn subnets_of<'a>(
    request: &RuleRequest<'a>,
    family: IpFamily,
) -> impl Iterator<Item = IpNet> + use<'a> {
    request.subnets.iter().flat_map(move |subnet| match family {
        IpFamily::V4 => subnet.cidr.map(IpNet::V4).into_iter().collect(),
        IpFamily::V6 => subnet
            .ipv6_cidrs
            .iter()
            .copied()
            .map(IpNet::V6)
            .collect::<Vec<_>>(),
    })
}

fn protocols(protocol: ElbProtocol) -> &'static [&'static str] {
    match protocol {
        // EC2 has no protocol `tls`.
        ElbProtocol::Tcp | ElbProtocol::Tls => &["tcp"],
        ElbProtocol::Udp => &["udp"],
        ElbProtocol::TcpUdp => &["tcp", "udp"],
    }
}

fn rule(protocol: &str, port: u16, source: RuleSource, description: &str) -> Rule {
    let ports = Some((port.into(), port.into()));
    Rule {
        protocol: protocol.into(),
        ports,
        source,
        description: description.into(),
    }
}

fn too_big(network: IpNet, description: &str) -> Rule {
    let (protocol, ports) = match network {
        IpNet::V4(_) => TOO_BIG,
        IpNet::V6(_) => TOO_BIG_V6,
    };
    let source = RuleSource::Cidr(network.trunc());
    Rule {
        protocol: protocol.into(),
        ports: Some(ports),
        source,
        description: description.into(),
    }
}

#[cfg(test)]
#[path = "desired_rules_tests.rs"]
mod tests;
