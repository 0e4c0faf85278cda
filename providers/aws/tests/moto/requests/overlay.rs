use ccm_aws::api::{
    AwsErrorCause as Seen, InstanceId,
    ec2::{DescribeInstanceTopology, DescribeVpcs},
    elb::{
        CreateLoadBalancer, DeleteTargetGroup, DescribeLoadBalancers, DescribeTargetGroups,
        ElbProtocol, Scheme,
    },
};
use ccm_testkit::moto::fault_proxy::{Fault, ProxyFault};

use super::{balancers, fixture::RequestFixture, targets};

fn fault(action: &str, after: usize, times: usize, trouble: ProxyFault) -> Fault {
    Fault { action: action.into(), after, times, effect: trouble }
}

pub(crate) async fn each_attempt_is_one_request(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let overlay = rig.moto.overlay();
    overlay.fail(fault(
        "DescribeVpcs",
        1,
        1,
        ProxyFault::Refused(503, "RequestLimitExceeded".into()),
    ));
    overlay.fail(fault("DescribeVpcs", 0, 1, ProxyFault::RequestLost));
    rig.send(DescribeVpcs::default()).await?;
    let error = rig.failure(DescribeVpcs::default()).await?;
    let Seen::Response { code, status, request_id, message } = error.cause else {
        anyhow::bail!("{error:?}")
    };
    assert_eq!((&*code, status), ("RequestLimitExceeded", 503));
    assert!(request_id.is_some() && !message.is_empty());
    let error = rig.failure(DescribeVpcs::default()).await?;
    assert!(matches!(error.cause, Seen::NoResponse(_)), "{error:?}");
    rig.send(DescribeVpcs::default()).await?;
    let sent = overlay.take();
    let statuses: Vec<_> = sent.iter().map(|request| request.status).collect();
    assert_eq!(statuses, [Some(200), Some(503), None, Some(200)], "nothing is sent twice");
    assert!(
        sent.iter()
            .all(|request| request.permission() == "ec2:DescribeVpcs")
    );
    Ok(())
}

pub(crate) async fn errors_of_balancers(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let overlay = rig.moto.overlay();
    overlay.fail(fault(
        "DescribeLoadBalancers",
        0,
        1,
        ProxyFault::Refused(400, "Throttling".into()),
    ));
    let error = rig.failure(DescribeLoadBalancers::default()).await?;
    let Seen::Response { code, status, request_id, .. } = error.cause else {
        anyhow::bail!("{error:?}")
    };
    assert_eq!((&*code, status), ("Throttling", 400));
    assert!(request_id.is_some());
    Ok(())
}

pub(crate) async fn lost_answers(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (_, [a, _]) = rig.network().await?;
    rig.moto
        .overlay()
        .fail(fault("CreateLoadBalancer", 0, 1, ProxyFault::AnswerLost));
    let error = rig.failure(balancers::wanted("nlb", &[&a])).await?;
    assert!(matches!(error.cause, Seen::NoResponse(_)), "{error:?}");
    assert_eq!(
        rig.send(DescribeLoadBalancers::default())
            .await?
            .items
            .len(),
        1,
        "it was carried out"
    );
    Ok(())
}

pub(crate) async fn topology(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (_, [a, b]) = rig.network().await?;
    let mut ids = Vec::new();
    for subnet in [&a, &a, &b] {
        ids.push(InstanceId::from(
            rig.fixture
                .instance(subnet, "p4d.24xlarge", &[], &[])
                .await?
                .id,
        ));
    }
    let found = rig
        .send(DescribeInstanceTopology { ids: ids.clone(), token: None })
        .await?;
    let of = |id: &InstanceId| {
        let item = found
            .items
            .iter()
            .find(|item| item.id == *id)
            .expect("the instance is there");
        item.network_nodes.clone()
    };
    let nodes: Vec<_> = ids.iter().map(of).collect();
    assert_eq!(nodes[0].len(), 3);
    assert_eq!(nodes[0], nodes[1], "one subnet");
    assert_eq!(
        (&nodes[0][0], nodes[0][1] == nodes[2][1], nodes[0][2] == nodes[2][2]),
        (&nodes[2][0], false, false)
    );
    let absent = DescribeInstanceTopology { ids: vec!["i-0123456789abcdef0".into()], token: None };
    assert_eq!(rig.refused(absent).await?, "InvalidInstanceID.NotFound");
    Ok(())
}

pub(crate) async fn names_are_taken_once(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, [a, b]) = rig.network().await?;
    let wanted = balancers::wanted("nlb", &[&a]);
    let made = rig.send(wanted.clone()).await?;
    assert_eq!(
        rig.send(wanted.clone()).await?.arn,
        made.arn,
        "with the same settings it is the same one"
    );
    let internal = CreateLoadBalancer { scheme: Scheme::Internal, ..wanted };
    assert_eq!(rig.refused(internal).await?, "DuplicateLoadBalancerName");
    assert_eq!(
        rig.refused(balancers::wanted("nlb", &[&a, &b])).await?,
        "DuplicateLoadBalancerName"
    );
    assert_eq!(
        rig.send(DescribeLoadBalancers::default())
            .await?
            .items
            .len(),
        1
    );

    let none = DescribeTargetGroups { load_balancer: Some(made.arn), ..Default::default() };
    assert_eq!(rig.send(none).await?.items, [], "none is no error");
    let group = rig
        .send(targets::wanted("tg", &vpc.id, ElbProtocol::Tcp))
        .await?;
    assert_eq!(
        rig.send(targets::wanted("tg", &vpc.id, ElbProtocol::Tcp))
            .await?
            .arn,
        group.arn
    );
    rig.send(DeleteTargetGroup { arn: group.arn.clone() })
        .await?;
    rig.send(DeleteTargetGroup { arn: group.arn }).await?;
    Ok(())
}
