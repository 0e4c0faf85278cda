use super::*;
use crate::{
    api::ec2::Subnet,
    lb::{
        model::{NodeRuleSource, SecurityGroupChoice},
        targets::pods::NO_POD_TARGETS,
        test_fixtures::{checked_at, desired, listener, subnet, with_v4, with_v6},
    },
};

fn subnets() -> [Subnet; 2] {
    let a = with_v6(with_v4(subnet("subnet-a", "a", &[]), "10.0.0.0/24"), "2001:db8:0:a::/64");
    let b = with_v6(with_v4(subnet("subnet-b", "b", &[]), "10.0.1.0/24"), "2001:db8:0:b::/64");
    [a, b]
}

/// Rules as `protocol ports source description`, without the common start of descriptions.
fn shown(rules: &BTreeSet<Rule>) -> Vec<String> {
    let show = |rule: &Rule| {
        let (from, to) = rule.ports.unwrap();
        let source = match &rule.source {
            RuleSource::Cidr(network) => network.to_string(),
            RuleSource::Group(id, _) => id.to_string(),
            RuleSource::PrefixList(id) => id.to_string(),
        };
        let description = rule
            .description
            .trim_start_matches("kubernetes.io/rule/nlb/");
        format!("{} {from}-{to} {source} {description}", rule.protocol)
            .trim_end()
            .to_owned()
    };
    rules.iter().map(show).collect()
}

fn on_nodes(wanted: &DesiredLoadBalancer, lb_groups: &[&str], shared: Option<&str>) -> Vec<String> {
    let lb_groups: Vec<SecurityGroupId> = lb_groups.iter().map(|id| (*id).into()).collect();
    let subnets = subnets();
    let e = RuleRequest {
        desired: wanted,
        lb_name: "a1",
        lb_groups: &lb_groups,
        subnets: &subnets,
        instances: &[],
        pods: &NO_POD_TARGETS,
        is_comparison: false,
    };
    let shared = shared.map(SecurityGroupId::from);
    shown(&rules_for_nodes(&e, RuleSourceKind::for_request(&e, shared.as_ref())))
}

fn sources(wanted: DesiredLoadBalancer, networks: &[&str]) -> DesiredLoadBalancer {
    DesiredLoadBalancer {
        sources: networks.iter().map(|n| n.parse().unwrap()).collect(),
        ..wanted
    }
}

fn by_group(mut wanted: DesiredLoadBalancer) -> DesiredLoadBalancer {
    wanted.security.node_rules = NodeRuleSource::Group;
    wanted
}

fn listeners(listeners: &[DesiredListener]) -> DesiredLoadBalancer {
    DesiredLoadBalancer { listeners: listeners.to_vec(), ..desired() }
}

// SG6, SG9, LB12
#[test]
fn the_managed_group_admits_each_listener_and_packet_too_big() {
    use ElbProtocol::{Tcp, TcpUdp, Tls, Udp};
    let all = listeners(&[
        listener(80, 30080, Tcp),
        listener(443, 30443, Tls),
        listener(53, 30053, TcpUdp),
        listener(514, 30514, Udp),
    ]);
    assert_eq!(
        shown(&managed_group_rules(&all)),
        [
            "icmp 3-4 0.0.0.0/0",
            "tcp 53-53 0.0.0.0/0",
            "tcp 80-80 0.0.0.0/0",
            "tcp 443-443 0.0.0.0/0",
            "udp 53-53 0.0.0.0/0",
            "udp 514-514 0.0.0.0/0",
        ]
    );
    // An internal network is a source like any other.
    assert_eq!(
        shown(&managed_group_rules(&sources(desired(), &["10.0.0.0/8"]))),
        ["icmp 3-4 10.0.0.0/8", "tcp 80-80 10.0.0.0/8"]
    );
    assert_eq!(
        shown(&managed_group_rules(&DesiredLoadBalancer { listeners: vec![], ..desired() })),
        ["icmp 3-4 0.0.0.0/0"]
    );
    assert_eq!(
        shown(&managed_group_rules(&sources(desired(), &["0.0.0.0/0", "::/0"]))),
        ["icmp 3-4 0.0.0.0/0", "icmpv6 2-0 ::/0", "tcp 80-80 0.0.0.0/0", "tcp 80-80 ::/0"]
    );
}

// LB12
#[test]
fn the_managed_group_admits_prefix_lists() {
    let mut wanted = sources(
        listeners(&[listener(80, 30080, ElbProtocol::Tcp), listener(81, 30081, ElbProtocol::Tcp)]),
        &[],
    );
    wanted.security.prefix_lists = vec!["pl-1".into(), "pl-2".into()];
    assert_eq!(
        shown(&managed_group_rules(&wanted)),
        ["tcp 80-80 pl-1", "tcp 80-80 pl-2", "tcp 81-81 pl-1", "tcp 81-81 pl-2"]
    );
}

// LB11
#[test]
fn nodes_admit_clients_where_the_balancer_has_no_group() {
    assert_eq!(
        on_nodes(&desired(), &[], None),
        ["icmp 3-4 0.0.0.0/0 mtu", "tcp 30080-30080 0.0.0.0/0 client=a1"]
    );
    let restricted = sources(desired(), &["10.2.0.0/16", "10.3.0.0/16"]);
    assert_eq!(
        on_nodes(&restricted, &[], None),
        [
            "icmp 3-4 10.2.0.0/16 mtu",
            "icmp 3-4 10.3.0.0/16 mtu",
            "tcp 30080-30080 10.0.0.0/24 health=a1",
            "tcp 30080-30080 10.0.1.0/24 health=a1",
            "tcp 30080-30080 10.2.0.0/16 client=a1",
            "tcp 30080-30080 10.3.0.0/16 client=a1",
        ]
    );
}

// LB11
#[test]
fn health_checks_are_admitted_unless_clients_rules_do() {
    let health = ["tcp 32000-32000 10.0.0.0/24 health=a1", "tcp 32000-32000 10.0.1.0/24 health=a1"];
    let local = listeners(&[checked_at(listener(80, 30080, ElbProtocol::Tcp), 32000)]);
    let client = ["icmp 3-4 0.0.0.0/0 mtu", "tcp 30080-30080 0.0.0.0/0 client=a1"];
    assert_eq!(on_nodes(&local, &[], None), [client, health].concat());

    let udp = listeners(&[listener(53, 30053, ElbProtocol::Udp)]);
    assert_eq!(
        on_nodes(&udp, &[], None),
        [
            "icmp 3-4 0.0.0.0/0 mtu",
            "tcp 30053-30053 10.0.0.0/24 health=a1",
            "tcp 30053-30053 10.0.1.0/24 health=a1",
            "udp 30053-30053 0.0.0.0/0 client=a1",
        ]
    );

    // As upstream: one port with a check elsewhere has the checks of all ports admitted.
    let mixed = listeners(&[
        listener(80, 30080, ElbProtocol::Tcp),
        checked_at(listener(81, 30081, ElbProtocol::Tcp), 32000),
    ]);
    let found = on_nodes(&mixed, &[], None);
    assert!(found.contains(&"tcp 30080-30080 10.0.0.0/24 health=a1".to_owned()), "{found:?}");

    // And one that checks another port that clients reach has no rule of its own.
    let crossed = listeners(&[
        checked_at(listener(80, 30080, ElbProtocol::Tcp), 30081),
        checked_at(listener(81, 30081, ElbProtocol::Tcp), 30080),
    ]);
    assert!(
        on_nodes(&crossed, &[], None)
            .iter()
            .all(|rule| !rule.contains("health"))
    );
}

// LB11
#[test]
fn tcp_and_udp_are_both_admitted() {
    let dns = listeners(&[listener(53, 30053, ElbProtocol::TcpUdp)]);
    let found = on_nodes(&dns, &[], None);
    for rule in ["tcp 30053-30053 0.0.0.0/0 client=a1", "udp 30053-30053 0.0.0.0/0 client=a1"] {
        assert!(found.contains(&rule.to_owned()), "{found:?}");
    }
}

// LB11
#[test]
fn a_balancer_that_shows_its_own_address_is_admitted_as_client() {
    let mut hidden = sources(desired(), &["192.168.0.0/16"]);
    hidden.listeners[0].target_group.preserves_client_ip = false;
    assert_eq!(
        on_nodes(&hidden, &[], None),
        [
            "icmp 3-4 10.0.0.0/24 mtu",
            "icmp 3-4 10.0.1.0/24 mtu",
            "icmp 3-4 192.168.0.0/16 mtu",
            "tcp 30080-30080 10.0.0.0/24 client=a1",
            "tcp 30080-30080 10.0.1.0/24 client=a1",
            "tcp 30080-30080 192.168.0.0/16 client=a1",
        ]
    );
}

// LB11
#[test]
fn ipv6_targets_admit_ipv6_clients_and_checks() {
    let mut wanted = sources(desired(), &["2001:db8:1::/48"]);
    wanted.ip_address_type = IpAddressType::Dualstack;
    wanted.listeners[0].target_group.family = IpFamily::V6;
    assert_eq!(
        on_nodes(&wanted, &[], None),
        [
            "icmpv6 2-0 2001:db8:1::/48 mtu",
            "tcp 30080-30080 2001:db8:0:a::/64 health=a1",
            "tcp 30080-30080 2001:db8:0:b::/64 health=a1",
            "tcp 30080-30080 2001:db8:1::/48 client=a1",
        ]
    );
    let open = sources(wanted, &["0.0.0.0/0", "::/0"]);
    assert!(
        on_nodes(&open, &[], None)
            .iter()
            .all(|rule| !rule.contains("health"))
    );
}

// LB11
#[test]
fn nodes_admit_by_networks_whatever_groups_a_balancer_of_upstreams_has() {
    let local = listeners(&[checked_at(listener(80, 30080, ElbProtocol::Tcp), 32000)]);
    for wanted in [desired(), sources(desired(), &["10.2.0.0/16", "10.3.0.0/16"]), local] {
        assert_eq!(on_nodes(&wanted, &["sg-lb"], None), on_nodes(&wanted, &[], None));
    }
}

// LB11
#[test]
fn nodes_admit_a_balancer_by_its_group() {
    let local = sources(
        listeners(&[checked_at(listener(53, 30053, ElbProtocol::TcpUdp), 32000)]),
        &["10.2.0.0/16"],
    );
    let local = by_group(local);
    let expected = [
        "tcp 30053-30053 sg-lb sg=a1",
        "tcp 32000-32000 sg-lb sg=a1",
        "udp 30053-30053 sg-lb sg=a1",
    ];
    assert_eq!(on_nodes(&local, &["sg-lb"], None), expected);
    // Always the same of several.
    assert_eq!(
        on_nodes(&local, &["sg-lb", "sg-z"], None),
        on_nodes(&local, &["sg-z", "sg-lb"], None)
    );
    // Checks of UDP are TCP.
    let udp = by_group(listeners(&[listener(53, 30053, ElbProtocol::Udp)]));
    assert_eq!(
        on_nodes(&udp, &["sg-lb"], None),
        ["tcp 30053-30053 sg-lb sg=a1", "udp 30053-30053 sg-lb sg=a1"]
    );
}

// LB11
#[test]
fn nodes_admit_the_shared_group_once_for_all() {
    let range = |protocol: &str| format!("{protocol} 30000-32767 sg-shared {SHARED}");
    let groups = ["sg-lb", "sg-shared"];
    assert_eq!(on_nodes(&desired(), &groups, Some("sg-shared")), [range("tcp"), range("udp")]);
    // A balancer without it is admitted by what it has.
    assert_eq!(
        on_nodes(&by_group(desired()), &["sg-lb"], Some("sg-shared")),
        ["tcp 30080-30080 sg-lb sg=a1"]
    );
    let probe = listeners(&[checked_at(listener(80, 30080, ElbProtocol::Tcp), 10256)]);
    let outside = format!("tcp 10256-10256 sg-shared {SHARED}");
    assert_eq!(on_nodes(&probe, &groups, Some("sg-shared")), [outside, range("tcp"), range("udp")]);
}

// LB11
#[test]
fn rules_that_nobody_manages_are_none() {
    let mut given = desired();
    given.security.groups = SecurityGroupChoice::Given(vec!["sg-1".into()]);
    given.security.manage_backend_rules = false;
    assert_eq!(on_nodes(&given, &["sg-1"], None), Vec::<String>::new());
}

#[test]
fn addresses_behind_a_named_port_have_no_one_port_to_admit() {
    let mut wanted =
        listeners(&[listener(80, 8080, ElbProtocol::Tcp), listener(81, 1, ElbProtocol::Tcp)]);
    wanted.target_type = TargetType::Ip;
    assert_eq!(on_nodes(&by_group(wanted), &["sg-lb"], None), ["tcp 8080-8080 sg-lb sg=a1"]);
}

#[test]
fn a_rule_is_a_balancers_by_its_whole_name() {
    let rule =
        |description: &str| rule("tcp", 1, RuleSource::Group("sg-1".into(), None), description);
    for kind in ["client", "health", "sg"] {
        assert!(belongs_to(&rule(&format!("kubernetes.io/rule/nlb/{kind}=a1")), "a1"));
        assert!(!belongs_to(&rule(&format!("kubernetes.io/rule/nlb/{kind}=a12")), "a1"));
        assert!(!belongs_to(&rule(&format!("kubernetes.io/rule/nlb/{kind}=a1")), "a12"));
    }
    assert!(!belongs_to(&rule(MTU), "a1"));
    assert!(!belongs_to(&rule(""), ""));
}
