use super::*;
use crate::api::{
    EniId, Filter, InstanceId, RouteTableId,
    ec2::{
        CreateRoute, CreateTags, DeleteRoute, DeleteTags, DescribeInstanceTopology,
        DescribeNetworkInterfaces, DescribeRouteTables, DescribeSubnets, DescribeVpcs,
        InstanceState, ModifyInstanceAttribute, ModifyNetworkInterfaceAttribute, ReplaceRoute,
        RouteTarget,
    },
};

const NOWHERE: &str = "i-0123456789abcdef0";

fn by_ids(ids: &[&str]) -> DescribeInstances {
    DescribeInstances {
        ids: ids.iter().map(|id| InstanceId::from(*id)).collect(),
        ..Default::default()
    }
}

fn by_filter(name: &str, values: &[&str]) -> DescribeInstances {
    DescribeInstances {
        filters: vec![Filter::new(name, values.iter().copied())],
        ..Default::default()
    }
}

#[tokio::test(start_paused = true)]
async fn requests_for_instances_are_refused_as_by_aws() {
    let world = FakeCluster::small(2);
    let known = world.nodes[0].as_str();
    let many: Vec<String> = (0..201).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let paged = |max| DescribeInstances { max_results: Some(max), ..Default::default() };
    let cases = [
        ("known", by_ids(&[known]), "ok"),
        ("one of two unknown", by_ids(&[known, NOWHERE]), "InvalidInstanceID.NotFound"),
        ("malformed", by_ids(&["i-xyz"]), "InvalidInstanceID.Malformed"),
        (
            "IDs with a page size",
            DescribeInstances { max_results: Some(5), ..by_ids(&[known]) },
            "InvalidParameterCombination",
        ),
        ("200 values", by_filter("private-dns-name", &many[..200]), "ok"),
        ("201 values", by_filter("private-dns-name", &many), "FilterLimitExceeded"),
        ("unknown filter", by_filter("nonsense", &["x"]), "InvalidParameterValue"),
        ("page of 4", paged(4), "InvalidParameterValue"),
        ("page of 5", paged(5), "ok"),
        (
            "foreign token",
            DescribeInstances { token: Some("x".into()), ..Default::default() },
            "InvalidNextToken",
        ),
    ];
    for (name, request, expected) in cases {
        assert_eq!(code(&world.aws, request).await, expected, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn filters_match_values_wildcards_and_tags() {
    let world = FakeCluster::small(3);
    let aws = &world.aws;
    aws.set_state(&world.nodes[2], InstanceState::Stopped);
    let mine = world.nodes[0].as_str();
    let cases: [(&str, &[&str], usize); 9] = [
        ("private-dns-name", &["ip-10-0-128-4.us-west-2.compute.internal"], 1),
        ("private-dns-name", &["ip-10-0-128-4.*"], 1),
        ("private-dns-name", &["ip-10-0-1?8-4.*", "nothing"], 1),
        ("instance-state-name", &["pending", "running"], 2),
        ("network-interface.addresses.private-ip-address", &["10.0.144.4"], 1),
        ("vpc-id", &[world.vpc.as_str()], 3),
        ("tag-key", &["kubernetes.io/cluster/test"], 3),
        ("tag:kubernetes.io/cluster/test", &["shared"], 0),
        ("instance-id", &[mine], 1),
    ];
    for (name, values, expected) in cases {
        let found = aws.ask(by_filter(name, values)).await.unwrap().items;
        assert_eq!(found.len(), expected, "{name} {values:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pages_fit_together_although_instances_come_and_go() {
    let mut world = FakeCluster::small(12);
    let mut request = DescribeInstances { max_results: Some(5), ..Default::default() };
    let mut seen = Vec::new();
    loop {
        let page = world.aws.ask(request.clone()).await.unwrap();
        seen.extend(page.items.iter().map(|instance| instance.id.clone()));
        let Some(next) = page.next else { break };
        if seen.len() == 5 {
            world.aws.forget_instance(&world.nodes[2].clone());
            world.add_node();
        }
        request.token = Some(next);
    }
    assert_eq!(seen, world.nodes);
}

#[tokio::test(start_paused = true)]
async fn a_terminated_instance_loses_its_addresses_and_is_gone_after_an_hour() {
    let world = FakeCluster::small(1);
    let id = world.nodes[0].clone();
    world.aws.terminate(&id);
    let left = world.aws.ask(by_ids(&[&id])).await.unwrap().items.remove(0);
    assert_eq!(left.state, Some(InstanceState::Terminated));
    assert_eq!(
        (&*left.private_dns_name, &*left.private_ip, left.interfaces.len(), left.vpc),
        ("", "", 0, None)
    );
    assert_eq!(&*left.tags["kubernetes.io/cluster/test"], "owned");
    tokio::time::advance(Duration::from_secs(3601)).await;
    assert_eq!(code(&world.aws, by_ids(&[&id])).await, "InvalidInstanceID.NotFound");
}

fn route(table: &RouteTableId, destination: &str, target: RouteTarget) -> CreateRoute {
    CreateRoute {
        table: table.clone(),
        destination: destination.parse().unwrap(),
        target,
    }
}

#[tokio::test(start_paused = true)]
async fn routes_are_refused_as_by_aws() {
    let world = FakeCluster::small(3);
    let (aws, table) = (&world.aws, &world.table);
    let plain = RouteTarget::Instance(world.nodes[0].clone());
    let second = Interface { device_index: Some(1), ..Interface::new(&world.private[0]) };
    let twin = RouteTarget::Instance(aws.instance(&world.private[0]).interface(second).launch());
    let dead = world.nodes[2].clone();
    aws.terminate(&dead);
    let elsewhere = aws.vpc("10.9.0.0/16");
    let far = aws
        .instance(&aws.subnet(&elsewhere, "a", "10.9.0.0/24", &[]))
        .launch();
    let cases = [
        ("first", route(table, "10.200.0.0/24", plain.clone()), "ok"),
        ("again", route(table, "10.200.0.0/24", plain.clone()), "RouteAlreadyExists"),
        ("with host bits", route(table, "10.200.0.7/24", plain.clone()), "RouteAlreadyExists"),
        ("v6", route(table, "fd00:1::/80", plain.clone()), "ok"),
        ("the VPC's own", route(table, "10.0.0.0/16", plain.clone()), "RouteAlreadyExists"),
        (
            "unknown table",
            route(&"rtb-0".into(), "10.201.0.0/24", plain),
            "InvalidRouteTableID.NotFound",
        ),
        ("two interfaces", route(table, "10.201.0.0/24", twin), "InvalidInstanceID"),
        (
            "terminated",
            route(table, "10.201.0.0/24", RouteTarget::Instance(dead)),
            "IncorrectInstanceState",
        ),
        (
            "unknown",
            route(table, "10.201.0.0/24", RouteTarget::Instance(NOWHERE.into())),
            "InvalidInstanceID.NotFound",
        ),
        (
            "other VPC",
            route(table, "10.201.0.0/24", RouteTarget::Instance(far)),
            "InvalidParameterValue",
        ),
        (
            "unknown interface",
            route(table, "10.201.0.0/24", RouteTarget::Interface("eni-0".into())),
            "InvalidNetworkInterfaceID.NotFound",
        ),
    ];
    for (name, request, expected) in cases {
        assert_eq!(code(aws, request).await, expected, "{name}");
    }
    aws.quotas(|quotas| quotas.routes_per_table = 1);
    let one_more = route(table, "10.202.0.0/24", RouteTarget::Instance(world.nodes[1].clone()));
    assert_eq!(code(aws, one_more).await, "RouteLimitExceeded");
}

#[tokio::test(start_paused = true)]
async fn routes_show_instance_and_interface_and_turn_into_blackholes() {
    let world = FakeCluster::small(2);
    let (aws, table) = (&world.aws, &world.table);
    aws.ask(route(table, "10.200.0.0/24", RouteTarget::Instance(world.nodes[0].clone())))
        .await
        .unwrap();
    let shown = aws.routes(table).remove(0);
    assert_eq!((shown.instance.as_ref(), shown.interface.is_some()), (Some(&world.nodes[0]), true));
    assert!(!shown.blackhole);
    aws.terminate(&world.nodes[0]);
    assert!(aws.routes(table)[0].blackhole);

    let to = RouteTarget::Instance(world.nodes[1].clone());
    let replace = |destination: &str| {
        let CreateRoute { table, destination, target } = route(table, destination, to.clone());
        ReplaceRoute { table, destination, target }
    };
    assert_eq!(code(aws, replace("10.200.0.0/24")).await, "ok");
    assert_eq!(aws.routes(table)[0].instance.as_ref(), Some(&world.nodes[1]));
    assert_eq!(code(aws, replace("10.201.0.0/24")).await, "InvalidParameterValue");
    let delete =
        |text: &str| DeleteRoute { table: table.clone(), destination: text.parse().unwrap() };
    assert_eq!(code(aws, delete("10.200.0.0/24")).await, "ok");
    assert_eq!(code(aws, delete("10.200.0.0/24")).await, "InvalidRoute.NotFound");
    assert_eq!(code(aws, delete("10.0.0.0/16")).await, "InvalidParameterValue");
}

#[tokio::test(start_paused = true)]
async fn the_source_check_is_switched_on_the_only_interface_or_by_interface() {
    let world = FakeCluster::small(1);
    let aws = &world.aws;
    let off =
        |id: &InstanceId| ModifyInstanceAttribute { id: id.clone(), source_dest_check: false };
    assert_eq!(code(aws, off(&world.nodes[0])).await, "ok");
    assert_eq!(aws.source_dest_check(&world.nodes[0]), Some(false));
    let second = Interface { device_index: Some(1), ..Interface::new(&world.private[0]) };
    let twin = aws.instance(&world.private[0]).interface(second).launch();
    assert_eq!(code(aws, off(&twin)).await, "InvalidInstanceID");
    let eni = aws.ask(by_ids(&[&twin])).await.unwrap().items[0].interfaces[0]
        .id
        .clone();
    let by_interface = |id: EniId| ModifyNetworkInterfaceAttribute { id, source_dest_check: false };
    assert_eq!(code(aws, by_interface(eni)).await, "ok");
    assert_eq!(aws.source_dest_check(&twin), Some(false));
    assert_eq!(code(aws, by_interface("eni-0".into())).await, "InvalidNetworkInterfaceID.NotFound");
    assert_eq!(code(aws, off(&NOWHERE.into())).await, "InvalidInstanceID.NotFound");
}

#[tokio::test(start_paused = true)]
async fn unknown_networks_fail_the_whole_describe() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let subnets = |id: &str| DescribeSubnets {
        ids: vec![world.public[0].clone(), id.into()],
        ..Default::default()
    };
    assert_eq!(code(aws, subnets(&world.public[1])).await, "ok");
    assert_eq!(code(aws, subnets("subnet-0")).await, "InvalidSubnetID.NotFound");
    let tables = DescribeRouteTables { ids: vec!["rtb-0".into()], ..Default::default() };
    assert_eq!(code(aws, tables).await, "InvalidRouteTableID.NotFound");
    let vpcs = DescribeVpcs { ids: vec!["vpc-0".into()], token: None };
    assert_eq!(code(aws, vpcs).await, "InvalidVpcID.NotFound");
}

#[tokio::test(start_paused = true)]
async fn topology_and_interfaces_are_found() {
    let world = FakeCluster::small(1);
    let aws = &world.aws;
    let placed = aws
        .instance(&world.private[0])
        .instance_type("p5.48xlarge")
        .network_nodes(&["n1", "n2"])
        .launch();
    let topology = |ids: Vec<InstanceId>| DescribeInstanceTopology { ids, token: None };
    let found = aws
        .ask(topology(vec![world.nodes[0].clone(), placed.clone()]))
        .await
        .unwrap()
        .items;
    assert_eq!(found.iter().map(|it| &it.id).collect::<Vec<_>>(), [&placed]);
    assert_eq!(code(aws, topology(vec![placed; 101])).await, "InvalidParameterValue");

    aws.fargate(&world.private[1], "10.0.144.99", "ip-10-0-144-99.us-west-2.compute.internal");
    let pod = |ip: &str| DescribeNetworkInterfaces {
        filters: vec![
            Filter::new("attachment.status", ["attached"]),
            Filter::new("vpc-id", [&*world.vpc]),
            Filter::new("private-ip-address", [ip]),
        ],
        token: None,
    };
    assert_eq!(aws.ask(pod("10.0.144.99")).await.unwrap().items[0].zone, Box::from("us-west-2b"));
    assert!(aws.ask(pod("10.0.144.98")).await.unwrap().items.is_empty());
}

#[tokio::test(start_paused = true)]
async fn tags_of_ec2_are_checked_and_deleted_by_value() {
    let world = FakeCluster::small(1);
    let aws = &world.aws;
    let node = world.nodes[0].as_str();
    let put = |ids: &[&str], pairs: &[(&str, &str)]| CreateTags {
        resources: ids.iter().map(|id| (*id).into()).collect(),
        tags: tags(pairs),
    };
    let cases = [
        ("known", put(&[node], &[("k", "v")]), "ok"),
        ("subnet", put(&[&world.public[0]], &[("k", "v")]), "ok"),
        ("one unknown", put(&[node, NOWHERE], &[("k", "w")]), "InvalidInstanceID.NotFound"),
        ("malformed", put(&["i-simulated"], &[("k", "w")]), "InvalidInstanceID.Malformed"),
        ("no ID at all", put(&["simulated"], &[("k", "w")]), "InvalidID"),
        ("reserved", put(&[node], &[("aws:k", "w")]), "InvalidParameterValue"),
    ];
    for (name, request, expected) in cases {
        assert_eq!(code(aws, request).await, expected, "{name}");
    }
    assert_eq!(&*aws.tags(node)["k"], "v");
    let take =
        |value: &str| DeleteTags { resources: vec![node.into()], tags: tags(&[("k", value)]) };
    aws.ask(take("other")).await.unwrap();
    assert_eq!(&*aws.tags(node)["k"], "v");
    aws.ask(take("v")).await.unwrap();
    assert!(!aws.tags(node).contains_key("k"));
    aws.quotas(|quotas| quotas.tags = 1);
    assert_eq!(code(aws, put(&[node], &[("n", "1")])).await, "TagLimitExceeded");
}
