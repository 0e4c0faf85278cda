use super::*;

/// An instance that is no node: it has no tag of the cluster.
fn appliance(world: &FakeCluster) -> InstanceId {
    world.aws.instance(&world.private[0]).launch()
}

#[tokio::test(start_paused = true)]
async fn a_route_that_appeared_meanwhile_and_leads_there_is_a_success() {
    let rig = Fixture::new(1);
    rig.list().await.unwrap();
    foreign_route(&rig, pod_cidr(0), &rig.world.nodes[0]).await;
    rig.create(0).await.unwrap();
    assert_eq!(rig.calls(&[Action::DescribeRouteTables, Action::ReplaceRoute]), [2, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_route_that_appeared_meanwhile_and_leads_to_another_node_is_replaced() {
    let rig = Fixture::new(2);
    rig.list().await.unwrap();
    foreign_route(&rig, pod_cidr(0), &rig.world.nodes[1]).await;
    rig.create(0).await.unwrap();
    assert_eq!(rig.shown(), [format!("100.64.0.0/24 {}", rig.world.nodes[0])]);
    assert_eq!(rig.calls(&[Action::ReplaceRoute, Action::DeleteRoute]), [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn routes_of_others_are_never_listed_replaced_or_deleted() {
    let mut rig = Fixture::new(2);
    let appliance = appliance(&rig.world);
    foreign_route(&rig, pod_cidr(0), &appliance).await;
    let gateway = rig.world.aws.internet_gateway(&rig.world.vpc);
    rig.world
        .aws
        .gateway_route(&rig.world.table, "100.64.1.0/24", &gateway);
    let before = rig.world.aws.routes(&rig.world.table);
    assert_eq!(rig.list().await.unwrap(), []);
    let error = rig.create(0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let (table, text) = (&rig.world.table, "which is not in this cluster");
    assert_eq!(
        error.to_string(),
        format!(
            "error creating AWS route (100.64.0.0/24): table {table} has a route to {appliance}, {text}"
        )
    );
    assert!(
        rig.create(1)
            .await
            .unwrap_err()
            .to_string()
            .contains(&*gateway)
    );
    rig.nodes.clear();
    rig.pass().await.unwrap();
    assert_eq!(rig.world.aws.routes(&rig.world.table), before);
}

#[tokio::test(start_paused = true)]
async fn a_route_that_leads_nowhere_is_replaced_in_one_step() {
    let mut rig = Fixture::new(2);
    rig.pass().await.unwrap();
    rig.world.aws.terminate(&rig.world.nodes[0]);
    rig.nodes[1] = node("n1", &rig.world.nodes[1], &[pod_cidr(0)]);
    let create = RouteChange::Create { node: rig.nodes[1].clone(), destination: pod_cidr(0) };
    rig.world.aws.reset_calls();
    tokio::time::advance(Duration::from_secs(6)).await;
    rig.apply(&[create]).await.remove(0).unwrap();
    assert_eq!(
        rig.calls(&[Action::ReplaceRoute, Action::DeleteRoute, Action::CreateRoute]),
        [1, 0, 0]
    );
    assert!(
        rig.shown()
            .contains(&format!("100.64.0.0/24 {}", rig.world.nodes[1]))
    );
}

#[tokio::test(start_paused = true)]
async fn the_check_is_switched_off_once_and_only_where_it_is_on() {
    let rig = Fixture::new(1);
    let request =
        ec2::ModifyInstanceAttribute { id: rig.world.nodes[0].clone(), source_dest_check: false };
    rig.world.aws.ask(request).await.unwrap();
    rig.world.aws.reset_calls();
    rig.create(0).await.unwrap();
    assert_eq!(rig.calls(&[Action::ModifyInstanceAttribute, Action::CreateRoute]), [0, 1]);

    let rig = Fixture::new(1);
    for _ in 0..3 {
        rig.create(0).await.unwrap();
        let listed = rig.list().await.unwrap();
        rig.delete(&listed[0]).await.unwrap();
    }
    assert_eq!(
        rig.calls(&[Action::ModifyInstanceAttribute, Action::CreateRoute, Action::DeleteRoute]),
        [1, 3, 3]
    );
}

#[tokio::test(start_paused = true)]
async fn an_instance_with_several_interfaces_is_reached_by_its_primary_one() {
    let mut rig = Fixture::new(0);
    let subnet = rig.world.private[0].clone();
    let second = Interface { device_index: Some(1), ..Interface::new(&subnet) };
    let builder = rig
        .world
        .aws
        .instance(&subnet)
        .tag("kubernetes.io/cluster/test", "owned");
    let id = builder
        .interfaces(vec![Interface::new(&subnet), second])
        .launch();
    rig.world.nodes.push(id.clone());
    rig.nodes.push(rig.node(0));
    rig.world.aws.reset_calls();
    assert_eq!(rig.pass().await.unwrap(), 1);
    assert_eq!(
        rig.calls(&[Action::ModifyNetworkInterfaceAttribute, Action::ModifyInstanceAttribute]),
        [1, 0]
    );
    assert_eq!(rig.world.aws.source_dest_check(&id), Some(false));
    assert_eq!(rig.pass().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn deleting_what_is_not_there_is_a_success() {
    let rig = Fixture::new(1);
    rig.pass().await.unwrap();
    let listed = rig.list().await.unwrap();
    let request = ec2::DeleteRoute { table: rig.world.table.clone(), destination: pod_cidr(0) };
    rig.world.aws.ask(request).await.unwrap();
    rig.delete(&listed[0]).await.unwrap();
    rig.delete(&listed[0]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_route_that_leads_elsewhere_by_now_is_not_deleted() {
    let rig = Fixture::new(1);
    rig.pass().await.unwrap();
    let listed = rig.list().await.unwrap();
    let target = RouteTarget::Instance(appliance(&rig.world));
    let request = ec2::ReplaceRoute {
        table: rig.world.table.clone(),
        destination: pod_cidr(0),
        target,
    };
    rig.world.aws.ask(request).await.unwrap();
    tokio::time::advance(Duration::from_secs(6)).await;
    rig.delete(&listed[0]).await.unwrap();
    assert_eq!(rig.calls(&[Action::DeleteRoute]), [0]);
    let foreign = Route { name: "kubernetes-100.64.0.0/24".into(), ..listed[0].clone() };
    assert_eq!(rig.delete(&foreign).await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test(start_paused = true)]
async fn each_change_has_its_own_answer() {
    let rig = Fixture::new(3);
    rig.world.aws.forget_instance(&rig.world.nodes[1]);
    let fargate = Arc::new(NodeView {
        provider_id: Some(
            "aws:///us-west-2a/x/fargate-ip-10-0-55-27.us-west-2.compute.internal".into(),
        ),
        ..NodeView::named("pod")
    });
    let nodes =
        [rig.node(0), rig.node(1), fargate, Arc::new(NodeView::named("young")), rig.node(2)];
    let change = |(i, node): (usize, &Arc<NodeView>)| RouteChange::Create {
        node: node.clone(),
        destination: pod_cidr(i),
    };
    let answers = rig
        .apply(&nodes.iter().enumerate().map(change).collect::<Vec<_>>())
        .await;
    let text = |answer: &Result<(), CloudError>| {
        answer
            .as_ref()
            .map_or_else(CloudError::chain, |()| "done".to_owned())
    };
    let expected = [
        "done".to_owned(),
        format!("instance {} of node n1 not found", rig.world.nodes[1]),
        "node pod cannot be the target of routes: it runs on Fargate".to_owned(),
        "node young has no provider ID yet".to_owned(),
        "done".to_owned(),
    ];
    assert_eq!(answers.iter().map(text).collect::<Vec<_>>(), expected);
    // A node that is not initialised yet is no failure.
    let young = rig.routes.apply(&rig.op, &[change((3, &nodes[3]))]).await;
    assert!(matches!(young[..], [Ok(Progress::Pending { .. })]), "{young:?}");
}

#[tokio::test(start_paused = true)]
async fn quotas_and_permissions_are_told_as_such() {
    let rig = Fixture::new(2);
    rig.world.aws.quotas(|quotas| quotas.routes_per_table = 1);
    rig.create(0).await.unwrap();
    let error = rig.create(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    assert!(
        error.chain().starts_with(
            "error creating AWS route (100.64.1.0/24): CreateRoute: RouteLimitExceeded"
        )
    );

    for (action, text) in [
        (Action::CreateRoute, "error creating AWS route (100.64.0.0/24)"),
        (Action::ModifyInstanceAttribute, "error configuring source-dest-check on instance i-"),
    ] {
        let rig = Fixture::new(1);
        rig.world.aws.deny(action);
        let error = rig.create(0).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::Denied, Some("AWSPermissionDenied"))
        );
        assert!(error.chain().starts_with(text), "{}", error.chain());
        assert!(error.chain().contains(&format!("ec2:{}", action.name())), "{}", error.chain());
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_write_nothing_is_changed() {
    let mut rig = Fixture::new(1);
    rig.op = Op::new("kubernetes", CancellationToken::new(), WriteGate::always_closed());
    assert_eq!(rig.create(0).await.unwrap_err().kind(), ErrorKind::NotLeader);
    assert_eq!(rig.world.aws.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_interface_of_which_nobody_says_whose_it_is_is_somebody_elses() {
    let mut rig = Fixture::new(1);
    let interface = rig
        .world
        .aws
        .fargate(&rig.world.private[0], "10.0.128.88", "");
    let (table, target) = (rig.world.table.clone(), RouteTarget::Interface(interface));
    rig.world
        .aws
        .ask(ec2::CreateRoute { table, destination: pod_cidr(0), target })
        .await
        .unwrap();
    let before = rig.world.aws.routes(&rig.world.table);
    assert_eq!(rig.list().await.unwrap(), []);
    assert_eq!(rig.create(0).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    rig.nodes.clear();
    rig.pass().await.unwrap();
    assert_eq!(rig.world.aws.routes(&rig.world.table), before);
}

#[tokio::test(start_paused = true)]
async fn a_route_to_what_aws_does_not_know_was_a_nodes_and_one_to_what_is_in_doubt_is_not() {
    for (code, listed) in [("InvalidInstanceID.NotFound", 1), ("InvalidInstanceID.Malformed", 0)] {
        let rig = Fixture::new(1);
        foreign_route(&rig, pod_cidr(7), &appliance(&rig.world)).await;
        rig.world.aws.fail_next(Action::DescribeInstances, code);
        assert_eq!(rig.list().await.unwrap().len(), listed, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn tables_that_could_not_be_read_again_are_read_before_the_next_change() {
    let rig = Fixture::new(1);
    rig.list().await.unwrap();
    rig.world
        .aws
        .fail_next(Action::DescribeRouteTables, "UnauthorizedOperation");
    rig.list().await.unwrap_err();
    rig.create(0).await.unwrap();
    assert_eq!(rig.calls(&[Action::DescribeRouteTables]), [3]);
}

#[tokio::test(start_paused = true)]
async fn a_route_is_replaced_as_it_is_now_and_not_as_it_was_at_the_beginning_of_the_pass() {
    let rig = Fixture::new(2);
    foreign_route(&rig, pod_cidr(0), &rig.world.nodes[1]).await;
    rig.list().await.unwrap();
    tokio::time::advance(Duration::from_secs(60)).await;
    let target = RouteTarget::Instance(appliance(&rig.world));
    let request = ec2::ReplaceRoute {
        table: rig.world.table.clone(),
        destination: pod_cidr(0),
        target,
    };
    rig.world.aws.ask(request).await.unwrap();
    rig.world.aws.reset_calls();
    assert_eq!(rig.create(0).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(rig.calls(&[Action::ReplaceRoute, Action::CreateRoute]), [0, 0]);
}
