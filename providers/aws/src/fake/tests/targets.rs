use super::*;
use crate::api::{
    ec2::InstanceState,
    elb::{
        DeleteTargetGroup, DeregisterTargets, DescribeTargetGroups, DescribeTargetHealth,
        ModifyTargetGroup, ModifyTargetGroupAttributes, RegisterTargets, Target,
    },
};

fn target(id: &str, port: u16) -> Target {
    Target { id: id.into(), port, zone: None }
}

fn register(arn: &TargetGroupArn, targets: Vec<Target>) -> RegisterTargets {
    RegisterTargets { arn: arn.clone(), targets }
}

fn deregister(arn: &TargetGroupArn, targets: Vec<Target>) -> DeregisterTargets {
    DeregisterTargets { arn: arn.clone(), targets }
}

/// State and reason of each target.
async fn health(aws: &FakeAws, arn: &TargetGroupArn) -> Vec<String> {
    let all = aws
        .ask(DescribeTargetHealth { arn: arn.clone() })
        .await
        .unwrap();
    all.iter()
        .map(|it| {
            format!("{}:{} {} {}", it.target.id, it.target.port, it.state, it.reason)
                .trim_end()
                .to_owned()
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn target_groups_are_created_as_by_aws() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let base = |name: &str| target_group(&world.vpc, name);
    let check = |change: &dyn Fn(&mut HealthCheck)| {
        let mut request = base("x");
        change(&mut request.health_check);
        request
    };
    let http = |path: &str, matcher: &str| {
        check(&|check| {
            check.protocol = HealthProtocol::Http;
            check.path = Some(path.into());
            check.matcher = Some(matcher.into());
        })
    };
    let cases = [
        ("first", base("one"), "ok"),
        ("the same again", base("one"), "ok"),
        (
            "another port",
            CreateTargetGroup { port: port(1), ..base("one") },
            "DuplicateTargetGroupName",
        ),
        (
            "another check",
            CreateTargetGroup { name: "one".into(), ..http("/", "200") },
            "DuplicateTargetGroupName",
        ),
        ("33 characters", base(&"n".repeat(33)), "ValidationError"),
        ("unknown VPC", target_group(&"vpc-0".into(), "x"), "ValidationError"),
        (
            "interval too short",
            check(&|check| (check.interval, check.timeout) = (4, 2)),
            "ValidationError",
        ),
        ("timeout above interval", check(&|check| check.timeout = 31), "ValidationError"),
        ("threshold too high", check(&|check| check.healthy = 11), "ValidationError"),
        ("path for TCP", check(&|check| check.path = Some("/".into())), "ValidationError"),
        ("path without slash", http("x", "200"), "ValidationError"),
        ("impossible matcher", http("/", "100"), "ValidationError"),
        ("HTTP", http("/healthz", "200-399,404"), "ok"),
    ];
    for (name, request, expected) in cases {
        assert_eq!(code(aws, request).await, expected, "{name}");
    }
    aws.quotas(|quotas| quotas.target_groups = 2);
    assert_eq!(code(aws, base("three")).await, "TooManyTargetGroups");
}

#[tokio::test(start_paused = true)]
async fn target_groups_are_found_by_load_balancer_name_and_arn() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let (balancer, group) = stack(&world).await;
    let lonely = aws
        .ask(super::balancer(&world, "lonely"))
        .await
        .unwrap()
        .arn;
    aws.ask(target_group(&world.vpc, "loose")).await.unwrap();
    let of = |arn: &LoadBalancerArn| DescribeTargetGroups {
        load_balancer: Some(arn.clone()),
        ..Default::default()
    };
    let named =
        |name: &str| DescribeTargetGroups { names: vec![name.into()], ..Default::default() };
    assert_eq!(aws.ask(of(&balancer)).await.unwrap().items[0].arn, group);
    assert!(aws.ask(of(&lonely)).await.unwrap().items.is_empty());
    assert_eq!(code(aws, of(&"arn:none".into())).await, "LoadBalancerNotFound");
    assert_eq!(aws.ask(named("loose")).await.unwrap().items.len(), 1);
    assert_eq!(code(aws, named("nobody")).await, "TargetGroupNotFound");
    let both = DescribeTargetGroups { names: vec!["tg".into()], ..of(&balancer) };
    assert_eq!(code(aws, both).await, "ValidationError");
    assert_eq!(
        aws.ask(DescribeTargetGroups::default())
            .await
            .unwrap()
            .items
            .len(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn one_bad_instance_fails_the_whole_registration() {
    let world = FakeCluster::small(4);
    let (aws, n) = (&world.aws, &world.nodes);
    let (_, group) = stack(&world).await;
    aws.set_state(&n[1], InstanceState::Stopped);
    aws.set_state(&n[2], InstanceState::Pending);
    aws.terminate(&n[3]);
    let far = aws
        .instance(&aws.subnet(&aws.vpc("10.9.0.0/16"), "a", "10.9.0.0/24", &[]))
        .launch();
    let with = |id: &str| register(&group, vec![target(&n[0], 80), target(id, 80)]);
    let cases = [
        ("stopped", with(&n[1]), "InvalidTarget"),
        ("pending", with(&n[2]), "InvalidTarget"),
        ("terminated", with(&n[3]), "InvalidTarget"),
        ("unknown", with("i-0123456789abcdef0"), "InvalidTarget"),
        ("other VPC", with(&far), "InvalidTarget"),
        ("none", register(&group, Vec::new()), "ValidationError"),
        ("201", register(&group, vec![target(&n[0], 80); 201]), "ValidationError"),
        (
            "unknown group",
            register(&"arn:none".into(), vec![target(&n[0], 80)]),
            "TargetGroupNotFound",
        ),
    ];
    for (name, request, expected) in cases {
        assert_eq!(code(aws, request).await, expected, "{name}");
    }
    assert!(aws.targets(&group).is_empty());
    assert_eq!(code(aws, register(&group, vec![target(&n[0], 80)])).await, "ok");
    assert_eq!(code(aws, register(&group, vec![target(&n[0], 80)])).await, "ok");
}

#[tokio::test(start_paused = true)]
async fn a_target_is_an_id_with_a_port_and_goes_through_states() {
    let world = FakeCluster::small(2);
    let (aws, n) = (&world.aws, &world.nodes);
    aws.configure(|knobs| knobs.initial = Duration::from_secs(30));
    let (_, group) = stack(&world).await;
    let (a, b) = (format!("{}:80", n[0]), format!("{}:81", n[0]));
    aws.ask(register(&group, vec![target(&n[0], 80), target(&n[0], 81)]))
        .await
        .unwrap();
    let initial = |name: &str| format!("{name} initial Elb.RegistrationInProgress");
    assert_eq!(health(aws, &group).await, [initial(&a), initial(&b)]);
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(health(aws, &group).await, [format!("{a} healthy"), format!("{b} healthy")]);

    aws.ask(deregister(&group, vec![target(&n[0], 80), target(&n[1], 80)]))
        .await
        .unwrap();
    let draining = format!("{a} draining Target.DeregistrationInProgress");
    assert_eq!(health(aws, &group).await, [draining, format!("{b} healthy")]);
    assert_eq!(aws.targets(&group), [b.clone()]);
    tokio::time::advance(Duration::from_secs(301)).await;
    assert_eq!(health(aws, &group).await, [format!("{b} healthy")]);

    // Registered again while it drains: it begins anew.
    aws.ask(deregister(&group, vec![target(&n[0], 81)]))
        .await
        .unwrap();
    aws.ask(register(&group, vec![target(&n[0], 81)]))
        .await
        .unwrap();
    assert_eq!(health(aws, &group).await, [initial(&b)]);
    aws.set_state(&n[0], InstanceState::Stopped);
    assert_eq!(health(aws, &group).await, [format!("{b} unused Target.InvalidState")]);
}

#[tokio::test(start_paused = true)]
async fn targets_of_a_group_without_listener_are_unused_and_leave_at_once() {
    let world = FakeCluster::small(1);
    let (aws, n) = (&world.aws, &world.nodes);
    let group = aws.ask(target_group(&world.vpc, "tg")).await.unwrap().arn;
    aws.ask(register(&group, vec![target(&n[0], 80)]))
        .await
        .unwrap();
    assert_eq!(health(aws, &group).await, [format!("{}:80 unused Target.NotInUse", n[0])]);
    aws.ask(deregister(&group, vec![target(&n[0], 80)]))
        .await
        .unwrap();
    assert!(health(aws, &group).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn addresses_outside_the_subnets_need_the_zone_all() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    aws.add_cidr(&world.vpc, "10.50.0.0/16");
    let request = CreateTargetGroup {
        target_type: TargetType::Ip,
        ..target_group(&world.vpc, "tg")
    };
    let group = aws.ask(request).await.unwrap().arn;
    let cases = [
        ("10.0.128.77", None, "ok"),
        ("10.0.128.77", Some("all"), "ValidationError"),
        ("10.50.0.1", None, "ValidationError"),
        ("10.50.0.1", Some("all"), "ok"),
        ("8.8.8.8", Some("all"), "InvalidTarget"),
        ("fd00::1", None, "ValidationError"),
        ("i-0123456789abcdef0", None, "ValidationError"),
    ];
    for (id, zone, expected) in cases {
        let target = Target { zone: zone.map(Into::into), ..target(id, 8080) };
        assert_eq!(code(aws, register(&group, vec![target])).await, expected, "{id} {zone:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_group_takes_no_more_and_draining_targets_do_not_count() {
    let world = FakeCluster::small(3);
    let (aws, n) = (&world.aws, &world.nodes);
    let (_, group) = stack(&world).await;
    aws.quotas(|quotas| quotas.targets_per_target_group = 2);
    assert_eq!(code(aws, register(&group, vec![target(&n[0], 80), target(&n[1], 80)])).await, "ok");
    assert_eq!(code(aws, register(&group, vec![target(&n[2], 80)])).await, "TooManyTargets");
    assert_eq!(code(aws, register(&group, vec![target(&n[1], 80)])).await, "ok");
    aws.ask(deregister(&group, vec![target(&n[0], 80)]))
        .await
        .unwrap();
    assert_eq!(code(aws, register(&group, vec![target(&n[2], 80)])).await, "ok");
    aws.quotas(|quotas| quotas.registrations_per_target = 1);
    let other = aws
        .ask(target_group(&world.vpc, "other"))
        .await
        .unwrap()
        .arn;
    assert_eq!(
        code(aws, register(&other, vec![target(&n[1], 80)])).await,
        "TooManyRegistrationsForTargetId"
    );
}

#[tokio::test(start_paused = true)]
async fn a_target_group_in_use_stays_and_a_missing_one_is_deleted() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let (balancer, arn) = stack(&world).await;
    let delete = DeleteTargetGroup { arn: arn.clone() };
    assert_eq!(code(aws, delete.clone()).await, "ResourceInUse");
    aws.ask(crate::api::elb::DeleteLoadBalancer { arn: balancer })
        .await
        .unwrap();
    assert_eq!(code(aws, delete.clone()).await, "ok");
    assert_eq!(code(aws, delete).await, "ok");
    let change = ModifyTargetGroup { arn, health_check: health_check() };
    assert_eq!(code(aws, change).await, "TargetGroupNotFound");
}

#[tokio::test(start_paused = true)]
async fn attributes_depend_on_the_protocol() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let make = async |name: &str, protocol: ElbProtocol, target_type: TargetType| {
        let request = CreateTargetGroup { protocol, target_type, ..target_group(&world.vpc, name) };
        aws.ask(request).await.unwrap().arn
    };
    let tcp = make("tcp", ElbProtocol::Tcp, TargetType::Instance).await;
    let ip = make("ip", ElbProtocol::Tcp, TargetType::Ip).await;
    let udp = make("udp", ElbProtocol::Udp, TargetType::Ip).await;
    let tls = make("tls", ElbProtocol::Tls, TargetType::Instance).await;
    let keeps =
        |arn: &TargetGroupArn| aws.attributes(arn)["preserve_client_ip.enabled"].to_string();
    assert_eq!([&tcp, &ip, &udp].map(keeps), ["true", "false", "true"]);
    let set = |arn: &TargetGroupArn, key: &str, value: &str| ModifyTargetGroupAttributes {
        arn: arn.clone(),
        attributes: builders::tags_of(&[(key, value)]),
    };
    let cases = [
        (set(&tcp, "preserve_client_ip.enabled", "false"), "ok"),
        (set(&udp, "preserve_client_ip.enabled", "false"), "InvalidConfigurationRequest"),
        (set(&tls, "stickiness.enabled", "true"), "InvalidConfigurationRequest"),
        (set(&tcp, "stickiness.enabled", "true"), "ok"),
        (set(&tcp, "slow_start.duration_seconds", "30"), "ValidationError"),
        (set(&tcp, "deregistration_delay.timeout_seconds", "3601"), "ValidationError"),
        (set(&tcp, "proxy_protocol_v2.enabled", "on"), "ValidationError"),
    ];
    for (request, expected) in cases {
        assert_eq!(code(aws, request.clone()).await, expected, "{request:?}");
    }
}
