//! Source ranges and security groups.

use super::*;
use crate::lb::model::{NodeRuleSource, SecurityGroupChoice};

const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

fn managed(case: Case) -> Case {
    case.set(|settings| settings.managed_security_groups = true)
}

fn given(ids: &[&str]) -> SecurityGroupChoice {
    SecurityGroupChoice::Given(ids.iter().map(|id| (*id).into()).collect())
}

fn sources(case: &Case) -> Vec<String> {
    case.wanted()
        .sources
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn reasons(case: &Case) -> Vec<&'static str> {
    case.remarks()
        .into_iter()
        .map(|(reason, _)| reason)
        .collect()
}

// SG1 SG2 VA3
#[test]
fn groups_follow_mode_and_annotation() {
    let cases = [
        (nlb(), SecurityGroupChoice::Keep),
        (nlb().says("security-groups", "sg-1"), SecurityGroupChoice::Keep),
        (managed(nlb()), SecurityGroupChoice::Managed),
        (managed(nlb()).says("security-groups", " , "), SecurityGroupChoice::Managed),
        (managed(nlb()).says("security-groups", "sg-1"), given(&["sg-1"])),
        (
            managed(nlb()).says("security-groups", " sg-2 ,sg-1 , name of one,sg-2"),
            given(&["name of one", "sg-1", "sg-2"]),
        ),
        (managed(nlb()).says("disable-nlb-sg", "true"), SecurityGroupChoice::None),
        (managed(nlb()).says("disable-nlb-sg", "false"), SecurityGroupChoice::Managed),
        (nlb().says("disable-nlb-sg", "true"), SecurityGroupChoice::None),
        (claimed().says("security-groups", "sg-1"), given(&["sg-1"])),
        (claimed(), SecurityGroupChoice::Keep),
    ];
    for (case, wanted) in cases {
        assert_eq!(case.wanted().security.groups, wanted, "{:?}", case.service.annotations);
    }
    assert_eq!(reasons(&nlb().says("security-groups", "sg-1")), ["SecurityGroupsIgnored"]);
}

// VA3
#[test]
fn extra_groups_are_refused() {
    let message = "BYO extra security group annotation \
                   \"service.beta.kubernetes.io/aws-load-balancer-extra-security-groups\" is not supported by NLB";
    for case in [nlb(), managed(nlb()), nlb().says("security-groups", "sg-9")] {
        for extra in ["sg-1", "sg-1,sg-2"] {
            assert_eq!(case.clone().says("extra-security-groups", extra).mistakes(), [message]);
        }
    }
}

// LB4
#[test]
fn groups_that_contradict_are_refused() {
    let both = managed(nlb())
        .says("security-groups", "sg-1")
        .says("disable-nlb-sg", "true");
    assert_eq!(both.mistakes(), ["conflicting security groups configuration"]);
}

// LB4
#[test]
fn rules_of_nodes_are_looked_after_unless_groups_are_given_to_the_other_controller() {
    let manages = |case: &Case| case.wanted().security.manage_backend_rules;
    let byo = managed(claimed()).says("security-groups", "sg-1");
    assert!(manages(&nlb()) && manages(&managed(nlb())) && !manages(&byo));
    assert!(!manages(&nlb().says("manage-backend-security-group-rules", "false")));
    let asked = byo.says("manage-backend-security-group-rules", "true");
    let message = "backendSG feature is required to manage worker node SG rules when frontendSG is manually specified";
    assert_eq!(asked.mistakes(), [message]);
    assert!(manages(
        &asked
            .clone()
            .set(|settings| settings.shared_backend_security_group = true)
    ));
    assert!(manages(&asked.set(|settings| settings.backend_security_group = Some("sg-9".into()))));
}

#[test]
fn upstream_looks_after_rules_of_nodes_for_given_groups_too() {
    let of = |case: &Case| {
        let security = case.wanted().security;
        (security.manage_backend_rules, security.node_rules)
    };
    let byo = managed(nlb()).says("security-groups", "sg-1");
    let asked = |value: &str| {
        byo.clone()
            .says("manage-backend-security-group-rules", value)
    };
    assert_eq!(of(&byo), (true, NodeRuleSource::Networks));
    assert_eq!(
        of(&asked("true")),
        (true, NodeRuleSource::Networks),
        "upstream does not read the annotation"
    );
    assert!(!of(&asked("false")).0);
    // With a shared group it says that this one shall be there.
    let shared = |case: Case| case.set(|settings| settings.shared_backend_security_group = true);
    assert_eq!(of(&shared(byo.clone())), (true, NodeRuleSource::Networks));
    assert_eq!(of(&shared(asked("true"))), (true, NodeRuleSource::Group));
}

// LB11
#[test]
fn nodes_admit_by_networks_where_upstream_does() {
    let rules = |case: &Case| case.wanted().security.node_rules;
    for case in [nlb(), managed(nlb()), nlb().says("disable-nlb-sg", "true")] {
        assert_eq!(rules(&case), NodeRuleSource::Networks, "{:?}", case.service.annotations);
    }
    assert_eq!(rules(&managed(claimed())), NodeRuleSource::Group);
    let listed = managed(nlb()).says("security-group-prefix-lists", "pl-1");
    assert_eq!(rules(&listed), NodeRuleSource::Group, "what is in a list is not known");
}

#[test]
fn private_link_rules_are_read() {
    let rules = |value: &str| nlb().says("inbound-sg-rules-on-private-link-traffic", value);
    assert_eq!(nlb().wanted().security.private_link_rules, None);
    assert_eq!(rules("on").wanted().security.private_link_rules, Some(true));
    assert_eq!(rules("off").wanted().security.private_link_rules, Some(false));
    let message = "Invalid value for securityGroupsInboundRulesOnPrivateLink status: true, value must be one of [on, off]";
    assert_eq!(rules("true").mistakes(), [message]);
}

// LB12
#[test]
fn everybody_may_connect_unless_ranges_are_named() {
    let dual = nlb().says("ip-address-type", "dualstack");
    assert_eq!(sources(&nlb()), ["0.0.0.0/0"]);
    assert_eq!(sources(&dual), ["0.0.0.0/0", "::/0"]);
    assert_eq!(sources(&nlb().says(RANGES, " ")), ["0.0.0.0/0"]);
    assert_eq!(
        sources(&nlb().says(RANGES, "10.1.2.3/8, 10.0.0.0/8,192.0.2.0/24")),
        ["10.0.0.0/8", "192.0.2.0/24"]
    );
    let spec = |case: Case, range: &str| {
        case.spec(|service| service.source_ranges = Box::from([range.into()]))
    };
    assert_eq!(
        sources(&spec(nlb().says(RANGES, "nonsense"), "10.0.0.0/8")),
        ["10.0.0.0/8"],
        "the field wins"
    );
    assert_eq!(sources(&spec(dual, "2001:db8::/32")), ["2001:db8::/32"]);
}

// LB3
#[test]
fn wrong_ranges_are_refused() {
    let cases = [
        ("10.0.0.0/33", "\"10.0.0.0/33\" is not a network in CIDR form"),
        ("10.0.0.0/8,", "\"\" is not a network in CIDR form"),
        ("2001:db8::/32", "unsupported v6 cidr 2001:db8::/32 when lb is not dualstack"),
    ];
    for (range, message) in cases {
        assert_eq!(nlb().says(RANGES, range).refused(), [FieldError::new(RANGES, message)]);
    }
    let spec = nlb().spec(|service| service.source_ranges = Box::from(["::/0".into()]));
    let message = "unsupported v6 cidr ::/0 when lb is not dualstack";
    assert_eq!(spec.refused(), [FieldError::new("spec.loadBalancerSourceRanges", message)]);
}

// LB12
#[test]
fn prefix_lists_replace_the_default_ranges() {
    let lists = managed(nlb()).says("security-group-prefix-lists", "pl-2, pl-1,pl-2");
    assert_eq!(lists.wanted().security.prefix_lists, ["pl-1", "pl-2"].map(Box::from));
    assert_eq!(sources(&lists), [""; 0]);
    assert_eq!(sources(&lists.clone().says(RANGES, "10.0.0.0/8")), ["10.0.0.0/8"]);
    let byo = lists.says("security-groups", "sg-1");
    assert_eq!(
        (byo.wanted().security.prefix_lists, sources(&byo)),
        (vec![], vec!["0.0.0.0/0".to_owned()])
    );
    let message = "prefix lists need a managed security group (NLBSecurityGroupMode=Managed)";
    assert_eq!(nlb().says("security-group-prefix-lists", "pl-1").mistakes(), [message]);
}

#[test]
fn ranges_that_cannot_be_enforced_are_warned_of() {
    let limited = nlb().says(RANGES, "10.0.0.0/8");
    let told = ["SourceRangesNotEnforced"];
    let hidden = limited
        .clone()
        .says("target-group-attributes", "preserve_client_ip.enabled=false");
    assert_eq!(reasons(&limited), [""; 0]);
    assert_eq!(reasons(&hidden), told);
    assert_eq!(reasons(&managed(hidden)), [""; 0]);
    assert_eq!(reasons(&limited.clone().says("nlb-target-type", "ip")), told);
    assert_eq!(reasons(&managed(limited.clone()).says("security-groups", "sg-1")), told);
    assert_eq!(
        reasons(
            &limited
                .clone()
                .set(|settings| settings.disable_security_group_ingress = true)
        ),
        told
    );
    assert_eq!(reasons(&limited.says("manage-backend-security-group-rules", "false")), told);
    let open = nlb()
        .says(RANGES, "0.0.0.0/0")
        .says("nlb-target-type", "ip");
    assert_eq!(reasons(&open), [""; 0], "everybody is enforced by nobody");
}
