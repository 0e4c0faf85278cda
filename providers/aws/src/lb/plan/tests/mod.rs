//! Whole plans in tables, and what holds for all of them.

mod fixtures;
mod pairing;
mod settings;

use ccm_core::k8s::IpFamily;

use self::fixtures::{attributes, carry_out, listener, mapping, plan_input, reach, wanted};
use super::*;
use crate::{
    api::elb::{ElbProtocol, HealthProtocol, Scheme, Target},
    lb::{
        apply::working_state::WorkingState,
        model::{DesiredListener, ListenerKey},
        observe::observed::ObservedTargetGroup,
    },
};

fn names(steps: &[PlannedAction]) -> Vec<String> {
    let name = |step: &PlannedAction| match step.action.request() {
        Some(request) => request.name().to_owned(),
        None => format!("{:?}", step.action)
            .split('(')
            .next()
            .unwrap_or_default()
            .to_owned(),
    };
    steps.iter().map(name).collect()
}

fn web() -> DesiredLoadBalancer {
    wanted(vec![listener(80, ElbProtocol::Tcp, 30080), listener(443, ElbProtocol::Tls, 30443)])
}

fn there(wanted: &DesiredLoadBalancer) -> ObservedState {
    reach(wanted, &plan_input(wanted, &["i-1", "i-2"]), &ObservedState::default())
}

const KEY: fn(u16, ElbProtocol) -> ListenerKey =
    |port, protocol| (port.try_into().unwrap(), protocol);

#[test]
fn a_new_balancer_gets_its_groups_and_targets_before_its_listeners() {
    let wanted = wanted(vec![listener(80, ElbProtocol::Tcp, 30080)]);
    let plan_input = plan_input(&wanted, &["i-2", "i-1"]);
    let steps = plan(&wanted, &plan_input, &ObservedState::default()).unwrap();
    assert_eq!(
        names(&steps),
        [
            "CreateLoadBalancer",
            "CreateTargetGroup",
            "RegisterTargets",
            "AddSecurityGroupRules",
            "CreateListener",
            "RemoveSecurityGroupRules"
        ]
    );
    let key = KEY(80, ElbProtocol::Tcp);
    let registered = ["i-1", "i-2"].map(|id| Target { id: id.into(), port: 30080, zone: None });
    assert_eq!(
        steps[2].action,
        ActionKind::RegisterTargets(TargetGroupRef::New(key), registered.to_vec())
    );
    reach(&wanted, &plan_input, &ObservedState::default());
}

// LB7
#[test]
fn only_attributes_that_differ_from_the_defaults_are_set_on_what_is_new() {
    let mut wanted = web();
    wanted
        .attributes
        .insert("deletion_protection.enabled".into(), "true".into());
    wanted.listeners[0].attributes = attributes(&[("tcp.idle_timeout.seconds", "350")]);
    wanted.listeners[1].attributes = attributes(&[("tcp.idle_timeout.seconds", "400")]);
    wanted.listeners[1].target_group.attributes = attributes(&[
        ("proxy_protocol_v2.enabled", "true"),
        ("preserve_client_ip.enabled", "true"),
    ]);
    let steps = plan(&wanted, &plan_input(&wanted, &[]), &ObservedState::default()).unwrap();
    let set: Vec<_> = steps
        .iter()
        .filter_map(|step| match &step.action {
            ActionKind::ModifyLoadBalancerAttributes(set)
            | ActionKind::ModifyTargetGroupAttributes(_, set)
            | ActionKind::ModifyListenerAttributes(_, set) => Some(set.clone()),
            _ => None,
        })
        .collect();
    let expected = [
        [("deletion_protection.enabled", "true")],
        [("proxy_protocol_v2.enabled", "true")],
        [("tcp.idle_timeout.seconds", "400")],
    ];
    assert_eq!(set, expected.map(|pairs| attributes(&pairs)));
}

type Change = fn(&mut DesiredLoadBalancer, &mut PlanInput);

// length: a table of changes
#[test]
fn a_change_plans_what_differs_in_the_order_that_keeps_traffic() {
    let cases: [(&str, Change, &[&str]); 24] = [
        ("nothing", |_, _| {}, &[]),
        (
            "a health check in place",
            |w, _| w.listeners[0].target_group.health_check.interval = 10,
            &["ModifyTargetGroup"],
        ),
        (
            "another protocol of the health check",
            |w, _| w.listeners[0].target_group.health_check.protocol = HealthProtocol::Http,
            &["ModifyTargetGroup"],
        ),
        (
            "another node port",
            |w, r| {
                w.listeners[0] = listener(80, ElbProtocol::Tcp, 30081);
                *r = plan_input(w, &["i-1", "i-2"]);
            },
            &["CreateTargetGroup", "RegisterTargets", "ModifyListener", "DeleteTargetGroup"],
        ),
        (
            "another protocol of the target group",
            |w, r| {
                w.listeners[1].target_group.protocol = ElbProtocol::Tls;
                w.listeners[1].target_group.name = "other".into();
                *r = plan_input(w, &["i-1", "i-2"]);
            },
            &["CreateTargetGroup", "RegisterTargets", "ModifyListener", "DeleteTargetGroup"],
        ),
        (
            "another family under the same name",
            |w, _| w.listeners[0].target_group.family = IpFamily::V6,
            &[
                "DeleteListener",
                "DeleteTargetGroup",
                "CreateTargetGroup",
                "RegisterTargets",
                "CreateListener",
            ],
        ),
        (
            "TCP becomes TLS",
            |w, r| {
                w.listeners[0] = DesiredListener {
                    target_group: w.listeners[0].target_group.clone(),
                    ..listener(80, ElbProtocol::Tls, 30080)
                };
                *r = plan_input(w, &["i-1", "i-2"]);
            },
            &["DeleteListener", "CreateListener"],
        ),
        (
            "TCP becomes TCP and UDP",
            |w, r| {
                w.listeners[0] = listener(80, ElbProtocol::TcpUdp, 30080);
                *r = plan_input(w, &["i-1", "i-2"]);
            },
            &[
                "CreateTargetGroup",
                "RegisterTargets",
                "DeleteListener",
                "CreateListener",
                "DeleteTargetGroup",
            ],
        ),
        (
            "another port: made before the old one goes",
            |w, r| {
                w.listeners[0] = listener(81, ElbProtocol::Tcp, 30080);
                *r = plan_input(w, &["i-1", "i-2"]);
            },
            &[
                "CreateTargetGroup",
                "RegisterTargets",
                "CreateListener",
                "DeleteListener",
                "DeleteTargetGroup",
            ],
        ),
        (
            "one listener fewer",
            |w, r| {
                w.listeners.pop();
                *r = plan_input(w, &["i-1", "i-2"]);
            },
            &["DeleteListener", "DeleteTargetGroup"],
        ),
        (
            "TCP becomes UDP",
            |w, r| {
                w.listeners[0] = listener(80, ElbProtocol::Udp, 30090);
                *r = plan_input(w, &["i-1", "i-2"]);
            },
            &[
                "CreateTargetGroup",
                "RegisterTargets",
                "DeleteListener",
                "CreateListener",
                "DeleteTargetGroup",
            ],
        ),
        (
            "a node more",
            |w, r| *r = plan_input(w, &["i-1", "i-2", "i-3"]),
            &["RegisterTargets", "RegisterTargets"],
        ),
        (
            "a node exchanged",
            |w, r| *r = plan_input(w, &["i-1", "i-3"]),
            &["DeregisterTargets", "RegisterTargets", "DeregisterTargets", "RegisterTargets"],
        ),
        ("no node", |w, r| *r = plan_input(w, &[]), &["DeregisterTargets", "DeregisterTargets"]),
        (
            "another default certificate",
            |w, _| w.listeners[1].tls.as_mut().unwrap().certificates = vec!["cert-2".into()],
            &["ModifyListener"],
        ),
        (
            "a certificate for SNI",
            |w, _| {
                w.listeners[1]
                    .tls
                    .as_mut()
                    .unwrap()
                    .certificates
                    .push("cert-2".into());
            },
            &["AddListenerCertificates"],
        ),
        (
            "certificates for SNI, of which AWS takes one in each request",
            |w, _| {
                let certificates = &mut w.listeners[1].tls.as_mut().unwrap().certificates;
                certificates.extend(["cert-2".into(), "cert-3".into()]);
            },
            &["AddListenerCertificates", "AddListenerCertificates"],
        ),
        (
            "policies",
            |w, _| {
                let tls = w.listeners[1].tls.as_mut().unwrap();
                (tls.policy, tls.alpn) = (Some("p".into()), Some("HTTP2Only".into()));
            },
            &["ModifyListener"],
        ),
        (
            "a balancer attribute",
            |w, _| {
                drop(
                    w.attributes
                        .insert("load_balancing.cross_zone.enabled".into(), "true".into()),
                );
            },
            &["ModifyLoadBalancerAttributes"],
        ),
        (
            "a tag",
            |w, r| {
                w.extra_tags.insert("team".into(), "a".into());
                *r = plan_input(w, &["i-1", "i-2"]);
            },
            &["AddTags"],
        ),
        (
            "a subnet more",
            |_, r| {
                r.subnets = Some(
                    ["a", "b", "c"]
                        .map(|s| mapping(&format!("subnet-{s}")))
                        .into(),
                );
            },
            &["SetSubnets"],
        ),
        ("families", |w, _| w.ip_address_type = IpAddressType::Dualstack, &["SetIpAddressType"]),
        (
            "families with IPv6 prefixes, which UDP needs at once",
            |w, r| {
                (w.ip_address_type, w.ipv6_source_nat) = (IpAddressType::Dualstack, Some(true));
                r.subnets = None;
            },
            &["SetSubnets"],
        ),
        ("subnets left alone", |_, r| r.subnets = None, &[]),
    ];
    for (case, change, expected) in cases {
        let (mut wanted, from) = (web(), there(&web()));
        let mut plan_input = plan_input(&wanted, &["i-1", "i-2"]);
        change(&mut wanted, &mut plan_input);
        plan_input.rules_digest = from.rules_digest.unwrap();
        let steps = plan(&wanted, &plan_input, &from).unwrap();
        assert_eq!(names(&steps), expected, "{case}");
        reach(&wanted, &plan_input, &from);
    }
}

// TG3
#[test]
fn targets_differ_by_id_and_port() {
    let target = |id: &str| Target { id: id.into(), port: 30080, zone: None };
    let list = |ids: &[&str]| ids.iter().map(|id| target(id)).collect::<Vec<_>>();
    type Ids = &'static [&'static str];
    let cases: [(Ids, Ids, Ids, Ids); 5] = [
        (&[], &["i-1", "i-2"], &["i-1", "i-2"], &[]),
        (&["i-1", "i-2"], &[], &[], &["i-1", "i-2"]),
        (&["i-1", "i-2", "i-3"], &["i-1", "i-4", "i-5"], &["i-4", "i-5"], &["i-2", "i-3"]),
        (&[], &[], &[], &[]),
        (&["i-1", "i-2"], &["i-2", "i-1"], &[], &[]),
    ];
    for (have, want, register, deregister) in cases {
        let wanted = wanted(vec![listener(80, ElbProtocol::Tcp, 30080)]);
        let first = plan_input(&wanted, have);
        let from = reach(&wanted, &first, &ObservedState::default());
        let arn = from.target_groups[0].resource.arn.clone();
        let plan_input = PlanInput {
            rules_digest: first.rules_digest,
            ..plan_input(&wanted, want)
        };
        let steps: Vec<_> = plan(&wanted, &plan_input, &from)
            .unwrap()
            .into_iter()
            .map(|step| step.action)
            .collect();
        let mut expected = Vec::new();
        if !deregister.is_empty() {
            expected.push(ActionKind::DeregisterTargets(arn.clone(), list(deregister)));
        }
        if !register.is_empty() {
            expected
                .push(ActionKind::RegisterTargets(TargetGroupRef::Existing(arn), list(register)));
        }
        assert_eq!(steps, expected, "{have:?} -> {want:?}");
    }
}

// TG2
#[test]
fn targets_come_in_chunks_of_200() {
    let wanted = wanted(vec![listener(80, ElbProtocol::Tcp, 30080)]);
    for (count, chunks) in
        [(0, &[][..]), (1, &[1]), (200, &[200]), (201, &[200, 1]), (450, &[200, 200, 50])]
    {
        let ids: Vec<String> = (0..count).map(|n| format!("i-{n:04}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let steps = plan(&wanted, &plan_input(&wanted, &ids), &ObservedState::default()).unwrap();
        let sizes: Vec<_> = steps
            .iter()
            .filter_map(|step| match &step.action {
                ActionKind::RegisterTargets(_, targets) => Some(targets.len()),
                _ => None,
            })
            .collect();
        assert_eq!(sizes, chunks, "{count}");
    }
}

// LB6
#[test]
fn what_cannot_be_changed_is_refused() {
    let from = there(&web());
    let mut internal = web();
    internal.scheme = Scheme::Internal;
    let error = plan(&internal, &plan_input(&internal, &[]), &from).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("scheme cannot be changed from internet-facing to internal"),
        "{error}"
    );

    let mut seen = from;
    seen.load_balancer.as_mut().unwrap().resource.zones[0].allocations = vec!["eipalloc-1".into()];
    let mut other = plan_input(&web(), &[]);
    other.subnets.as_mut().unwrap()[0].allocation = Some("eipalloc-2".into());
    assert!(
        plan(&web(), &other, &seen)
            .unwrap_err()
            .to_string()
            .contains("addresses of load balancer au1 in subnet")
    );
}

#[test]
fn addresses_stay_when_only_prefixes_change() {
    let mut wanted = web();
    wanted.ip_address_type = IpAddressType::Dualstack;
    let mut seen = there(&wanted);
    let zones = &mut seen.load_balancer.as_mut().unwrap().resource.zones;
    zones[0].allocations = vec!["eipalloc-1".into()];
    (zones[1].private_ipv4, zones[1].ipv6) = (vec!["10.0.1.9".into()], vec!["2001:db8::9".into()]);
    wanted.ipv6_source_nat = Some(true);
    let plan_input = PlanInput {
        subnets: None,
        rules_digest: seen.rules_digest.unwrap(),
        ..plan_input(&wanted, &["i-1", "i-2"])
    };
    let actions: Vec<_> = plan(&wanted, &plan_input, &seen)
        .unwrap()
        .into_iter()
        .map(|step| step.action)
        .collect();
    let first = SubnetMapping { allocation: Some("eipalloc-1".into()), ..mapping("subnet-a") };
    let (private, ipv6) = ("10.0.1.9".parse().ok(), "2001:db8::9".parse().ok());
    let second = SubnetMapping { private_ipv4: private, ipv6, ..mapping("subnet-b") };
    let change = SubnetChange {
        subnets: vec![first, second],
        ipv6_source_nat: Some(true),
        ip_address_type: None,
        removes: false,
    };
    assert_eq!(actions, [ActionKind::SetSubnets(change)]);
    reach(&wanted, &plan_input, &seen);
}

// TG5
#[test]
fn a_new_balancer_with_logs_sets_what_differs_from_aws_defaults() {
    let mut wanted = web();
    wanted.attributes = attributes(&[
        ("access_logs.s3.bucket", "b"),
        ("access_logs.s3.enabled", "true"),
        ("access_logs.s3.prefix", ""),
    ]);
    let steps = plan(&wanted, &plan_input(&wanted, &[]), &ObservedState::default()).unwrap();
    let set = ActionKind::ModifyLoadBalancerAttributes(attributes(&[
        ("access_logs.s3.bucket", "b"),
        ("access_logs.s3.enabled", "true"),
    ]));
    assert_eq!(steps.iter().filter(|step| step.action == set).count(), 1, "{steps:#?}");
}

#[test]
fn a_balancer_without_subnets_is_not_made() {
    for subnets in [None, Some(Vec::new())] {
        let plan_input = PlanInput { subnets, ..plan_input(&web(), &[]) };
        assert!(plan(&web(), &plan_input, &ObservedState::default()).is_err(), "{plan_input:?}");
    }
}

#[test]
fn security_groups_change_only_on_a_balancer_that_has_some() {
    let mut wanted = web();
    let with = |groups: &[&str]| {
        groups
            .iter()
            .map(|id| (*id).into())
            .collect::<Vec<SecurityGroupId>>()
    };
    let from = |groups: &[&str], wanted: &DesiredLoadBalancer| {
        let plan_input = PlanInput { groups: with(groups), ..plan_input(wanted, &[]) };
        reach(wanted, &plan_input, &ObservedState::default())
    };
    let steps = |wanted: &DesiredLoadBalancer, groups: &[&str], from: &ObservedState| {
        let plan_input = PlanInput {
            groups: with(groups),
            rules_digest: from.rules_digest.unwrap(),
            ..plan_input(wanted, &[])
        };
        plan(wanted, &plan_input, from)
            .unwrap()
            .into_iter()
            .map(|step| step.action)
            .collect::<Vec<_>>()
    };
    assert_eq!(steps(&wanted, &["sg-1"], &from(&[], &wanted)), [], "made without any");
    assert_eq!(steps(&wanted, &[], &from(&["sg-1"], &wanted)), [], "left alone");
    assert_eq!(
        steps(&wanted, &["sg-2", "sg-1"], &from(&["sg-1", "sg-2"], &wanted)),
        [],
        "in another order"
    );
    assert_eq!(
        steps(&wanted, &["sg-2", "sg-3"], &from(&["sg-1", "sg-2"], &wanted)),
        [
            ActionKind::SetSecurityGroups(with(&["sg-2", "sg-3"]), None),
            ActionKind::CleanUpSecurityGroups(with(&["sg-1"]))
        ]
    );
    let seen = from(&["sg-1"], &wanted);
    wanted.security.private_link_rules = Some(false);
    assert_eq!(
        steps(&wanted, &[], &seen),
        [ActionKind::SetSecurityGroups(with(&["sg-1"]), Some(false))]
    );
}

#[test]
fn what_was_not_read_is_left_alone() {
    let mut seen = there(&web());
    let balancer = seen.load_balancer.as_mut().unwrap();
    (balancer.tags, balancer.attributes) = (None, None);
    balancer
        .listeners
        .iter_mut()
        .for_each(|l| (l.tags, l.attributes, l.certificates) = (None, None, None));
    seen.target_groups
        .iter_mut()
        .for_each(|g| (g.tags, g.attributes) = (None, None));
    assert!(!seen.is_complete());
    let mut wanted = web();
    wanted.extra_tags.insert("team".into(), "a".into());
    wanted
        .attributes
        .insert("load_balancing.cross_zone.enabled".into(), "true".into());
    wanted.listeners[1]
        .tls
        .as_mut()
        .unwrap()
        .certificates
        .push("cert-2".into());
    let plan_input = PlanInput {
        rules_digest: seen.rules_digest.unwrap(),
        ..plan_input(&wanted, &["i-1", "i-2"])
    };
    assert_eq!(plan(&wanted, &plan_input, &seen).unwrap(), []);
}

#[test]
fn tags_of_our_own_go_when_nobody_asks_for_them_and_others_stay() {
    let mut seen = there(&web());
    for tags in [&mut seen.load_balancer.as_mut().unwrap().tags, &mut seen.target_groups[0].tags] {
        tags.as_mut()
            .unwrap()
            .extend(attributes(&[("team", "a"), ("foreign", "b")]));
    }
    let plan_input = PlanInput {
        rules_digest: seen.rules_digest.unwrap(),
        ..plan_input(&web(), &["i-1", "i-2"])
    };
    assert_eq!(plan(&web(), &plan_input, &seen).unwrap(), []);
    seen.removable_tag_keys = [Box::from("team"), Box::from("kubernetes.io/service-name")].into();
    let arns = vec![Box::from("lb/au1"), seen.target_groups[0].resource.arn.as_str().into()];
    let steps: Vec<_> = plan(&web(), &plan_input, &seen)
        .unwrap()
        .into_iter()
        .map(|step| step.action)
        .collect();
    assert_eq!(steps, [ActionKind::RemoveTags(arns, vec!["team".into()])]);
}

#[test]
fn a_living_group_under_another_name_is_kept() {
    let mut seen = there(&web());
    seen.target_groups[0].resource.name = "k8s-default-web-older".into();
    let plan_input = PlanInput {
        rules_digest: seen.rules_digest.unwrap(),
        ..plan_input(&web(), &["i-1", "i-2"])
    };
    assert_eq!(plan(&web(), &plan_input, &seen).unwrap(), []);
}

#[test]
fn a_group_that_nobody_uses_is_used_or_deleted() {
    let wanted = wanted(vec![listener(80, ElbProtocol::Tcp, 30080)]);
    let plan_input = plan_input(&wanted, &["i-1"]);
    let mut picture = WorkingState::default();
    let steps = plan(&wanted, &plan_input, &ObservedState::default()).unwrap();
    for step in &steps[..2] {
        carry_out(&mut picture, step, plan_input.rules_digest);
    }
    let mut left = picture.observed;
    let mut other = left.target_groups[0].clone();
    (other.resource.name, other.resource.arn) = ("k8s-default-web-left".into(), "tg/left".into());
    left.target_groups.push(other);
    let end = reach(&wanted, &plan_input, &left);
    assert_eq!(
        end.target_groups
            .iter()
            .map(|g| &*g.resource.name)
            .collect::<Vec<_>>(),
        ["k8s-default-web-80-30080-TCP"]
    );
}

#[test]
fn a_health_check_that_cannot_be_changed_costs_another_group() {
    let mut wanted = web();
    let mut from = there(&wanted);
    from.unmodifiable_groups
        .insert(from.target_groups[0].resource.arn.clone());
    let plan_input = PlanInput {
        rules_digest: from.rules_digest.unwrap(),
        ..plan_input(&wanted, &["i-1", "i-2"])
    };
    assert_eq!(plan(&wanted, &plan_input, &from).unwrap(), [], "it is as it shall be");
    wanted.listeners[0].target_group.health_check.interval = 10;
    wanted.listeners[0].target_group.name = "k8s-default-web-10s".into();
    assert_eq!(
        names(&plan(&wanted, &plan_input, &from).unwrap()),
        ["CreateTargetGroup", "RegisterTargets", "ModifyListener", "DeleteTargetGroup"]
    );
    reach(&wanted, &plan_input, &from);
}

#[test]
fn a_group_that_cannot_be_changed_serves_until_another_one_takes_over() {
    let mut wanted = web();
    let mut from = there(&wanted);
    for codes in ["200", "201", "202"] {
        from.unmodifiable_groups = from
            .target_groups
            .iter()
            .map(|seen| seen.resource.arn.clone())
            .collect();
        // The name of the group does not tell of this.
        wanted.listeners[0].target_group.health_check.matcher = Some(codes.into());
        let plan_input = PlanInput {
            rules_digest: from.rules_digest.unwrap(),
            ..plan_input(&wanted, &["i-1", "i-2"])
        };
        assert_eq!(
            names(&plan(&wanted, &plan_input, &from).unwrap()),
            ["CreateTargetGroup", "RegisterTargets", "ModifyListener", "DeleteTargetGroup"],
            "{codes}"
        );
        from = reach(&wanted, &plan_input, &from);
    }
}

#[test]
fn groups_that_were_taken_off_are_given_up_until_that_is_done() {
    let wanted = web();
    let with = |groups: &[&str]| {
        groups
            .iter()
            .map(|id| (*id).into())
            .collect::<Vec<SecurityGroupId>>()
    };
    let made = PlanInput { groups: with(&["sg-1"]), ..plan_input(&wanted, &[]) };
    let from = reach(&wanted, &made, &ObservedState::default());
    let plan_input = PlanInput {
        groups: with(&["sg-2"]),
        rules_digest: from.rules_digest.unwrap(),
        ..made
    };
    let mut picture = WorkingState::new(from);
    let steps = plan(&wanted, &plan_input, &picture.observed).unwrap();
    let release = ActionKind::CleanUpSecurityGroups(with(&["sg-1"]));
    assert_eq!(steps.last().unwrap().action, release);
    for step in &steps[..steps.len() - 1] {
        picture.action_applied(&step.action);
    }
    let again = plan(&wanted, &plan_input, &picture.observed).unwrap();
    assert_eq!(again.iter().map(|step| &step.action).collect::<Vec<_>>(), [&release]);
    picture.action_applied(&release);
    assert_eq!(plan(&wanted, &plan_input, &picture.observed).unwrap(), []);
}

#[test]
fn the_order_of_what_was_read_does_not_matter() {
    let from = there(&web());
    let mut turned: ObservedState = from.clone();
    turned.target_groups.reverse();
    turned.load_balancer.as_mut().unwrap().listeners.reverse();
    turned
        .load_balancer
        .as_mut()
        .unwrap()
        .resource
        .zones
        .reverse();
    let mut wanted = web();
    wanted.listeners[0].target_group.health_check.interval = 10;
    let plan_input = plan_input(&wanted, &["i-3"]);
    assert_eq!(
        plan(&wanted, &plan_input, &from).unwrap(),
        plan(&wanted, &plan_input, &turned).unwrap()
    );
}

#[test]
fn unread_targets_are_not_guessed() {
    let mut seen = there(&web());
    seen.target_groups
        .iter_mut()
        .for_each(|group: &mut ObservedTargetGroup| group.targets = None);
    for instances in [&[][..], &["i-1"]] {
        let plan_input = PlanInput {
            rules_digest: seen.rules_digest.unwrap(),
            ..plan_input(&web(), instances)
        };
        assert_eq!(plan(&web(), &plan_input, &seen).unwrap(), []);
        assert_eq!(plan_targets_only(&web(), &plan_input.targets, &seen), []);
    }
}
