use ccm_core::k8s::IpFamily;
use proptest::{prelude::*, sample::subsequence};

use super::*;
use crate::lb::{
    model::SecurityGroupSpec, security_groups::desired_rules::is_same_rule, test_fixtures::desired,
};

const LB: &str = "a1";

fn rule(protocol: &str, port: i32, source: RuleSource, description: &str) -> Rule {
    Rule {
        protocol: protocol.into(),
        ports: Some((port, port)),
        source,
        description: description.into(),
    }
}

fn cidr(text: &str) -> RuleSource {
    RuleSource::Cidr(text.parse().unwrap())
}

fn group(id: &str, account: Option<&str>) -> RuleSource {
    RuleSource::Group(id.into(), account.map(Into::into))
}

fn client(port: i32, network: &str, lb: &str) -> Rule {
    rule("tcp", port, cidr(network), &format!("kubernetes.io/rule/nlb/client={lb}"))
}

fn mtu(network: &str) -> Rule {
    Rule {
        ports: Some((3, 4)),
        ..rule("icmp", 0, cidr(network), desired_rules::MTU)
    }
}

fn set(rules: &[Rule]) -> BTreeSet<Rule> {
    rules.iter().cloned().collect()
}

// SG8
#[test]
fn aws_takes_rules_for_one_by_protocol_ports_and_source() {
    let base = rule("tcp", 80, cidr("10.0.0.0/8"), "");
    let cases = [
        ("another description", rule("tcp", 80, cidr("10.0.0.0/8"), "x"), true),
        ("host bits", rule("tcp", 80, cidr("10.1.2.3/8"), ""), true),
        ("number of the protocol", rule("6", 80, cidr("10.0.0.0/8"), ""), true),
        ("another protocol", rule("udp", 80, cidr("10.0.0.0/8"), ""), false),
        ("another port", rule("tcp", 81, cidr("10.0.0.0/8"), ""), false),
        ("a narrower network", rule("tcp", 80, cidr("10.0.0.0/9"), ""), false),
        ("a group", rule("tcp", 80, group("sg-1", None), ""), false),
        ("all ports", Rule { ports: None, ..base.clone() }, false),
    ];
    for (name, other, expected) in cases {
        assert_eq!(is_same_rule(&base, &other), expected, "{name}");
    }
    let of = |account| rule("tcp", 80, group("sg-1", account), "");
    assert!(is_same_rule(&of(None), &of(Some("1"))));
    assert!(is_same_rule(&of(Some("1")), &of(Some("1"))));
    assert!(!is_same_rule(&of(Some("1")), &of(Some("2"))));
    assert!(!is_same_rule(&of(None), &rule("tcp", 80, group("sg-2", None), "")));
}

// SG8
#[test]
fn what_is_there_under_any_description_is_not_granted_again() {
    let observed = [rule("tcp", 80, cidr("10.0.0.0/8"), "by hand")];
    assert_eq!(missing(&observed, &set(&[client(80, "10.0.0.0/8", LB)])), []);
    let new = client(80, "10.1.0.0/16", LB);
    assert_eq!(missing(&observed, &set(&[new.clone()])), [new.clone()]);
    assert_eq!(missing(&[], &BTreeSet::new()), []);
    let health = rule("tcp", 80, cidr("10.1.0.0/16"), "kubernetes.io/rule/nlb/health=a1");
    assert_eq!(missing(&[], [&new, &health]), [new.clone()], "AWS would refuse the second one");
}

#[test]
fn health_rules_go_only_of_those_that_are_gone_and_that_nobody_needs() {
    let health = |lb: &str| {
        rule("tcp", 90, cidr("10.0.0.0/8"), &format!("kubernetes.io/rule/nlb/health={lb}"))
    };
    let orphaned = |observed: &[Rule], needed: &[Rule]| {
        unused_health_rules(observed, needed, |name| name == "alive")
    };
    assert_eq!(orphaned(&[health("gone")], &[]), [health("gone")]);
    assert_eq!(orphaned(&[health("alive")], &[]), []);
    assert_eq!(orphaned(&[health("gone")], &[health("alive")]), [], "another one needs it");
    assert_eq!(
        orphaned(&[health("other"), client(80, "10.0.0.0/8", "other")], &[]),
        [],
        "its clients are let in"
    );
    assert_eq!(
        orphaned(&[health("gone"), client(80, "10.0.0.0/8", "other")], &[]),
        [health("gone")]
    );
    assert_eq!(
        orphaned(&[rule("tcp", 90, cidr("10.0.0.0/8"), "by hand"), mtu("10.0.0.0/8")], &[]),
        []
    );
}

#[test]
fn the_shared_group_comes_along_only_where_rules_of_backends_are_looked_after() {
    let given = || SecurityGroupChoice::Given(vec!["sg-1".into()]);
    // Groups, whether rules of backends are looked after, whose rules, whether the shared group is
    // configured.
    let cases = [
        (SecurityGroupChoice::Managed, true, NodeRuleSource::Group, true, "managed and shared"),
        (SecurityGroupChoice::Managed, true, NodeRuleSource::Networks, true, "managed and shared"),
        (SecurityGroupChoice::Managed, false, NodeRuleSource::Group, true, "managed"),
        (SecurityGroupChoice::Managed, true, NodeRuleSource::Group, false, "managed"),
        (given(), true, NodeRuleSource::Group, true, "given and shared"),
        (given(), true, NodeRuleSource::Networks, true, "given"),
        (given(), false, NodeRuleSource::Group, true, "given"),
        (given(), true, NodeRuleSource::Networks, false, "given"),
        (given(), true, NodeRuleSource::Group, false, "refused"),
        (SecurityGroupChoice::Keep, true, NodeRuleSource::Group, true, "alone"),
    ];
    for (groups, manage_backend_rules, node_rules, shared_backend_security_group, expected) in cases
    {
        let mut wanted = desired();
        let about = format!(
            "{groups:?} {manage_backend_rules} {node_rules:?} {shared_backend_security_group}"
        );
        wanted.security =
            SecurityGroupSpec { groups, manage_backend_rules, node_rules, ..wanted.security };
        let settings = Settings { shared_backend_security_group, ..Settings::default() };
        let found = match frontend_groups(&wanted, None, &settings) {
            Ok(FrontendGroups::Managed { shared: true }) => "managed and shared",
            Ok(FrontendGroups::Managed { shared: false }) => "managed",
            Ok(FrontendGroups::Given { shared: true, .. }) => "given and shared",
            Ok(FrontendGroups::Given { shared: false, .. }) => "given",
            Ok(FrontendGroups::None) => "alone",
            Err(_) => "refused",
        };
        assert_eq!(found, expected, "{about}");
    }
}

#[test]
fn a_rule_of_ours_whose_place_is_wanted_under_another_description_stays() {
    let health = rule("tcp", 80, cidr("10.0.0.0/8"), "kubernetes.io/rule/nlb/health=a1");
    let wanted = set(&[client(80, "10.0.0.0/8", LB)]);
    assert_eq!(
        surplus(std::slice::from_ref(&health), &wanted, |rule| desired_rules::belongs_to(rule, LB)),
        []
    );
}

#[test]
fn an_mtu_rule_goes_with_the_last_client_rule_of_its_network() {
    let (mine, other) = (client(80, "10.0.0.0/8", LB), client(81, "10.0.0.0/8", "a2"));
    let shared = [mine.clone(), other.clone(), mtu("10.0.0.0/8")];
    assert_eq!(unused_mtu_rules(&shared, &[mine.clone()], &[]), []);
    let alone = [mine.clone(), mtu("10.0.0.0/8"), mtu("192.168.0.0/16")];
    assert_eq!(unused_mtu_rules(&alone, &[mine.clone()], &[]), [mtu("10.0.0.0/8")]);
    assert_eq!(unused_mtu_rules(&alone, &[mine], &[mtu("10.0.0.0/8")]), []);
    assert_eq!(unused_mtu_rules(&alone, &[], &[]), []);
}

#[test]
fn an_mtu_rule_by_hand_stays() {
    let mine = client(80, "10.0.0.0/8", LB);
    let by_hand = Rule { description: "mine".into(), ..mtu("10.0.0.0/8") };
    assert_eq!(unused_mtu_rules(&[mine.clone(), by_hand], &[mine], &[]), []);
}

/// Every rule that two load balancers, upstream and somebody else may have put on a group.
fn universe() -> Vec<Rule> {
    let mut all = Vec::new();
    let sources = [
        cidr("0.0.0.0/0"),
        cidr("10.0.0.0/8"),
        cidr("::/0"),
        group("sg-1", None),
        group("sg-1", Some("1")),
    ];
    for source in sources {
        for description in ["client=a1", "health=a1", "sg=a1", "client=a2"] {
            let description = format!("kubernetes.io/rule/nlb/{description}");
            all.extend([80, 81].map(|port| rule("tcp", port, source.clone(), &description)));
        }
        all.extend([80, 81].map(|port| rule("tcp", port, source.clone(), "by hand")));
    }
    all
}

fn without_twins(rules: Vec<Rule>) -> Vec<Rule> {
    let mut kept: Vec<Rule> = Vec::new();
    for rule in rules {
        if !has_rule(&kept, &rule) {
            kept.push(rule);
        }
    }
    kept
}

fn some() -> impl Strategy<Value = Vec<Rule>> {
    let all = universe();
    let most = all.len();
    subsequence(all, 0..=most)
        .prop_shuffle()
        .prop_map(without_twins)
}

proptest! {
    #[test]
    fn a_change_leaves_exactly_what_is_wanted_and_what_is_foreign(observed in some(), wanted in some()) {
        let ours = |rule: &Rule| desired_rules::belongs_to(rule, LB);
        let wanted: BTreeSet<Rule> = wanted.into_iter().filter(ours).collect();
        let change = RuleChange { grant: missing(&observed, &wanted), revoke: surplus(&observed, &wanted, ours), ..RuleChange::default() };
        let result = apply_change(&observed, &change);

        for rule in &wanted {
            prop_assert!(has_rule(&result, rule), "{rule:?} is lacking");
        }
        for rule in observed.iter().filter(|rule| !ours(rule)) {
            prop_assert!(result.contains(rule), "foreign {rule:?} is gone");
        }
        for rule in &result {
            let foreign = !ours(rule) && observed.contains(rule);
            prop_assert!(foreign || wanted.iter().any(|w| is_same_rule(w, rule)), "{rule:?} is too much");
        }
        // AWS would refuse a rule that is there.
        prop_assert_eq!(without_twins(result.clone()).len(), result.len());

        let again = RuleChange { grant: missing(&result, &wanted), revoke: surplus(&result, &wanted, ours), ..RuleChange::default() };
        prop_assert_eq!(again, RuleChange::default());
    }
}

#[test]
fn a_summary_names_a_few_rules() {
    let rules: Vec<_> = (80..85)
        .map(|port| client(port, "10.0.0.0/8", LB))
        .collect();
    let first = "tcp 80 from 10.0.0.0/8, tcp 81 from 10.0.0.0/8, tcp 82 from 10.0.0.0/8";
    assert_eq!(summary(&rules), format!("{first} and 2 more"));
    assert_eq!(summary(&[mtu("10.0.0.0/8")]), "icmp 3-4 from 10.0.0.0/8");
    assert_eq!(IpFamily::of(&"::/0".parse().unwrap()), IpFamily::V6);
}
