use super::*;
use crate::{
    api::{VpcId, elb::LoadBalancerState},
    lb::test_fixtures::desired,
};

fn balancer(arn: &str) -> LoadBalancer {
    LoadBalancer {
        arn: arn.into(),
        name: arn.into(),
        dns_name: "".into(),
        kind: "network".into(),
        scheme: None,
        state: Some(LoadBalancerState::Active),
        state_reason: "".into(),
        vpc: None,
        ip_address_type: None,
        zones: Vec::new(),
        security_groups: Vec::new(),
        private_link_rules: None,
        ipv6_source_nat: None,
        created: None,
    }
}

fn group(name: &str, users: &[&str]) -> TargetGroup {
    TargetGroup {
        arn: "tg".into(),
        name: name.into(),
        protocol: None,
        port: 80,
        vpc: Some(VpcId::from("vpc-1")),
        target_type: None,
        ip_address_type: None,
        health_check: None,
        load_balancers: users.iter().map(|arn| (*arn).into()).collect(),
    }
}

#[test]
fn a_group_may_be_the_services_if_only_its_balancers_use_it_or_if_none_does_and_it_has_such_a_name()
{
    let its = "k8s-default-web-0123456789";
    // Name, users, whether all balancers are known, the answer. `ours` is the Service's, `gone` is
    // deleted.
    let cases: [(&str, &[&str], bool, bool); 14] = [
        (its, &[], false, true),
        (its, &[], true, true),
        ("k8s-default-other-0123456789", &[], true, false),
        ("by-hand", &[], true, false),
        ("by-hand", &["ours"], true, true),
        (its, &["ours"], false, true),
        (its, &["theirs"], true, false),
        (its, &["ours", "theirs"], false, false),
        (its, &["ours", "theirs"], true, false),
        (its, &["gone"], false, false),
        (its, &["gone"], true, true),
        ("by-hand", &["gone"], true, false),
        (its, &["gone", "ours"], true, true),
        (its, &["gone", "theirs"], true, false),
    ];
    let ours = BTreeMap::from([(LoadBalancerArn::from("ours"), balancer("ours"))]);
    let existing = BTreeSet::from(["ours", "theirs"].map(LoadBalancerArn::from));
    for (name, users, all, expected) in cases {
        let found = find_possible_groups(
            &desired().owner,
            &[group(name, users)],
            &ours,
            all.then_some(&existing),
        );
        assert_eq!(!found.is_empty(), expected, "{name} {users:?} {all}");
    }
}
