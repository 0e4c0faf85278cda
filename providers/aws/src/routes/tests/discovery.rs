use super::*;

fn named(ids: &[&RouteTableId]) -> Settings {
    Settings {
        route_tables: ids.iter().map(|id| (*id).clone()).collect(),
        ..Settings::default()
    }
}

async fn error(rig: &Fixture) -> String {
    let error = rig.list().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    error.to_string()
}

#[tokio::test(start_paused = true)]
async fn the_table_is_the_one_of_the_vpc_with_the_clusters_tag() {
    let world = FakeCluster::small(1);
    let other = world.aws.vpc("10.9.0.0/16");
    world
        .aws
        .route_table(&other, &[], &[("kubernetes.io/cluster/test", "owned")]);
    let rig = Fixture::with(world, Settings::default());
    rig.pass().await.unwrap();
    assert_eq!(rig.shown().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_table_or_with_two_there_is_an_error_in_upstream_words() {
    let world = FakeCluster::small(1);
    world.aws.untag(&world.table, "kubernetes.io/cluster/test");
    let rig = Fixture::with(world, Settings::default());
    assert_eq!(error(&rig).await, "unable to find route table for AWS cluster: kubernetes");
    let world = FakeCluster::small(1);
    world
        .aws
        .route_table(&world.vpc, &[], &[("kubernetes.io/cluster/test", "shared")]);
    let rig = Fixture::with(world, Settings::default());
    assert_eq!(
        error(&rig).await,
        "found multiple matching AWS route tables for AWS cluster: kubernetes"
    );
}

#[tokio::test(start_paused = true)]
async fn a_legacy_cluster_finds_a_table_with_either_tag() {
    for tag in [("KubernetesCluster", "test"), ("kubernetes.io/cluster/test", "")] {
        let world = FakeCluster::small(1);
        world.aws.untag(&world.table, "kubernetes.io/cluster/test");
        world.aws.tag(&world.table, tag.0, tag.1);
        let rig = Fixture::of(world, Settings::default(), Cluster::new("test", true));
        rig.pass().await.unwrap();
        assert_eq!(rig.shown().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn named_tables_need_no_tag_and_all_of_them_get_every_route() {
    let world = FakeCluster::small(2);
    let other = world.aws.route_table(&world.vpc, &[], &[]);
    let settings = named(&[&world.table, &other]);
    let mut rig = Fixture::with(world, settings);
    rig.pass().await.unwrap();
    assert_eq!(rig.shown().len(), 2);
    assert_eq!(rig.shown(), rig.shown_in(&other));
    assert_eq!(rig.calls(&[Action::DescribeRouteTables, Action::ModifyInstanceAttribute]), [1, 2]);

    // One that somebody took away comes back without the other being touched.
    let request = ec2::DeleteRoute { table: other.clone(), destination: pod_cidr(0) };
    rig.world.aws.ask(request).await.unwrap();
    rig.world.aws.reset_calls();
    rig.pass().await.unwrap();
    assert_eq!(rig.shown(), rig.shown_in(&other));
    assert_eq!(rig.world.aws.writes(), 1);

    rig.nodes.pop();
    rig.pass().await.unwrap();
    assert_eq!((rig.shown().len(), rig.shown_in(&other).len()), (1, 1));
    assert_eq!(rig.pass().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_named_table_that_is_not_there_is_an_error() {
    let world = FakeCluster::small(1);
    let missing = RouteTableId::from("rtb-missing");
    let settings = named(&[&world.table, &missing]);
    let rig = Fixture::with(world, settings);
    assert_eq!(
        error(&rig).await,
        "unable to find route tables for AWS cluster: kubernetes: rtb-missing"
    );
    let rig = Fixture::with(FakeCluster::small(1), named(&[&missing]));
    assert_eq!(error(&rig).await, "unable to find route table for AWS cluster: kubernetes");
}

#[tokio::test(start_paused = true)]
async fn a_table_that_cannot_be_read_is_no_empty_table() {
    let rig = Fixture::new(1);
    rig.world.aws.deny(Action::DescribeRouteTables);
    let error = rig.list().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.chain().contains("ec2:DescribeRouteTables"), "{}", error.chain());
    assert!(rig.create(0).await.is_err());
    assert_eq!(rig.world.aws.calls(Action::CreateRoute), 0);
}

// IN6
#[tokio::test(start_paused = true)]
async fn the_node_of_an_instance_is_told_by_its_provider_id_whatever_its_name() {
    let mut rig = Fixture::new(4);
    let names =
        ["ip-10-0-0-1.us-west-2.compute.internal", &*rig.world.nodes[1].clone(), "foo", "n3"];
    rig.nodes = names
        .iter()
        .enumerate()
        .map(|(i, name)| node(name, &rig.world.nodes[i], &[pod_cidr(i)]))
        .collect();
    rig.pass().await.unwrap();
    // The last one's node is gone: its route is listed without, so that it is removed.
    rig.nodes.pop();
    let listed = rig.list().await.unwrap();
    let told: Vec<_> = listed
        .iter()
        .map(|route| (route.destination, route.node.as_deref()))
        .collect();
    let node = |i: usize| names.get(i).copied().filter(|_| i < 3);
    assert_eq!(told, (0..4).map(|i| (pod_cidr(i), node(i))).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_route_is_deleted_from_those_tables_alone_that_were_listed_with_it() {
    let world = FakeCluster::small(1);
    let other = world.aws.route_table(&world.vpc, &[], &[]);
    let mut rig = Fixture::with(world, Settings::default());
    foreign_route(&rig, pod_cidr(7), &rig.world.nodes[0]).await;
    let settings = named(&[&rig.world.table, &other]);
    rig = Fixture::with(rig.world, settings);
    let listed = rig.list().await.unwrap();
    // Somebody brings it to the other table meanwhile.
    let target = RouteTarget::Instance(rig.world.nodes[0].clone());
    rig.world
        .aws
        .ask(ec2::CreateRoute { table: other.clone(), destination: pod_cidr(7), target })
        .await
        .unwrap();
    tokio::time::advance(Duration::from_secs(6)).await;
    rig.delete(&listed[0]).await.unwrap();
    assert_eq!((rig.shown().len(), rig.shown_in(&other).len()), (0, 1));
}
