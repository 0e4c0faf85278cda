//! Settings of what lives on: subnets, families, security groups, tags, TLS.

use ccm_core::provider::ErrorKind;

use super::{
    fixtures::{attributes, mapping, plan_input, reach},
    *,
};
use crate::api::elb::SourceNatPrefix;

fn same_exposure(wanted: &DesiredLoadBalancer, from: &ObservedState) -> PlanInput {
    PlanInput {
        rules_digest: from.rules_digest.unwrap(),
        ..plan_input(wanted, &["i-1", "i-2"])
    }
}

fn actions(
    wanted: &DesiredLoadBalancer,
    plan_input: &PlanInput,
    from: &ObservedState,
) -> Vec<ActionKind> {
    plan(wanted, plan_input, from)
        .unwrap()
        .into_iter()
        .map(|step| step.action)
        .collect()
}

fn ids(groups: &[&str]) -> Vec<SecurityGroupId> {
    groups.iter().map(|id| (*id).into()).collect()
}

/// Subnets, IPv6 prefixes, families, and whether subnets go.
fn change(
    subnets: Vec<SubnetMapping>,
    nat: Option<bool>,
    families: Option<IpAddressType>,
    removes: bool,
) -> ActionKind {
    ActionKind::SetSubnets(SubnetChange {
        subnets,
        ipv6_source_nat: nat,
        ip_address_type: families,
        removes,
    })
}

#[test]
fn subnets_come_and_go_and_it_is_said_when_one_goes() {
    let seen = there(&web());
    let cases = [
        (&["a", "b"][..], None),
        (&["b", "a"], None),
        (&["a", "b", "c"], Some(false)),
        (&["a"], Some(true)),
        (&["a", "c"], Some(true)),
    ];
    for (subnets, removes) in cases {
        let subnets: Vec<_> = subnets
            .iter()
            .map(|s| mapping(&format!("subnet-{s}")))
            .collect();
        let plan_input = PlanInput {
            subnets: Some(subnets.clone()),
            ..same_exposure(&web(), &seen)
        };
        let expected: Vec<_> = removes
            .into_iter()
            .map(|removes| change(subnets.clone(), None, None, removes))
            .collect();
        assert_eq!(actions(&web(), &plan_input, &seen), expected, "{subnets:?}");
        reach(&web(), &plan_input, &seen);
    }
}

#[test]
fn both_families_come_before_subnets_and_go_after_them() {
    let dual = DesiredLoadBalancer { ip_address_type: IpAddressType::Dualstack, ..web() };
    for (from, to, expected) in [
        (web(), dual.clone(), ["SetIpAddressType", "SetSubnets"]),
        (dual, web(), ["SetSubnets", "SetIpAddressType"]),
    ] {
        let seen = there(&from);
        let plan_input = PlanInput {
            subnets: Some(vec![mapping("subnet-a")]),
            ..same_exposure(&to, &seen)
        };
        assert_eq!(names(&plan(&to, &plan_input, &seen).unwrap()), expected);
        reach(&to, &plan_input, &seen);
    }
}

#[test]
fn prefixes_change_with_chosen_subnets_too_and_ipv6_addresses_go_with_the_family() {
    let dual = DesiredLoadBalancer { ip_address_type: IpAddressType::Dualstack, ..web() };
    let seen = there(&dual);
    let wanted = DesiredLoadBalancer { ipv6_source_nat: Some(true), ..dual.clone() };
    let plan_input = same_exposure(&wanted, &seen);
    let both = vec![mapping("subnet-a"), mapping("subnet-b")];
    assert_eq!(actions(&wanted, &plan_input, &seen), [change(both, Some(true), None, false)]);

    let mut seen = reach(&wanted, &plan_input, &seen);
    seen.load_balancer.as_mut().unwrap().resource.zones[0].ipv6 = vec!["2001:db8::9".into()];
    for (family, ipv6) in
        [(IpAddressType::Ipv4, None), (IpAddressType::Dualstack, "2001:db8::9".parse().ok())]
    {
        let wanted = DesiredLoadBalancer {
            ip_address_type: family,
            ipv6_source_nat: Some(false),
            ..web()
        };
        let plan_input = PlanInput { subnets: None, ..same_exposure(&wanted, &seen) };
        let subnets = vec![SubnetMapping { ipv6, ..mapping("subnet-a") }, mapping("subnet-b")];
        let together = Some(family).filter(|family| *family == IpAddressType::Ipv4);
        assert_eq!(
            actions(&wanted, &plan_input, &seen),
            [change(subnets, Some(false), together, false)]
        );
    }
}

// LB6
#[test]
fn addresses_that_are_others_are_refused_and_those_that_are_not_known_are_not() {
    let plain = there(&web());
    type ObservedTls = (Option<&'static str>, Option<&'static str>);
    let cases: [(ObservedTls, ObservedTls, bool); 6] = [
        ((None, None), (Some("eipalloc-1"), Some("10.0.0.9")), true),
        ((Some("eipalloc-1"), None), (Some("eipalloc-1"), None), true),
        ((Some("eipalloc-2"), None), (Some("eipalloc-1"), None), false),
        ((None, Some("10.0.0.9")), (None, Some("10.0.0.9")), true),
        ((None, Some("10.0.0.8")), (None, Some("10.0.0.9")), false),
        ((Some("eipalloc-1"), Some("10.0.0.9")), (None, None), true),
    ];
    for (have, want, expected) in cases {
        let mut seen = plain.clone();
        let zone = &mut seen.load_balancer.as_mut().unwrap().resource.zones[0];
        zone.allocations = have.0.into_iter().map(Into::into).collect();
        zone.private_ipv4 = have.1.into_iter().map(Into::into).collect();
        let mut plan_input = same_exposure(&web(), &seen);
        let mapping = &mut plan_input.subnets.as_mut().unwrap()[0];
        (mapping.allocation, mapping.private_ipv4) =
            (want.0.map(Into::into), want.1.map(|ip| ip.parse().unwrap()));
        assert_eq!(plan(&web(), &plan_input, &seen).is_ok(), expected, "{have:?} {want:?}");
    }
}

#[test]
fn rules_for_private_link_are_turned_off_on_what_is_new_and_never_on() {
    for (rules, groups, set) in [
        (None, &["sg-1"][..], false),
        (Some(true), &["sg-1"], false),
        (Some(false), &["sg-1"], true),
        (Some(false), &[], false),
    ] {
        let mut wanted = web();
        wanted.security.private_link_rules = rules;
        let plan_input = PlanInput { groups: ids(groups), ..plan_input(&wanted, &[]) };
        let steps = plan(&wanted, &plan_input, &ObservedState::default()).unwrap();
        let expected = set.then(|| ActionKind::SetSecurityGroups(ids(groups), rules));
        let found = steps
            .into_iter()
            .map(|step| step.action)
            .find(|a| matches!(a, ActionKind::SetSecurityGroups(..)));
        assert_eq!(found, expected, "{rules:?} {groups:?}");
    }
}

#[test]
fn only_groups_that_are_off_the_balancer_for_good_are_given_up_and_each_once() {
    // Groups of the balancer, those that are wanted, those that were taken off before; what is
    // given up.
    type Ids = &'static [&'static str];
    let cases: [(Ids, Ids, Ids, Ids); 7] = [
        (&["sg-1"], &["sg-1"], &[], &[]),
        (&["sg-1"], &["sg-1"], &["sg-1"], &[]),
        (&["sg-1"], &[], &["sg-1"], &[]),
        (&["sg-1"], &["sg-2"], &["sg-1"], &["sg-1"]),
        (&["sg-1"], &["sg-2"], &["sg-3"], &["sg-1", "sg-3"]),
        (&["sg-1"], &["sg-2"], &["sg-2"], &["sg-1"]),
        (&[], &["sg-1"], &["sg-1"], &[]),
    ];
    for (has, wanted, before, expected) in cases {
        let mut seen = there(&web());
        seen.load_balancer
            .as_mut()
            .unwrap()
            .resource
            .security_groups = ids(has);
        seen.detached_security_groups = ids(before).into_iter().collect();
        let plan_input = PlanInput { groups: ids(wanted), ..same_exposure(&web(), &seen) };
        let released = actions(&web(), &plan_input, &seen)
            .into_iter()
            .filter_map(|action| match action {
                ActionKind::CleanUpSecurityGroups(groups) => Some(groups),
                _ => None,
            });
        assert_eq!(
            released.flatten().collect::<Vec<_>>(),
            ids(expected),
            "{has:?} {wanted:?} {before:?}"
        );
    }
}

#[test]
fn rules_are_opened_before_listeners_lead_anywhere_and_closed_after_the_last_one_went() {
    let seen = there(&web());
    assert_eq!(actions(&web(), &same_exposure(&web(), &seen), &seen), []);
    let changed = PlanInput {
        rules_digest: Digest(seen.rules_digest.unwrap().0 ^ 1),
        ..same_exposure(&web(), &seen)
    };
    assert_eq!(
        actions(&web(), &changed, &seen),
        [ActionKind::AddSecurityGroupRules, ActionKind::RemoveSecurityGroupRules]
    );
    let unknown = ObservedState { rules_digest: None, ..seen.clone() };
    assert_eq!(
        actions(&web(), &changed, &unknown),
        [ActionKind::AddSecurityGroupRules, ActionKind::RemoveSecurityGroupRules]
    );

    let mut moved = web();
    moved.listeners[0] = listener(81, ElbProtocol::Tcp, 30081);
    let moved_to = PlanInput {
        rules_digest: changed.rules_digest,
        ..plan_input(&moved, &["i-1"])
    };
    let expected = [
        "DeregisterTargets",
        "CreateTargetGroup",
        "RegisterTargets",
        "AddSecurityGroupRules",
        "CreateListener",
        "DeleteListener",
        "DeleteTargetGroup",
        "RemoveSecurityGroupRules",
    ];
    let mut found = names(&plan(&moved, &moved_to, &seen).unwrap());
    found[..3].sort_by_key(|name| expected.iter().position(|of| of == name));
    assert_eq!(found, expected);
}

#[test]
fn each_object_gets_the_tags_that_it_lacks() {
    let mut seen = there(&web());
    let mut wanted = web();
    wanted.extra_tags = attributes(&[("cost", "c"), ("team", "a")]);
    let balancer = seen.load_balancer.as_mut().unwrap();
    balancer
        .tags
        .as_mut()
        .unwrap()
        .extend(attributes(&[("team", "a")]));
    balancer.listeners[0]
        .tags
        .as_mut()
        .unwrap()
        .extend(attributes(&[("team", "b"), ("cost", "c")]));
    let lacking = |arns: Vec<&str>, tags: &[(&str, &str)]| {
        ActionKind::AddTags(arns.into_iter().map(Into::into).collect(), attributes(tags))
    };
    let [first, second] = [0, 1].map(|n| balancer.listeners[n].resource.arn.clone());
    let groups: Vec<_> = seen
        .target_groups
        .iter()
        .map(|seen| seen.resource.arn.clone())
        .collect();
    let rest = vec![second.as_str(), groups[0].as_str(), groups[1].as_str()];
    let expected = [
        lacking(vec!["lb/au1"], &[("cost", "c")]),
        lacking(vec![first.as_str()], &[("team", "a")]),
        lacking(rest, &[("cost", "c"), ("team", "a")]),
    ];
    let plan_input = same_exposure(&wanted, &seen);
    assert_eq!(actions(&wanted, &plan_input, &seen), expected);
    reach(&wanted, &plan_input, &seen);
}

#[test]
fn each_object_loses_the_tags_that_it_has_too_many() {
    let mut seen = there(&web());
    let balancer = seen.load_balancer.as_mut().unwrap();
    balancer
        .tags
        .as_mut()
        .unwrap()
        .extend(attributes(&[("cost", "c"), ("team", "a")]));
    balancer.listeners[0]
        .tags
        .as_mut()
        .unwrap()
        .extend(attributes(&[("team", "a")]));
    let arn = balancer.listeners[0].resource.arn.clone();
    seen.removable_tag_keys = ["cost", "team"].map(Into::into).into();
    let expected = [
        ActionKind::RemoveTags(vec!["lb/au1".into()], vec!["cost".into(), "team".into()]),
        ActionKind::RemoveTags(vec![arn.as_str().into()], vec!["team".into()]),
    ];
    assert_eq!(actions(&web(), &same_exposure(&web(), &seen), &seen), expected);
}

#[test]
fn certificates_for_sni_that_nobody_wants_go_and_the_default_one_may_be_listed() {
    let mut wanted = web();
    wanted.listeners[1]
        .tls
        .as_mut()
        .unwrap()
        .certificates
        .push("cert-2".into());
    let mut seen = there(&wanted);
    let listener = &mut seen.load_balancer.as_mut().unwrap().listeners[1];
    listener.certificates = Some(["cert-1", "cert-2", "cert-3"].map(Into::into).into());
    let arn = listener.resource.arn.clone();
    let plan_input = same_exposure(&wanted, &seen);
    assert_eq!(
        actions(&wanted, &plan_input, &seen),
        [ActionKind::RemoveListenerCertificate(arn, "cert-3".into())]
    );
}

#[test]
fn policies_of_tls_are_compared_where_the_service_names_them() {
    type Policies = (Option<&'static str>, Option<&'static str>);
    // What the listener has, what the Service says, whether that differs.
    let cases: [(Policies, Policies, bool); 7] = [
        ((Some("p"), Some("HTTP2Only")), (None, None), false),
        ((Some("p"), Some("HTTP2Only")), (Some("p"), Some("HTTP2Only")), false),
        ((Some("p"), None), (Some("q"), None), true),
        ((None, None), (Some("q"), None), true),
        ((None, None), (None, Some("None")), false),
        ((None, Some("None")), (None, Some("None")), false),
        ((None, None), (None, Some("HTTP2Only")), true),
    ];
    for (have, want, differs) in cases {
        let mut seen = there(&web());
        let listener = &mut seen.load_balancer.as_mut().unwrap().listeners[1].resource;
        (listener.ssl_policy, listener.alpn_policy) =
            (have.0.map(Into::into), have.1.map(Into::into));
        let mut wanted = web();
        let tls = wanted.listeners[1].tls.as_mut().unwrap();
        (tls.policy, tls.alpn) = (want.0.map(Into::into), want.1.map(Into::into));
        let found = names(&plan(&wanted, &same_exposure(&wanted, &seen), &seen).unwrap());
        assert_eq!(
            found,
            if differs {
                vec!["ModifyListener"]
            } else {
                vec![]
            },
            "{have:?} {want:?}"
        );
    }
}

// LB6
#[test]
fn an_existing_load_balancer_keeps_its_elastic_ips_whatever_their_order() {
    type Pairs = &'static [(&'static str, &'static str)];
    // The zones that exist, the mappings by position, the mappings that are planned.
    let cases: [(&str, Pairs, Pairs, Pairs); 8] = [
        (
            "the same",
            &[("a", "1"), ("b", "2")],
            &[("a", "1"), ("b", "2")],
            &[("a", "1"), ("b", "2")],
        ),
        (
            "swapped",
            &[("a", "1"), ("b", "2")],
            &[("a", "2"), ("b", "1")],
            &[("a", "1"), ("b", "2")],
        ),
        (
            "subnets in another order",
            &[("a", "1"), ("b", "2")],
            &[("b", "1"), ("a", "2")],
            &[("b", "2"), ("a", "1")],
        ),
        (
            "a new subnet in front",
            &[("a", "1"), ("b", "2")],
            &[("c", "1"), ("a", "2"), ("b", "3")],
            &[("c", "3"), ("a", "1"), ("b", "2")],
        ),
        (
            "a removed subnet",
            &[("a", "1"), ("b", "2")],
            &[("b", "1"), ("c", "2")],
            &[("b", "2"), ("c", "1")],
        ),
        (
            "another address",
            &[("a", "1"), ("b", "2")],
            &[("a", "3"), ("b", "1")],
            &[("a", "1"), ("b", "3")],
        ),
        (
            "new subnets stay in position",
            &[("a", "1")],
            &[("a", "1"), ("b", "2"), ("c", "3")],
            &[("a", "1"), ("b", "2"), ("c", "3")],
        ),
        (
            "no address is named",
            &[("a", "1"), ("b", "2")],
            &[("a", ""), ("b", "")],
            &[("a", ""), ("b", "")],
        ),
    ];
    for (name, zones, mappings, expected) in cases {
        let ids = |id: &'static str| Some(id).filter(|id| !id.is_empty()).map(Into::into);
        let of = |pairs: Pairs| -> Vec<SubnetMapping> {
            let pair = |(subnet, id): &(&'static str, &'static str)| SubnetMapping {
                subnet: (*subnet).into(),
                allocation: ids(id),
                private_ipv4: None,
                ipv6: None,
                source_nat_prefix: None,
            };
            pairs.iter().map(pair).collect()
        };
        let mut existing = there(&web()).load_balancer.unwrap().resource;
        existing.zones = of(zones)
            .into_iter()
            .map(|mapping| LoadBalancerZone {
                subnet: Some(mapping.subnet),
                allocations: mapping.allocation.into_iter().collect(),
                ..LoadBalancerZone::default()
            })
            .collect();
        assert_eq!(subnets::keep_allocations(&existing, &of(mappings)), of(expected), "{name}");
    }
}

// LB6
#[test]
fn an_elastic_ip_moves_to_no_new_subnet_while_the_load_balancer_has_it() {
    type Pairs = &'static [(&'static str, &'static str)];
    // The mappings of a load balancer with address 1 in a and 2 in b; the subnet that is refused.
    let cases: [(&str, Pairs, Option<&str>); 6] = [
        ("a removed subnet holds it", &[("b", "1"), ("c", "2")], Some("c")),
        ("an exchanged subnet holds it", &[("c", "1"), ("b", "2")], Some("c")),
        ("all subnets are exchanged", &[("c", "1"), ("d", "2")], Some("c")),
        ("a new address for an exchanged subnet", &[("c", "3"), ("b", "2")], None),
        ("another subnet", &[("c", "1"), ("a", "2"), ("b", "3")], None),
        ("one subnet less", &[("b", "2")], None),
    ];
    let of = |pairs: Pairs| -> Vec<SubnetMapping> {
        pairs
            .iter()
            .map(|(subnet, id)| SubnetMapping { allocation: Some((*id).into()), ..mapping(subnet) })
            .collect()
    };
    let wanted = web();
    let mut seen = there(&wanted);
    seen.load_balancer.as_mut().unwrap().resource.zones = of(&[("a", "1"), ("b", "2")])
        .into_iter()
        .map(|mapping| LoadBalancerZone {
            subnet: Some(mapping.subnet),
            allocations: mapping.allocation.into_iter().collect(),
            ..LoadBalancerZone::default()
        })
        .collect();
    for (name, mappings, refused) in cases {
        let input = PlanInput { subnets: Some(of(mappings)), ..same_exposure(&wanted, &seen) };
        let result = plan(&wanted, &input, &seen);
        let Some(subnet) = refused else {
            assert!(result.is_ok(), "{name}: {result:?}");
            continue;
        };
        let error = result.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}: {text}");
        assert!(text.contains(&format!("in subnet {subnet} cannot be changed")), "{name}: {text}");
    }
}

// LB7
#[test]
fn capacity_is_reserved_last_and_only_if_it_was_read() {
    let wanted = |units| DesiredLoadBalancer { capacity_units: units, ..web() };
    let cases = [
        (None, None, None),
        (None, Some(3000), None),
        (Some(3000), None, None),
        (Some(3000), Some(3000), None),
        (Some(3000), Some(0), Some(3000)),
        (Some(4000), Some(3000), Some(4000)),
        (Some(0), Some(3000), Some(0)),
        (Some(0), Some(0), None),
    ];
    for (desired, reserved, expected) in cases {
        let wanted = wanted(desired);
        let mut seen = there(&web());
        seen.load_balancer.as_mut().unwrap().capacity_units = reserved;
        let input = same_exposure(&wanted, &seen);
        let expected: Vec<_> = expected
            .into_iter()
            .map(ActionKind::ReserveCapacity)
            .collect();
        assert_eq!(actions(&wanted, &input, &seen), expected, "{desired:?}, {reserved:?}");
        reach(&wanted, &input, &seen);
        // In upstream's scope nothing of it is done, even if it were asked for.
        let as_upstream =
            DesiredLoadBalancer { updates: UpdateScope::AsCloudProviderAws, ..wanted };
        assert_eq!(actions(&as_upstream, &input, &seen), []);
    }
    // A new load balancer has none, and gets it when everything else is there.
    let nothing = ObservedState::default();
    for (desired, last) in [
        (Some(3000), "ModifyCapacityReservation"),
        (Some(0), "RemoveSecurityGroupRules"),
        (None, "RemoveSecurityGroupRules"),
    ] {
        let wanted = wanted(desired);
        let input = plan_input(&wanted, &["i-1"]);
        let steps = plan(&wanted, &input, &nothing).unwrap();
        assert_eq!(*names(&steps).last().unwrap(), last, "{desired:?}");
        reach(&wanted, &input, &nothing);
    }
    // An adoption that is not finished does not change it yet.
    let wanted = wanted(Some(3000));
    let mut seen = there(&web());
    seen.load_balancer.as_mut().unwrap().capacity_units = Some(0);
    let input = PlanInput { keeps_targets: true, ..same_exposure(&wanted, &seen) };
    assert_eq!(actions(&wanted, &input, &seen), []);
}

// LB5
#[test]
fn source_nat_stays_on_and_with_its_prefixes_when_other_subnets_are_set() {
    let network = |text: &str| Some(SourceNatPrefix::Network(text.parse().unwrap()));
    let wanted = DesiredLoadBalancer {
        ip_address_type: IpAddressType::Dualstack,
        ipv6_source_nat: Some(true),
        ..web()
    };
    let mut seen = there(&wanted);
    let zones = &mut seen.load_balancer.as_mut().unwrap().resource.zones;
    zones[0].source_nat_prefixes = vec!["2001:db8::/80".into()];
    let more = vec![mapping("subnet-a"), mapping("subnet-b"), mapping("subnet-c")];
    let first = SubnetMapping {
        source_nat_prefix: network("2001:db8::/80"),
        ..mapping("subnet-a")
    };
    let kept = vec![first.clone(), mapping("subnet-b"), mapping("subnet-c")];
    // Whether or not the Service says so.
    for source_nat in [Some(true), None] {
        let wanted = DesiredLoadBalancer { ipv6_source_nat: source_nat, ..wanted.clone() };
        let input = PlanInput { subnets: Some(more.clone()), ..same_exposure(&wanted, &seen) };
        let expected = change(kept.clone(), Some(true), None, false);
        assert_eq!(actions(&wanted, &input, &seen), [expected], "{source_nat:?}");
    }
    // Turned off, it has no prefixes.
    let off = DesiredLoadBalancer { ipv6_source_nat: Some(false), ..wanted.clone() };
    let input = PlanInput { subnets: Some(more.clone()), ..same_exposure(&off, &seen) };
    assert_eq!(actions(&off, &input, &seen), [change(more, Some(false), None, false)]);
    let there = reach(&off, &input, &seen);
    assert!(
        there.load_balancer.unwrap().resource.zones[0]
            .source_nat_prefixes
            .is_empty()
    );
    // A certain prefix replaces another one, unless UDP uses that.
    let second = SubnetMapping {
        source_nat_prefix: network("2001:db8:0:0:1::/80"),
        ..mapping("subnet-a")
    };
    let replaced = vec![second.clone(), mapping("subnet-b")];
    let input = PlanInput {
        subnets: Some(replaced.clone()),
        ..same_exposure(&wanted, &seen)
    };
    assert_eq!(actions(&wanted, &input, &seen), [change(replaced, Some(true), None, false)]);
    reach(&wanted, &input, &seen);
    for protocol in [ElbProtocol::Udp, ElbProtocol::TcpUdp] {
        let mut seen = seen.clone();
        let listeners = &mut seen.load_balancer.as_mut().unwrap().listeners;
        listeners[0].resource.protocol = Some(protocol);
        // Unless the same plan removes the listener: then the prefix is changed after that.
        let planned = plan(&wanted, &input, &seen).unwrap();
        assert_eq!(names(&planned).last().unwrap(), "SetSubnets", "{planned:?}");
        let mut wanted = wanted.clone();
        wanted.listeners[0].protocol = protocol;
        let error = plan(&wanted, &input, &seen).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(
            error
                .to_string()
                .contains("in subnet subnet-a cannot be changed"),
            "{error}"
        );
        // The one that is there is as good as any.
        let assigned = SubnetMapping {
            source_nat_prefix: Some(SourceNatPrefix::AutoAssigned),
            ..mapping("subnet-a")
        };
        for same in [&first, &assigned] {
            let subnets = Some(vec![same.clone(), mapping("subnet-b")]);
            let input = PlanInput { subnets, ..same_exposure(&wanted, &seen) };
            let planned = plan(&wanted, &input, &seen).unwrap();
            assert!(names(&planned).iter().all(|name| *name != "SetSubnets"), "{planned:?}");
        }
    }
}
