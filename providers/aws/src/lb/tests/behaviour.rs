//! What balancers do beside being in line: troubles of targets, names that are taken, waits,
//! addresses as targets.

use std::{sync::Arc, time::Duration};

use ccm_core::{
    k8s::{Taint, TaintEffect},
    provider::{
        Backends, ErrorKind, LbSpec, LoadBalancers, Progress, ReadMode, ServiceInterpretation,
    },
};

use super::fixture::{Fixture, fresh, published, service, slice, with};
use crate::{
    api::{
        Action, Tags,
        ec2::InstanceState,
        elb::{LoadBalancerState, TargetType},
    },
    config::{Limits, Rate, Settings},
};

fn pending(outcome: &ccm_core::provider::LbOutcome) -> Duration {
    match outcome.result {
        Ok(Progress::Pending { after, .. }) => after,
        _ => panic!("{outcome:?}"),
    }
}

// EN1
#[tokio::test(start_paused = true)]
async fn a_service_gets_a_host_name_at_once() {
    let rig = Fixture::new(2);
    rig.aws
        .configure(|knobs| knobs.provisioning = Duration::from_secs(120));
    let outcome = rig
        .ensure(&fresh(&service("web", &[80])), ReadMode::Fresh)
        .await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    let status = outcome.status.unwrap();
    assert_eq!(status.ingress.len(), 1);
    assert_eq!(status.ingress[0].hostname.as_deref(), Some(&*rig.aws.load_balancers()[0].dns_name));
    assert_eq!((status.ingress[0].ip, &status.ingress[0].ip_mode), (None, &None));
    assert_eq!(rig.aws.load_balancers()[0].security_groups, []);
}

// EN1
#[tokio::test(start_paused = true)]
async fn a_managed_group_is_the_only_one_of_the_balancer() {
    let rig = Fixture::with(2, Settings { managed_security_groups: true, ..Settings::default() });
    rig.settle(&service("web", &[80])).await;
    assert_eq!(rig.aws.load_balancers()[0].security_groups.len(), 1);
}

// EN2
#[tokio::test(start_paused = true)]
async fn nodes_come_and_go_and_a_health_check_changes_in_place() {
    let mut rig = Fixture::new(3);
    let web = service("web", &[80]);
    rig.settle(&web).await;
    let arn = rig.aws.target_groups()[0].arn.clone();
    assert_eq!(rig.aws.targets(&arn).len(), 3);
    let third = rig.nodes.pop().unwrap();
    rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
    assert_eq!(rig.aws.targets(&arn).len(), 2);
    rig.nodes.push(third);
    rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
    assert_eq!(rig.aws.targets(&arn).len(), 3);
    let web = with(web, "healthcheck-protocol", "http");
    rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
    assert_eq!(rig.aws.target_groups().len(), 1);
    assert_eq!(rig.aws.target_groups()[0].arn, arn, "the same group");
    let balancer = rig.aws.load_balancers()[0].arn.clone();
    assert_eq!(rig.aws.listeners(&balancer).len(), 1);
}

// OU6
#[tokio::test(start_paused = true)]
async fn one_bad_instance_among_200_keeps_out_nobody_else() {
    let rig = Fixture::new(200);
    rig.warm().await;
    // It stopped after it was last looked at.
    rig.aws
        .set_state(&rig.world.nodes[77], InstanceState::Stopped);
    let outcome = rig
        .ensure(&fresh(&service("web", &[80])), ReadMode::Fresh)
        .await;
    assert!(pending(&outcome) <= Duration::from_secs(300));
    assert!(outcome.status.is_some(), "what is there is published all the same");
    let arn = rig.aws.target_groups()[0].arn.clone();
    assert_eq!(rig.aws.targets(&arn).len(), 199);
    assert_eq!(rig.reasons(), ["TargetsRefused"]);
    assert!(rig.events.0.lock()[0].2.contains(&*rig.world.nodes[77]));
    assert!(
        rig.aws.calls(Action::RegisterTargets) <= 17,
        "{}",
        rig.aws.calls(Action::RegisterTargets)
    );
    let balancer = rig.aws.load_balancers()[0].arn.clone();
    assert_eq!(rig.aws.listeners(&balancer).len(), 1, "the rest is done");
    // It runs again: the next try has only it to register.
    rig.aws
        .set_state(&rig.world.nodes[77], InstanceState::Running);
    rig.aws.reset_calls();
    let op = rig.op().with_pending_for(Duration::from_secs(15));
    let outcome = rig
        .balancers
        .ensure(&op, &rig.spec(&service("web", &[80])), ReadMode::Fresh)
        .await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert_eq!(rig.aws.calls(Action::RegisterTargets), 1);
    assert_eq!(rig.aws.calls(Action::DescribeTargetHealth), 0, "and nothing is read again");
    assert_eq!(rig.aws.targets(&arn).len(), 200);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_known_to_be_stopped_is_not_registered_and_looked_at_again() {
    let rig = Fixture::new(3);
    rig.aws
        .set_state(&rig.world.nodes[1], InstanceState::Stopped);
    rig.warm().await;
    let web = service("web", &[80]);
    assert_eq!(pending(&rig.ensure(&web, ReadMode::Fresh).await), Duration::from_secs(15));
    assert_eq!(rig.reasons(), Vec::<&str>::new());
    let arn = rig.aws.target_groups()[0].arn.clone();
    assert_eq!(rig.aws.targets(&arn).len(), 2);
    assert!(!rig.plan(&web).await.unwrap().is_empty(), "it is still to be done");
    rig.aws
        .set_state(&rig.world.nodes[1], InstanceState::Running);
    tokio::time::advance(Duration::from_secs(31)).await;
    assert!(matches!(rig.update(&web).await.result, Ok(Progress::Done)));
    assert_eq!(rig.aws.targets(&arn).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_instance_that_is_no_target_costs_one_look_at_it_in_five_minutes_until_it_runs() {
    let rig = Fixture::new(3);
    rig.aws
        .set_state(&rig.world.nodes[1], InstanceState::Stopped);
    let web = service("web", &[80, 443]);
    let mut waited = Duration::ZERO;
    while waited < Duration::from_secs(3000) {
        let op = rig.op().with_pending_for(waited);
        let after = pending(
            &rig.balancers
                .ensure(&op, &rig.spec(&web), ReadMode::Fresh)
                .await,
        );
        if waited.is_zero() {
            rig.aws.reset_calls();
        }
        tokio::time::sleep(after).await;
        waited += after;
    }
    let looks = rig.aws.calls(Action::DescribeInstances);
    assert_eq!(
        rig.aws.requests(),
        looks,
        "nothing of the balancer is read: {:?}",
        rig.aws.actions()
    );
    assert!((10..20).contains(&looks), "{looks}");
    // Everything is compared when that is due.
    let op = rig.op().with_pending_for(Duration::from_secs(3601));
    tokio::time::sleep(Duration::from_secs(700)).await;
    pending(
        &rig.balancers
            .ensure(&op, &rig.spec(&web), ReadMode::Fresh)
            .await,
    );
    assert_eq!(rig.aws.calls(Action::DescribeTargetHealth), 2);
    // Another change of the Service does not wait, and neither does an instance that runs again.
    let more = service("web", &[80, 443, 8080]);
    pending(
        &rig.balancers
            .ensure(&op, &rig.spec(&more), ReadMode::Fresh)
            .await,
    );
    assert_eq!(rig.aws.target_groups().len(), 3);
    rig.aws
        .set_state(&rig.world.nodes[1], InstanceState::Running);
    tokio::time::sleep(Duration::from_secs(31)).await;
    let outcome = rig
        .balancers
        .ensure(&op, &rig.spec(&more), ReadMode::Fresh)
        .await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    assert!(
        rig.aws
            .target_groups()
            .iter()
            .all(|group| rig.aws.targets(&group.arn).len() == 3)
    );
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_stopped_stays_with_its_rules_and_one_that_is_gone_goes() {
    let settings = Settings { managed_security_groups: true, ..Settings::default() };
    for state in [InstanceState::Stopping, InstanceState::Stopped] {
        let mut rig = Fixture::with(3, settings.clone());
        let web = service("web", &[80]);
        rig.settle(&web).await;
        let arn = rig.aws.target_groups()[0].arn.clone();
        rig.aws.set_state(&rig.world.nodes[1], state);
        rig.store
            .get_many(&rig.op(), &rig.world.nodes, Duration::ZERO)
            .await
            .unwrap();
        rig.add_node();
        rig.aws.reset_calls();
        assert!(matches!(rig.update(&web).await.result, Ok(Progress::Done)), "{state:?}");
        assert_eq!(rig.aws.targets(&arn).len(), 4, "{state:?}");
        assert!(
            matches!(rig.ensure(&web, ReadMode::Fresh).await.result, Ok(Progress::Done)),
            "{state:?}"
        );
        assert_eq!(rig.aws.targets(&arn).len(), 4, "{state:?}");
        assert_eq!(rig.aws.writes(), 1, "only the new node is registered");
    }
    for state in [InstanceState::ShuttingDown, InstanceState::Terminated] {
        let mut rig = Fixture::with(3, settings.clone());
        let web = service("web", &[80]);
        rig.settle(&web).await;
        let arn = rig.aws.target_groups()[0].arn.clone();
        rig.aws.set_state(&rig.world.nodes[1], state);
        rig.store
            .get_many(&rig.op(), &rig.world.nodes, Duration::ZERO)
            .await
            .unwrap();
        rig.add_node();
        assert!(matches!(rig.update(&web).await.result, Ok(Progress::Done)), "{state:?}");
        let targets = rig.aws.targets(&arn);
        assert_eq!(targets.len(), 3, "{state:?}: {targets:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_old_word_that_an_instance_is_stopped_is_not_believed_without_a_new_one() {
    let mut rig = Fixture::new(2);
    rig.aws
        .set_state(&rig.world.nodes[1], InstanceState::Stopped);
    rig.warm().await;
    let web = service("web", &[80]);
    pending(&rig.ensure(&web, ReadMode::Fresh).await);
    rig.aws
        .set_state(&rig.world.nodes[1], InstanceState::Running);
    tokio::time::advance(Duration::from_secs(60)).await;
    rig.aws
        .fail_always(Action::DescribeInstances, "InternalError");
    assert!(matches!(rig.update(&web).await.result, Ok(Progress::Done)));
    let arn = rig.aws.target_groups()[0].arn.clone();
    assert_eq!(rig.aws.targets(&arn).len(), 2, "AWS takes it, so it runs");
    rig.nodes.pop();
    assert!(matches!(rig.update(&web).await.result, Ok(Progress::Done)));
    assert_eq!(rig.aws.targets(&arn).len(), 1, "a node that left goes");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_about_to_go_or_is_no_instance_is_no_target() {
    let mut rig = Fixture::new(3);
    let mut leaving = (*rig.nodes[0]).clone();
    leaving.taints = [Taint {
        key: "karpenter.sh/disrupted".into(),
        value: "".into(),
        effect: TaintEffect::NoSchedule,
    }]
    .into();
    rig.nodes[0] = Arc::new(leaving);
    let mut fargate = (*rig.nodes[1]).clone();
    fargate.provider_id = Some("aws:///us-west-2a/fargate-ip-10-0-0-9.ec2.internal".into());
    rig.nodes.push(Arc::new(fargate));
    rig.settle(&service("web", &[80])).await;
    let arn = rig.aws.target_groups()[0].arn.clone();
    assert_eq!(rig.aws.targets(&arn).len(), 2);
}

// TG4
#[tokio::test(start_paused = true)]
async fn a_full_group_exchanges_targets_and_says_when_there_is_no_room() {
    let mut rig = Fixture::new(5);
    rig.aws.quotas(|quotas| quotas.targets_per_target_group = 4);
    let fifth = rig.nodes.pop().unwrap();
    let web = service("web", &[80]);
    rig.settle(&web).await;
    let arn = rig.aws.target_groups()[0].arn.clone();
    let first = rig.nodes.remove(0);
    rig.nodes.push(fifth);
    assert!(matches!(rig.update(&web).await.result, Ok(Progress::Done)));
    assert_eq!(rig.aws.targets(&arn).len(), 4);
    rig.nodes.push(first);
    let error = rig.update(&web).await.result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    assert!(error.to_string().starts_with("1 targets do not fit"), "{error}");
    assert_eq!(rig.aws.targets(&arn).len(), 4, "as many as fit are there");
}

// OU7
#[tokio::test(start_paused = true)]
async fn a_throttled_registration_is_sent_again_in_order() {
    let mut rig = Fixture::new(3);
    let web = service("web", &[80]);
    rig.settle(&web).await;
    rig.nodes.remove(0);
    rig.add_node();
    rig.warm().await;
    rig.aws.throttle(Action::RegisterTargets, 2);
    rig.aws.reset_calls();
    assert!(matches!(rig.update(&web).await.result, Ok(Progress::Done)));
    let registers = [Action::RegisterTargets; 3];
    assert_eq!(rig.aws.actions(), [[Action::DeregisterTargets].as_slice(), &registers].concat());
}

// OU9
#[tokio::test(start_paused = true)]
async fn a_foreign_balancer_of_the_same_name_is_an_error_and_stays_as_it_is() {
    let tables: [&[(&str, &str)]; 4] = [
        &[],
        &[("kubernetes.io/cluster/other", "owned")],
        &[("kubernetes.io/cluster/test", "owned"), ("kubernetes.io/service-name", "default/other")],
        &[("elbv2.k8s.aws/cluster", "test")],
    ];
    for tags in tables {
        let rig = Fixture::new(1);
        let web = service("web", &[80]);
        let name = crate::lb::names::load_balancer(&web.uid);
        foreign(&rig, &name, tags).await;
        let before = rig.aws.snapshot();
        let error = rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::InvalidInput, Some("LoadBalancerNotOwned")),
            "{error}"
        );
        rig.remove(&web).await;
        assert!(rig.aws.snapshot() == before, "{tags:?}\n{}", before.diff(&rig.aws.snapshot()));
    }
}

pub(super) async fn foreign(rig: &Fixture, name: &str, tags: &[(&str, &str)]) {
    let subnet = crate::api::elb::SubnetMapping {
        subnet: rig.world.public[0].clone(),
        allocation: None,
        private_ipv4: None,
        ipv6: None,
        source_nat_prefix: None,
    };
    let tags: Tags = tags
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect();
    let create = crate::api::elb::CreateLoadBalancer {
        name: name.into(),
        scheme: crate::api::elb::Scheme::InternetFacing,
        ip_address_type: crate::api::elb::IpAddressType::Ipv4,
        subnets: vec![subnet],
        security_groups: Vec::new(),
        ipv6_source_nat: None,
        tags,
    };
    rig.aws.ask(create).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_was_named_before_is_kept_whatever_name_is_asked_for_now() {
    let rig = Fixture::new(1);
    let web = with(service("web", &[80]), "name", "first");
    let status = rig.settle(&web).await;
    let rig = rig.restart();
    let web = published(&with(web, "name", "second"), &status);
    assert_eq!(rig.settle(&web).await, status);
    let names: Vec<_> = rig
        .aws
        .load_balancers()
        .into_iter()
        .map(|balancer| balancer.name)
        .collect();
    assert_eq!(names, [Box::from("first")]);
    let rig = rig.restart();
    rig.remove(&web).await;
    assert_eq!(rig.aws.load_balancers(), []);
}

#[tokio::test(start_paused = true)]
async fn two_services_that_ask_for_one_name_do_not_share_a_balancer() {
    let rig = Fixture::new(1);
    rig.settle(&with(service("a", &[80]), "name", "shared"))
        .await;
    let error = rig
        .ensure(&with(service("b", &[81]), "name", "shared"), ReadMode::Fresh)
        .await
        .result
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("it belongs to service default/a"),
        "{error}"
    );
    rig.remove(&with(service("b", &[81]), "name", "shared"))
        .await;
    assert_eq!(rig.aws.load_balancers().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_balancer_is_an_error_with_its_reason() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    rig.settle(&web).await;
    let arn = rig.aws.load_balancers()[0].arn.clone();
    rig.aws
        .set_balancer_state(&arn, LoadBalancerState::Failed, "out of addresses");
    let rig = rig.restart();
    let error = rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
    assert!(error.to_string().contains("out of addresses"), "{error}");
    assert_eq!(error.reason(), Some("LoadBalancerFailed"));
}

#[tokio::test(start_paused = true)]
async fn what_was_just_made_may_not_show_yet() {
    for lag in [1, 5] {
        let rig =
            Fixture::with(2, Settings { managed_security_groups: true, ..Settings::default() });
        let web = with(
            service("web", &[80, 443]),
            "listener-attributes.TCP-80",
            "tcp.idle_timeout.seconds=400",
        );
        rig.aws.configure(|knobs| {
            (knobs.describe_lag, knobs.change_lag) =
                (Duration::from_secs(lag), Duration::from_secs(lag));
        });
        rig.settle(&web).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        rig.aws.configure(|knobs| {
            (knobs.describe_lag, knobs.change_lag) = (Duration::ZERO, Duration::ZERO);
        });
        let rig = rig.restart();
        assert_eq!(
            rig.plan(&published(&web, &rig.settle(&web).await))
                .await
                .unwrap(),
            []
        );
        assert_eq!(rig.aws.load_balancers().len(), 1);
        assert_eq!(rig.aws.target_groups().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_used_up_is_a_wait_and_nothing_is_read_again() {
    let slow = Rate { per_second: 0.1, burst: 2 };
    let limits = Limits { elb_write: slow, ..Limits::default() };
    let rig = Fixture::limited(2, &limits);
    let web = service("web", &[80, 443]);
    let outcome = rig.ensure(&fresh(&web), ReadMode::Fresh).await;
    let after = pending(&outcome);
    assert!(after > Duration::ZERO);
    let reads = rig.aws.requests() - rig.aws.writes();
    rig.settle(&web).await;
    assert_eq!(rig.aws.calls(Action::CreateLoadBalancer), 1);
    assert_eq!(rig.aws.calls(Action::CreateTargetGroup), 2);
    assert_eq!(
        rig.aws.calls(Action::DescribeLoadBalancers),
        2,
        "once for each of the two beginnings, after {reads}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_ec2_that_is_used_up_is_a_wait_and_what_is_there_is_not_read_again() {
    let slow = Rate { per_second: 0.1, burst: 1 };
    let rig = Fixture::limited(2, &Limits { ec2_read: slow, ..Limits::default() });
    let web = service("web", &[80]);
    let after = pending(&rig.ensure(&web, ReadMode::Fresh).await);
    assert!(after > Duration::ZERO);
    let reads = rig.aws.calls(Action::DescribeLoadBalancers);
    let op = rig.op().with_pending_for(after);
    pending(
        &rig.balancers
            .ensure(&op, &rig.spec(&web), ReadMode::Fresh)
            .await,
    );
    assert_eq!(rig.aws.calls(Action::DescribeLoadBalancers), reads);
}

#[tokio::test(start_paused = true)]
async fn a_budget_of_reads_that_is_used_up_is_a_wait_of_each_operation() {
    let rig = Fixture::limited(
        2,
        &Limits {
            elb_read: Rate { per_second: 0.1, burst: 1 },
            ..Limits::default()
        },
    );
    let web = service("web", &[80]);
    assert!(pending(&rig.ensure(&web, ReadMode::Fresh).await) > Duration::ZERO);
    assert!(pending(&rig.update(&web).await) > Duration::ZERO);
    assert!(matches!(rig.delete(&web).await, Ok(Progress::Pending { .. })));
    let error = rig.plan(&web).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "AWS did not throttle: {error}");
    assert_eq!(rig.aws.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn ready_endpoints_are_targets_and_those_outside_the_vpc_are_of_any_zone() {
    let rig = Fixture::new(1);
    let web = with(service("web", &[80]), "nlb-target-type", "ip");
    let ServiceInterpretation::Valid { backends, .. } = rig.balancers.interpret(&web) else {
        panic!("it is ours")
    };
    assert_eq!(backends, ccm_core::provider::BackendKind::Endpoints);
    let slices = vec![slice(&[
        ("10.0.1.1", true, false),
        ("10.0.1.2", false, false),
        ("10.0.1.3", true, true),
        ("192.168.9.9", true, false),
        ("2001:db8::1", true, false),
    ])];
    let spec = LbSpec { backends: Backends::Endpoints(slices), ..rig.spec(&web) };
    let outcome = rig
        .balancers
        .ensure(&rig.op(), &spec, ReadMode::Fresh)
        .await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    let group = rig.aws.target_groups()[0].clone();
    assert_eq!(group.target_type, Some(TargetType::Ip));
    let mut targets = rig.aws.targets(&group.arn);
    targets.sort();
    assert_eq!(targets.len(), 2, "{targets:?}");
    let registered = rig.aws.log().into_iter().find_map(|call| match call {
        crate::api::Call::RegisterTargets(register) => Some(register.targets),
        _ => None,
    });
    let zones: Vec<_> = registered
        .unwrap()
        .into_iter()
        .map(|target| (target.id, target.port, target.zone))
        .collect();
    assert_eq!(
        zones,
        [("10.0.1.1".into(), 8080, None), ("192.168.9.9".into(), 8080, Some("all".into()))]
    );
    // Nothing is to be done when the same endpoints come again, and nodes do not matter.
    rig.aws.reset_calls();
    assert!(matches!(
        rig.balancers.update_backends(&rig.op(), &spec).await.result,
        Ok(Progress::Done)
    ));
    assert_eq!(rig.aws.actions(), []);
}

#[tokio::test(start_paused = true)]
async fn an_update_of_what_is_not_there_asks_to_make_it() {
    let rig = Fixture::new(1);
    assert_eq!(
        rig.update(&service("web", &[80]))
            .await
            .result
            .unwrap_err()
            .kind(),
        ErrorKind::NotFound
    );
}

// TG5
#[tokio::test(start_paused = true)]
async fn what_policy_does_not_let_us_read_is_told_and_left_alone() {
    let rig = Fixture::new(1);
    let web =
        with(service("web", &[80]), "target-group-attributes", "proxy_protocol_v2.enabled=true");
    rig.settle(&web).await;
    let rig = rig.restart();
    rig.aws.deny(Action::DescribeTargetGroupAttributes);
    rig.aws.reset_calls();
    assert!(matches!(rig.ensure(&web, ReadMode::Fresh).await.result, Ok(Progress::Done)));
    assert_eq!(rig.reasons(), ["AWSPermissionDenied"]);
    assert_eq!(rig.aws.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_invalid_credentials_do_not_let_us_read_is_read_again() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    rig.settle(&web).await;
    let changed = with(web, "target-group-attributes", "proxy_protocol_v2.enabled=true");
    let rig = rig.restart();
    rig.aws
        .fail_next(Action::DescribeTargetGroupAttributes, "ExpiredToken");
    let error = rig
        .ensure(&changed, ReadMode::Cached)
        .await
        .result
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(rig.aws.calls(Action::ModifyTargetGroupAttributes), 0);
    rig.settle(&changed).await;
    assert_eq!(rig.aws.calls(Action::ModifyTargetGroupAttributes), 1);
}

// TG5
#[tokio::test(start_paused = true)]
async fn what_policy_does_not_let_us_read_is_asked_once_an_hour_and_told_each_service_once() {
    let rig = Fixture::new(1);
    let services = [service("web", &[80, 443]), service("web2", &[80])];
    rig.aws.deny(Action::DescribeTargetGroupAttributes);
    for _ in 0..3 {
        for web in &services {
            rig.settle(web).await;
            let changed = with(web.clone(), "cross-zone-load-balancing-enabled", "true");
            assert!(matches!(
                rig.ensure(&changed, ReadMode::Cached).await.result,
                Ok(Progress::Done)
            ));
        }
    }
    assert_eq!(rig.aws.calls(Action::DescribeTargetGroupAttributes), 1);
    assert_eq!(rig.reasons(), ["AWSPermissionDenied"; 2]);
    rig.aws.clear_faults();
    tokio::time::advance(Duration::from_secs(3601)).await;
    rig.settle(&services[0]).await;
    assert_eq!(
        rig.aws.calls(Action::DescribeTargetGroupAttributes),
        3,
        "the policy may be another one now"
    );
    assert_eq!(rig.reasons().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn certificates_for_sni_are_added_and_removed() {
    let rig = Fixture::new(1);
    let certificates: Vec<_> = (0..4).map(|_| rig.aws.certificate().to_string()).collect();
    let web =
        |certificates: &[String]| with(service("web", &[443]), "ssl-cert", &certificates.join(","));
    let have = async || {
        let arn = rig.aws.listeners(&rig.aws.load_balancers()[0].arn)[0]
            .arn
            .clone();
        rig.aws
            .ask(crate::api::elb::DescribeListenerCertificates { arn })
            .await
            .unwrap()
            .items
            .len()
    };
    rig.settle(&web(&certificates)).await;
    assert_eq!(have().await, 4);
    rig.settle(&web(&certificates[..2])).await;
    assert_eq!(have().await, 2);
    rig.settle(&web(&certificates)).await;
    assert_eq!(have().await, 4);
}

#[tokio::test(start_paused = true)]
async fn a_health_check_that_aws_does_not_change_costs_another_group() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    rig.settle(&web).await;
    let before = rig.aws.target_groups()[0].arn.clone();
    rig.aws
        .fail_next(Action::ModifyTargetGroup, "InvalidConfigurationRequest");
    let outcome = rig
        .ensure(&with(web, "healthcheck-interval", "10"), ReadMode::Cached)
        .await;
    assert!(matches!(outcome.result, Ok(Progress::Done)), "{outcome:?}");
    let groups = rig.aws.target_groups();
    assert_eq!(groups.len(), 1);
    assert_ne!(groups[0].arn, before);
    assert_eq!(rig.aws.targets(&groups[0].arn).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn drift_is_found_and_mended() {
    let rig = Fixture::new(2);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let end = rig.aws.snapshot();
    let (balancer, group) =
        (rig.aws.load_balancers()[0].clone(), rig.aws.target_groups()[0].clone());
    let listener = rig.aws.listeners(&balancer.arn)[0].arn.clone();
    rig.aws
        .ask(crate::api::elb::DeleteListener { arn: listener })
        .await
        .unwrap();
    let targets = vec![crate::api::elb::Target {
        id: rig.world.nodes[0].as_str().into(),
        port: 30080,
        zone: None,
    }];
    rig.aws
        .ask(crate::api::elb::DeregisterTargets { arn: group.arn, targets })
        .await
        .unwrap();
    let attributes = [("load_balancing.cross_zone.enabled".into(), "true".into())].into();
    rig.aws
        .ask(crate::api::elb::ModifyLoadBalancerAttributes { arn: balancer.arn, attributes })
        .await
        .unwrap();
    let changes = rig.plan(&web).await.unwrap();
    let operations: Vec<_> = changes.iter().map(|change| &*change.operation).collect();
    assert_eq!(operations, ["ModifyLoadBalancerAttributes", "RegisterTargets", "CreateListener"]);
    assert!(matches!(rig.ensure(&web, ReadMode::Fresh).await.result, Ok(Progress::Done)));
    assert!(rig.aws.snapshot() == end, "{}", end.diff(&rig.aws.snapshot()));
    assert_eq!(rig.plan(&web).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_balancer_removed_by_hand_is_made_again_and_its_name_published() {
    let rig = Fixture::new(2);
    let web = service("web", &[80]);
    let web = published(&web, &rig.settle(&web).await);
    let end = rig.aws.snapshot();
    let arn = rig.aws.load_balancers()[0].arn.clone();
    rig.aws
        .ask(crate::api::elb::DeleteLoadBalancer { arn })
        .await
        .unwrap();
    assert!(!rig.plan(&web).await.unwrap().is_empty());
    rig.settle(&web).await;
    assert!(rig.aws.snapshot() == end, "{}", end.diff(&rig.aws.snapshot()));
}

/// Rules that were looked after along with the members of a changed Service are not taken for those
/// that it wants.
#[tokio::test(start_paused = true)]
async fn sources_that_change_together_with_members_are_closed_by_the_next_ensure() {
    let mut rig = Fixture::new(1);
    let mut web = service("web", &[80]);
    web.source_ranges = Box::new(["198.51.100.0/24".into(), "203.0.113.0/24".into()]);
    web = published(&web, &rig.settle(&web).await);
    web.source_ranges = Box::new(["203.0.113.0/24".into()]);
    rig.add_node();
    let updated = rig.update(&web).await;
    assert_eq!(updated.result.unwrap(), Progress::Done);
    rig.ensure(&web, ReadMode::Cached).await.result.unwrap();
    let rules = rig.aws.snapshot().to_string();
    assert!(rules.contains("203.0.113.0/24") && !rules.contains("198.51.100.0/24"), "{rules}");
}
