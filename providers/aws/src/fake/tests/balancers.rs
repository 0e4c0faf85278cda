use super::*;
use crate::api::{
    AllocationId, ListenerArn,
    elb::{
        AddElbTags, DeleteListener, DeleteLoadBalancer, DescribeCapacityReservation,
        DescribeElbTags, DescribeLoadBalancerAttributes, DescribeLoadBalancers, LoadBalancerState,
        ModifyCapacityReservation, ModifyLoadBalancerAttributes, RemoveElbTags, SetIpAddressType,
        SetSecurityGroups, SetSubnets, SourceNatPrefix,
    },
};

fn attributes(pairs: &[(&str, &str)]) -> crate::api::elb::Attributes {
    builders::tags_of(pairs)
}

fn set_attributes(arn: &LoadBalancerArn, key: &str, value: &str) -> ModifyLoadBalancerAttributes {
    ModifyLoadBalancerAttributes { arn: arn.clone(), attributes: attributes(&[(key, value)]) }
}

#[tokio::test(start_paused = true)]
async fn load_balancers_are_created_as_by_aws() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let base = |name: &str| balancer(&world, name);
    let in_subnets = |subnets: &[&SubnetId]| CreateLoadBalancer {
        subnets: subnets.iter().map(|id| mapping(id)).collect(),
        ..base("x")
    };
    let twin = aws.public_subnet(&world.vpc, "a", "10.0.64.0/20", &[]);
    let tiny = aws.public_subnet(&world.vpc, "b", "10.0.80.0/28", &[]);
    aws.set_free_ips(&tiny, 7);
    let local = aws.public_subnet(&world.vpc, "us-west-2-lax-1a", "10.0.96.0/20", &[]);
    let lonely = aws.subnet(&aws.vpc("10.9.0.0/16"), "a", "10.9.0.0/24", &[]);
    let internal = CreateLoadBalancer { scheme: Scheme::Internal, ..in_subnets(&[&lonely]) };
    let group = |id: &str| CreateLoadBalancer { security_groups: vec![id.into()], ..base("x") };
    let p = &world.public;
    let cases = [
        ("first", base("one"), "ok"),
        ("the same again", base("one"), "ok"),
        (
            "another scheme",
            CreateLoadBalancer { scheme: Scheme::Internal, ..base("one") },
            "DuplicateLoadBalancerName",
        ),
        (
            "other subnets",
            CreateLoadBalancer { name: "one".into(), ..in_subnets(&[&p[0]]) },
            "DuplicateLoadBalancerName",
        ),
        ("33 characters", base(&"n".repeat(33)), "ValidationError"),
        ("32 characters", base(&"n".repeat(32)), "ok"),
        ("hyphen at the end", base("one-"), "ValidationError"),
        ("begin of internal ones", base("internal-one"), "ValidationError"),
        ("no subnet", in_subnets(&[]), "ValidationError"),
        ("unknown subnet", in_subnets(&[&p[0], &"subnet-0".into()]), "SubnetNotFound"),
        ("two subnets of a zone", in_subnets(&[&p[0], &twin]), "InvalidConfigurationRequest"),
        ("seven free addresses", in_subnets(&[&p[0], &tiny]), "InvalidSubnet"),
        ("zone and local zone", in_subnets(&[&p[0], &local]), "InvalidSubnet"),
        ("no internet gateway", in_subnets(&[&lonely]), "InvalidSubnet"),
        ("no need of one", CreateLoadBalancer { name: "inner".into(), ..internal }, "ok"),
        (
            "dualstack without IPv6",
            CreateLoadBalancer { ip_address_type: IpAddressType::Dualstack, ..base("x") },
            "InvalidSubnet",
        ),
        ("unknown group", group("sg-0"), "InvalidSecurityGroup"),
        (
            "known group",
            CreateLoadBalancer { name: "grouped".into(), ..group(&world.node_group) },
            "ok",
        ),
        (
            "source NAT without IPv6",
            CreateLoadBalancer { ipv6_source_nat: Some(true), ..base("x") },
            "InvalidConfigurationRequest",
        ),
        (
            "reserved tag",
            CreateLoadBalancer { tags: tags(&[("aws:a", "")]), ..base("x") },
            "ValidationError",
        ),
    ];
    for (name, request, expected) in cases {
        assert_eq!(code(aws, request).await, expected, "{name}");
    }
    aws.quotas(|quotas| quotas.load_balancers = 4);
    assert_eq!(code(aws, base("five")).await, "TooManyLoadBalancers");
}

#[tokio::test(start_paused = true)]
async fn a_creation_may_answer_with_an_object_of_other_tags() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let first = aws.ask(balancer(&world, "lb")).await.unwrap();
    let other = CreateLoadBalancer { tags: tags(&[("owner", "me")]), ..balancer(&world, "lb") };
    assert_eq!(aws.ask(other.clone()).await.unwrap().arn, first.arn);
    assert_eq!(aws.tags(&first.arn), tags(&[("a", "1")]));
    aws.configure(|knobs| knobs.tags_are_settings = true);
    assert_eq!(code(aws, other).await, "DuplicateLoadBalancerName");
}

#[tokio::test(start_paused = true)]
async fn addresses_are_given_once_and_come_back() {
    let world = FakeCluster::small(1);
    let aws = &world.aws;
    let eip = aws.elastic_ip();
    let with = |name: &str, allocation: &AllocationId| {
        let mut request = balancer(&world, name);
        request.subnets[0].allocation = Some(allocation.clone());
        request
    };
    assert_eq!(code(aws, with("a", &"eipalloc-0".into())).await, "AllocationIdNotFound");
    let arn = aws.ask(with("a", &eip)).await.unwrap().arn;
    assert_eq!(aws.load_balancers()[0].zones[0].allocations, [eip.clone()]);
    assert_eq!(code(aws, with("b", &eip)).await, "ResourceInUse");
    aws.ask(DeleteLoadBalancer { arn }).await.unwrap();
    assert!(!aws.address(&eip).unwrap().1);
    let internal = |ip: &str, allocation: Option<AllocationId>| {
        let subnets = vec![SubnetMapping {
            allocation,
            private_ipv4: Some(ip.parse().unwrap()),
            ..mapping(&world.private[0])
        }];
        CreateLoadBalancer {
            scheme: Scheme::Internal,
            subnets,
            ..balancer(&world, "inner")
        }
    };
    assert_eq!(code(aws, internal("10.0.128.50", Some(eip))).await, "InvalidConfigurationRequest");
    assert_eq!(code(aws, internal("10.0.1.50", None)).await, "InvalidConfigurationRequest");
    assert_eq!(code(aws, internal("10.0.128.4", None)).await, "ResourceInUse");
    assert_eq!(code(aws, internal("10.0.128.50", None)).await, "ok");
}

#[tokio::test(start_paused = true)]
async fn describes_by_name_fail_as_a_whole_and_lists_come_in_pages() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    for name in ["a", "b", "c"] {
        aws.ask(balancer(&world, name)).await.unwrap();
    }
    let named = |names: &[&str]| DescribeLoadBalancers {
        names: names.iter().map(|name| (*name).into()).collect(),
        ..Default::default()
    };
    assert_eq!(aws.ask(named(&["c", "a"])).await.unwrap().items.len(), 2);
    assert_eq!(code(aws, named(&["a", "nobody"])).await, "LoadBalancerNotFound");
    assert_eq!(code(aws, named(&["a"; 21])).await, "ValidationError");
    aws.configure(|knobs| knobs.page_size = 2);
    let first = aws.ask(DescribeLoadBalancers::default()).await.unwrap();
    assert_eq!(first.items.len(), 2);
    let second = DescribeLoadBalancers { token: first.next, ..Default::default() };
    assert_eq!(aws.ask(second).await.unwrap().items[0].name, Box::from("c"));
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_is_provisioned_for_a_while() {
    let world = FakeCluster::small(0);
    world
        .aws
        .configure(|knobs| knobs.provisioning = Duration::from_secs(120));
    let made = world.aws.ask(balancer(&world, "lb")).await.unwrap();
    assert_eq!(made.state, Some(LoadBalancerState::Provisioning));
    assert_eq!(&*made.dns_name, "lb-0000000000000001.elb.us-west-2.amazonaws.com");
    assert!(made.arn.contains(":loadbalancer/net/lb/"));
    tokio::time::advance(Duration::from_secs(121)).await;
    assert_eq!(world.aws.load_balancers()[0].state, Some(LoadBalancerState::Active));
    world
        .aws
        .set_balancer_state(&made.arn, LoadBalancerState::Failed, "no capacity");
    assert_eq!(&*world.aws.load_balancers()[0].state_reason, "no capacity");
}

#[tokio::test(start_paused = true)]
async fn what_was_just_made_is_not_seen_at_once() {
    let world = FakeCluster::small(1);
    let aws = &world.aws;
    aws.configure(|knobs| {
        knobs.describe_lag = Duration::from_secs(2);
        knobs.change_lag = Duration::from_secs(1);
    });
    // What was there before is.
    assert_eq!(
        aws.ask(DescribeInstances::default())
            .await
            .unwrap()
            .items
            .len(),
        1
    );
    let arn = aws.ask(balancer(&world, "lb")).await.unwrap().arn;
    let describe = DescribeLoadBalancers { arns: vec![arn.clone()], ..Default::default() };
    let change = set_attributes(&arn, "deletion_protection.enabled", "false");
    assert_eq!(code(aws, change.clone()).await, "LoadBalancerNotFound");
    assert_eq!(code(aws, balancer(&world, "lb")).await, "ok");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(code(aws, change).await, "ok");
    assert_eq!(code(aws, describe.clone()).await, "LoadBalancerNotFound");
    assert!(
        aws.ask(DescribeLoadBalancers::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(code(aws, describe).await, "ok");
    aws.ask(balancer(&world, "young")).await.unwrap();
    aws.configure(|knobs| knobs.describe_lag = Duration::ZERO);
    assert_eq!(
        aws.ask(DescribeLoadBalancers::default())
            .await
            .unwrap()
            .items
            .len(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn attributes_have_defaults_and_known_keys() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let arn = aws.ask(balancer(&world, "lb")).await.unwrap().arn;
    let have = aws
        .ask(DescribeLoadBalancerAttributes { arn: arn.clone() })
        .await
        .unwrap();
    assert_eq!(&*have["load_balancing.cross_zone.enabled"], "false");
    let cases = [
        ("load_balancing.cross_zone.enabled", "true", "ok"),
        ("load_balancing.cross_zone.enabled", "yes", "ValidationError"),
        ("idle_timeout.timeout_seconds", "60", "ValidationError"),
        ("dns_record.client_routing_policy", "availability_zone_affinity", "ok"),
        ("dns_record.client_routing_policy", "any", "ValidationError"),
        ("access_logs.s3.enabled", "true", "InvalidConfigurationRequest"),
    ];
    for (key, value, expected) in cases {
        assert_eq!(code(aws, set_attributes(&arn, key, value)).await, expected, "{key}={value}");
    }
    assert_eq!(&*aws.attributes(&arn)["load_balancing.cross_zone.enabled"], "true");
}

#[tokio::test(start_paused = true)]
async fn groups_can_be_exchanged_but_neither_come_nor_go() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let other = aws.security_group(&world.vpc, "other", &[]);
    let bare = aws.ask(balancer(&world, "bare")).await.unwrap().arn;
    let grouped = CreateLoadBalancer {
        security_groups: vec![world.node_group.clone()],
        ..balancer(&world, "grouped")
    };
    let grouped = aws.ask(grouped).await.unwrap().arn;
    let set = |arn: &LoadBalancerArn, groups: &[&str]| SetSecurityGroups {
        arn: arn.clone(),
        groups: groups.iter().map(|id| (*id).into()).collect(),
        private_link_rules: None,
    };
    let cases = [
        ("none gets one", set(&bare, &[&other]), "InvalidConfigurationRequest"),
        ("one is exchanged", set(&grouped, &[&other]), "ok"),
        ("unknown one", set(&grouped, &["sg-0"]), "InvalidSecurityGroup"),
        ("all are removed", set(&grouped, &[]), "InvalidConfigurationRequest"),
        ("unknown load balancer", set(&"arn:none".into(), &[&other]), "LoadBalancerNotFound"),
    ];
    for (name, request, expected) in cases {
        assert_eq!(code(aws, request).await, expected, "{name}");
    }
    assert_eq!(aws.load_balancer("grouped").unwrap().security_groups, [other]);
}

#[tokio::test(start_paused = true)]
async fn subnets_can_be_added_and_removed_but_addresses_stay() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let (one, two) = (aws.elastic_ip(), aws.elastic_ip());
    let mut request = balancer(&world, "lb");
    request.subnets.truncate(1);
    request.subnets[0].allocation = Some(one.clone());
    let arn = aws.ask(request).await.unwrap().arn;
    let set = |subnets: Vec<SubnetMapping>| SetSubnets {
        arn: arn.clone(),
        subnets,
        ipv6_source_nat: None,
        ip_address_type: None,
    };
    let with = |subnet: &SubnetId, allocation: &AllocationId| SubnetMapping {
        allocation: Some(allocation.clone()),
        ..mapping(subnet)
    };
    let p = &world.public;
    assert_eq!(code(aws, set(vec![with(&p[0], &two)])).await, "InvalidConfigurationRequest");
    assert_eq!(code(aws, set(vec![mapping(&p[0]), with(&p[1], &two)])).await, "ok");
    let zones = aws.load_balancers().remove(0).zones;
    assert_eq!((&zones[0].allocations, &zones[1].allocations), (&vec![one.clone()], &vec![two]));
    assert_eq!(code(aws, set(vec![mapping(&p[1])])).await, "ok");
    assert!(!aws.address(&one).unwrap().1);
    assert_eq!(code(aws, set(Vec::new())).await, "ValidationError");
}

#[tokio::test(start_paused = true)]
async fn both_families_need_networks_of_both() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let arn = aws.ask(balancer(&world, "lb")).await.unwrap().arn;
    let set = |ip_address_type| SetIpAddressType { arn: arn.clone(), ip_address_type };
    assert_eq!(code(aws, set(IpAddressType::Dualstack)).await, "InvalidSubnet");
    for (n, subnet) in world.public.iter().enumerate() {
        aws.add_ipv6(subnet, &format!("fd00:{n}::/64"));
    }
    assert_eq!(code(aws, set(IpAddressType::Dualstack)).await, "ok");
    assert_eq!(code(aws, set(IpAddressType::Ipv6)).await, "ValidationError");
}

#[tokio::test(start_paused = true)]
async fn deletion_takes_listeners_along_leaves_target_groups_and_obeys_protection() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let (arn, _) = stack(&world).await;
    let delete = DeleteLoadBalancer { arn: arn.clone() };
    aws.ask(set_attributes(&arn, "deletion_protection.enabled", "true"))
        .await
        .unwrap();
    assert_eq!(code(aws, delete.clone()).await, "OperationNotPermitted");
    aws.ask(set_attributes(&arn, "deletion_protection.enabled", "false"))
        .await
        .unwrap();
    assert_eq!(code(aws, delete.clone()).await, "ok");
    assert!(aws.listeners(&arn).is_empty());
    assert_eq!(aws.target_groups().len(), 1);
    assert!(aws.target_groups()[0].load_balancers.is_empty());
    assert_eq!(code(aws, delete).await, "ok");
}

#[tokio::test(start_paused = true)]
async fn tags_are_read_and_changed_for_twenty_objects_at_most() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let (arn, group) = stack(&world).await;
    let read = |arns: Vec<Box<str>>| DescribeElbTags { arns };
    let arns: Vec<Box<str>> = vec![(&*arn).into(), (&*group).into()];
    assert_eq!(aws.ask(read(arns.clone())).await.unwrap().len(), 2);
    let one_gone = vec![(&*arn).into(), format!("{group}0").into()];
    let cases = [
        ("21", read(vec![arns[0].clone(); 21]), "ValidationError"),
        ("none", read(Vec::new()), "ValidationError"),
        ("one of two is gone", read(one_gone), "TargetGroupNotFound"),
        ("no ARN", read(vec!["x".into()]), "ValidationError"),
    ];
    for (name, request, expected) in cases {
        assert_eq!(code(aws, request).await, expected, "{name}");
    }
    aws.ask(AddElbTags { arns: arns.clone(), tags: tags(&[("b", "2")]) })
        .await
        .unwrap();
    aws.ask(RemoveElbTags {
        arns: arns[..1].to_vec(),
        keys: vec!["a".into(), "absent".into()],
    })
    .await
    .unwrap();
    assert_eq!(
        (aws.tags(&arn), aws.tags(&group)),
        (tags(&[("b", "2")]), tags(&[("a", "1"), ("b", "2")]))
    );
    aws.quotas(|quotas| quotas.tags = 2);
    assert_eq!(code(aws, AddElbTags { arns, tags: tags(&[("c", "3")]) }).await, "TooManyTags");
}

/// Creates a UDP listener with targets that have IPv6 addresses.
async fn udp_listener(world: &FakeCluster, arn: &LoadBalancerArn) -> ListenerArn {
    let group = CreateTargetGroup {
        protocol: ElbProtocol::Udp,
        ip_address_type: Some(IpAddressType::Ipv6),
        ..target_group(&world.vpc, "udp")
    };
    let group = world.aws.ask(group).await.unwrap().arn;
    let udp = ListenerSpec { protocol: ElbProtocol::Udp, ..spec(53, &group) };
    let listener = CreateListener { load_balancer: arn.clone(), spec: udp, tags: tags(&[]) };
    world.aws.ask(listener).await.unwrap().arn
}

#[tokio::test(start_paused = true)]
async fn source_nat_has_one_prefix_in_each_subnet() {
    const CONFLICT: &str = "InvalidConfigurationRequest";
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    for (n, subnet) in world.public.iter().enumerate() {
        aws.add_ipv6(subnet, &format!("2001:db8:0:{n}::/64"));
    }
    let at = |n: usize, prefix: &str| SubnetMapping {
        source_nat_prefix: Some(match prefix {
            "auto_assigned" => SourceNatPrefix::AutoAssigned,
            text => SourceNatPrefix::Network(text.parse().unwrap()),
        }),
        ..mapping(&world.public[n])
    };
    let create = |name: &str, nat: Option<bool>, prefix: &str| CreateLoadBalancer {
        ip_address_type: IpAddressType::Dualstack,
        ipv6_source_nat: nat,
        subnets: vec![at(0, prefix)],
        ..balancer(&world, name)
    };
    let right = "2001:db8:0:0:1::/80";
    for (nat, prefix, expected) in [
        (None, right, CONFLICT),
        (Some(false), "auto_assigned", CONFLICT),
        (Some(true), "2001:db8:0:0:1::/96", CONFLICT),
        (Some(true), "2001:db8:0:1:1::/80", CONFLICT),
        (Some(true), "auto_assigned", "ok"),
    ] {
        assert_eq!(code(aws, create("one", nat, prefix)).await, expected, "{nat:?} {prefix}");
    }
    let arn = aws.ask(create("two", Some(true), right)).await.unwrap().arn;
    let text = |prefix: &str| Box::from(&*prefix.parse::<ipnet::Ipv6Net>().unwrap().to_string());
    let shown = || {
        aws.load_balancer("two")
            .unwrap()
            .zones
            .remove(0)
            .source_nat_prefixes
    };
    assert_eq!(shown(), [text(right)]);
    let set = |nat: Option<bool>, subnets: Vec<SubnetMapping>| SetSubnets {
        arn: arn.clone(),
        subnets,
        ipv6_source_nat: nat,
        ip_address_type: None,
    };
    let other = "2001:db8:0:0:2::/80";
    assert_eq!(code(aws, set(Some(true), vec![at(0, other)])).await, "ok");
    assert_eq!(shown(), [text(other)]);
    assert_eq!(code(aws, set(Some(true), vec![mapping(&world.public[0])])).await, "ok");
    assert_eq!(shown(), [text(other)], "kept");
    // With UDP it can be neither changed nor turned off.
    let listener = udp_listener(&world, &arn).await;
    for (nat, mapping, expected) in [
        (Some(true), at(0, right), CONFLICT),
        (Some(true), at(0, "auto_assigned"), CONFLICT),
        (None, mapping(&world.public[0]), CONFLICT),
        (Some(true), at(0, other), "ok"),
    ] {
        assert_eq!(
            code(aws, set(nat, vec![mapping.clone()])).await,
            expected,
            "{nat:?} {mapping:?}"
        );
    }
    aws.ask(DeleteListener { arn: listener }).await.unwrap();
    assert_eq!(code(aws, set(None, vec![mapping(&world.public[0])])).await, "ok");
    assert_eq!((shown(), aws.load_balancer("two").unwrap().ipv6_source_nat), (vec![], Some(false)));
}

#[tokio::test(start_paused = true)]
async fn capacity_is_reserved_for_active_load_balancers_without_tls() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    aws.configure(|knobs| knobs.provisioning = Duration::from_secs(60));
    let arn = aws.ask(balancer(&world, "one")).await.unwrap().arn;
    let reserve = |capacity_units| ModifyCapacityReservation { arn: arn.clone(), capacity_units };
    let read = || DescribeCapacityReservation { arn: arn.clone() };
    assert_eq!(code(aws, reserve(3000)).await, "InvalidConfigurationRequest");
    tokio::time::sleep(Duration::from_secs(61)).await;
    for (units, expected, reserved) in
        [(3000, "ok", 3000), (2749, "ValidationError", 3000), (0, "ok", 0), (2750, "ok", 2750)]
    {
        assert_eq!(code(aws, reserve(units)).await, expected, "{units}");
        assert_eq!(aws.ask(read()).await.unwrap(), reserved, "{units}");
    }
    let none = || LoadBalancerArn::from("arn:none");
    assert_eq!(
        code(aws, DescribeCapacityReservation { arn: none() }).await,
        "LoadBalancerNotFound"
    );
    let unknown = ModifyCapacityReservation { arn: none(), capacity_units: 3000 };
    assert_eq!(code(aws, unknown).await, "LoadBalancerNotFound");
}
