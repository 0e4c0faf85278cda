//! Which target group serves which listener, and which members it has.

use super::{
    fixtures::{listener, plan_input, reach, wanted},
    *,
};
use crate::{
    api::elb::{HealthCheck, TargetType},
    lb::plan::target_groups::differs,
};

/// Two ports whose target groups need the same, as those of one port of pods do.
fn twins() -> DesiredLoadBalancer {
    let second = |port| DesiredListener { port, ..listener(443, ElbProtocol::Tcp, 30080) };
    wanted(vec![listener(80, ElbProtocol::Tcp, 30080), second(443.try_into().unwrap())])
}

fn same_exposure(
    wanted: &DesiredLoadBalancer,
    instances: &[&str],
    from: &ObservedState,
) -> PlanInput {
    PlanInput {
        rules_digest: from.rules_digest.unwrap(),
        ..plan_input(wanted, instances)
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

#[test]
fn listeners_that_lead_to_one_group_by_hand_get_one_each_and_it_stays() {
    let there = there(&twins());
    for (moved, to) in [(0, 1), (1, 0)] {
        let mut seen = there.clone();
        let arn = seen.target_groups[to].resource.arn.clone();
        let listeners = &mut seen.load_balancer.as_mut().unwrap().listeners;
        listeners[moved].resource.target_group = Some(arn.clone());
        let plan_input = same_exposure(&twins(), &["i-1", "i-2"], &seen);
        let actions = actions(&twins(), &plan_input, &seen);
        let goes = |action: &ActionKind| {
            matches!(action, ActionKind::DeleteListener(_))
                || *action == ActionKind::DeleteTargetGroup(arn.clone())
        };
        assert!(!actions.iter().any(goes), "{moved}: {actions:#?}");
        let end = reach(&twins(), &plan_input, &seen);
        let listeners = end.load_balancer.unwrap().listeners;
        assert_ne!(
            listeners[0].resource.target_group, listeners[1].resource.target_group,
            "{moved}"
        );
        assert_eq!(end.target_groups.len(), 2, "{moved}");
    }
}

#[test]
fn a_new_listener_takes_no_group_from_one_that_stays() {
    let one = wanted(vec![listener(80, ElbProtocol::Tcp, 30080)]);
    let mut seen = there(&one);
    // The group that the first one uses has the name of the second one's.
    seen.target_groups[0].resource.name = twins().listeners[1].target_group.name.clone();
    let plan_input = same_exposure(&twins(), &["i-1", "i-2"], &seen);
    assert_eq!(
        names(&plan(&twins(), &plan_input, &seen).unwrap()),
        ["CreateTargetGroup", "RegisterTargets", "CreateListener"]
    );
    let end = reach(&twins(), &plan_input, &seen);
    assert_eq!(end.target_groups.len(), 2);
}

#[test]
fn a_listener_of_another_kind_of_targets_gets_another_group() {
    let mut wanted = web();
    wanted.listeners[0].target_group.target_type = TargetType::Ip;
    wanted.listeners[0].target_group.name = "k8s-default-web-ip".into();
    let seen = there(&web());
    let plan_input = same_exposure(&wanted, &["i-1", "i-2"], &seen);
    assert_eq!(
        names(&plan(&wanted, &plan_input, &seen).unwrap()),
        ["CreateTargetGroup", "RegisterTargets", "ModifyListener", "DeleteTargetGroup"]
    );
}

#[test]
fn a_group_of_no_named_family_is_of_ipv4() {
    let mut seen = there(&web());
    seen.target_groups
        .iter_mut()
        .for_each(|group| group.resource.ip_address_type = None);
    assert_eq!(actions(&web(), &same_exposure(&web(), &["i-1", "i-2"], &seen), &seen), []);
}

#[test]
fn a_group_with_the_right_name_comes_before_the_one_of_the_port() {
    // TCP becomes TLS, which an earlier run had begun to prepare under another name.
    let mut wanted = web();
    wanted.listeners[0] = listener(80, ElbProtocol::Tls, 30080);
    wanted.listeners[0].target_group.name = "k8s-default-web-prepared".into();
    let mut seen = there(&web());
    let mut prepared = seen.target_groups[0].clone();
    (prepared.resource.name, prepared.resource.arn) =
        ("k8s-default-web-prepared".into(), "tg/prepared".into());
    seen.target_groups.push(prepared);
    let end = reach(&wanted, &same_exposure(&wanted, &["i-1", "i-2"], &seen), &seen);
    assert!(
        end.target_groups
            .iter()
            .any(|group| group.resource.arn == "tg/prepared".into())
    );
    assert_eq!(end.target_groups.len(), 2);
}

#[test]
fn what_of_a_health_check_is_left_to_aws_does_not_count() {
    let plain = listener(80, ElbProtocol::Tcp, 30080)
        .target_group
        .health_check;
    let with = |path: Option<&str>, matcher: Option<&str>| HealthCheck {
        path: path.map(Into::into),
        matcher: matcher.map(Into::into),
        ..plain.clone()
    };
    let cases = [
        (with(None, None), with(None, None), false),
        (with(Some("/"), Some("200-399")), with(None, None), false),
        (with(Some("/"), Some("200-399")), with(Some("/"), None), false),
        (with(Some("/"), Some("200-399")), with(None, Some("200")), true),
        (with(Some("/"), Some("200-399")), with(Some("/healthz"), None), true),
        (with(None, None), with(Some("/"), None), true),
        (HealthCheck { interval: 10, ..plain.clone() }, plain.clone(), true),
    ];
    for (have, want, expected) in cases {
        assert_eq!(differs(&have, &want), expected, "{have:?} {want:?}");
    }
}

#[test]
fn a_new_group_says_its_family_only_where_it_is_not_aws_default() {
    for (family, said) in [(IpFamily::V4, None), (IpFamily::V6, Some(IpAddressType::Ipv6))] {
        let mut wanted = web();
        wanted
            .listeners
            .iter_mut()
            .for_each(|listener| listener.target_group.family = family);
        let steps = plan(&wanted, &plan_input(&wanted, &[]), &ObservedState::default()).unwrap();
        let said_of = |step: &PlannedAction| match &step.action {
            ActionKind::CreateTargetGroup(_, create) => Some(create.ip_address_type),
            _ => None,
        };
        assert_eq!(steps.iter().filter_map(said_of).collect::<Vec<_>>(), [said, said]);
    }
}

// TG3
#[test]
fn a_target_with_another_port_is_another_target() {
    let target = |port| Target { id: "10.0.0.1".into(), port, zone: None };
    let (one, other) = (target(8080), target(8081));
    let cases = [
        (vec![one.clone()], vec![other.clone()], vec![other.clone()], vec![one.clone()]),
        (vec![one.clone()], vec![one.clone(), other.clone()], vec![other.clone()], vec![]),
        (vec![one.clone(), other.clone()], vec![other.clone()], vec![], vec![one.clone()]),
    ];
    let wanted = wanted(vec![listener(80, ElbProtocol::Tcp, 30080)]);
    for (have, want, register, deregister) in cases {
        let with = |targets| PlanInput {
            targets: [(KEY(80, ElbProtocol::Tcp), targets)].into(),
            ..plan_input(&wanted, &[])
        };
        let seen = reach(&wanted, &with(have.clone()), &ObservedState::default());
        let arn = seen.target_groups[0].resource.arn.clone();
        let mut expected = Vec::new();
        if !deregister.is_empty() {
            expected.push(ActionKind::DeregisterTargets(arn.clone(), deregister));
        }
        if !register.is_empty() {
            expected.push(ActionKind::RegisterTargets(TargetGroupRef::Existing(arn), register));
        }
        assert_eq!(actions(&wanted, &with(want.clone()), &seen), expected, "{have:?} -> {want:?}");
        let steps = plan_targets_only(&wanted, &with(want).targets, &seen);
        assert_eq!(
            steps
                .into_iter()
                .map(|step| step.action)
                .collect::<Vec<_>>(),
            expected
        );
    }
}

// TG2
#[test]
fn a_living_group_gains_and_loses_targets_in_chunks_of_200() {
    let wanted = wanted(vec![listener(80, ElbProtocol::Tcp, 30080)]);
    let ids = |from: usize, count: usize| {
        (from..from + count)
            .map(|n| format!("i-{n:04}"))
            .collect::<Vec<_>>()
    };
    let with =
        |ids: Vec<String>| plan_input(&wanted, &ids.iter().map(String::as_str).collect::<Vec<_>>());
    let seen = reach(&wanted, &with(ids(0, 201)), &ObservedState::default());
    let sizes: Vec<_> = actions(&wanted, &with(ids(1000, 401)), &seen)
        .iter()
        .map(|action| match action {
            ActionKind::DeregisterTargets(_, targets) => (false, targets.len()),
            ActionKind::RegisterTargets(_, targets) => (true, targets.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sizes, [(false, 200), (false, 1), (true, 200), (true, 200), (true, 1)]);
}
