use ccm_aws::api::elb::{
    CreateTargetGroup, DeleteTargetGroup, DeregisterTargets, DescribeTargetGroupAttributes,
    DescribeTargetGroups, DescribeTargetHealth, ElbProtocol, HealthCheck, HealthPort,
    HealthProtocol, IpAddressType, ModifyTargetGroup, ModifyTargetGroupAttributes, RegisterTargets,
    Target, TargetGroup, TargetType,
};

use super::fixture::{RequestFixture, tags};

pub(crate) fn port(number: u16) -> std::num::NonZeroU16 {
    std::num::NonZeroU16::new(number).expect("a port is not 0")
}

pub(crate) fn tcp_check() -> HealthCheck {
    HealthCheck {
        protocol: HealthProtocol::Tcp,
        port: HealthPort::Traffic,
        path: None,
        interval: 30,
        timeout: 10,
        healthy: 3,
        unhealthy: 3,
        matcher: None,
    }
}

pub(crate) fn wanted(name: &str, vpc: &str, protocol: ElbProtocol) -> CreateTargetGroup {
    CreateTargetGroup {
        name: name.into(),
        protocol,
        port: port(30080),
        vpc: vpc.into(),
        target_type: TargetType::Instance,
        ip_address_type: None,
        health_check: tcp_check(),
        tags: tags(&[("kubernetes.io/service-name", "ns/name")]),
    }
}

async fn by_arn(rig: &RequestFixture<'_>, group: &TargetGroup) -> anyhow::Result<TargetGroup> {
    let request = DescribeTargetGroups { arns: vec![group.arn.clone()], ..Default::default() };
    Ok(rig.send(request).await?.items.remove(0))
}

pub(crate) async fn life(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, _) = rig.network().await?;
    for protocol in ElbProtocol::ALL {
        let made = rig
            .send(wanted(&protocol.to_string().replace('_', "-"), &vpc.id, *protocol))
            .await?;
        assert_eq!((made.protocol, made.port), (Some(*protocol), 30080));
        assert_eq!(
            (made.target_type, made.vpc.as_deref()),
            (Some(TargetType::Instance), Some(&*vpc.id))
        );
        assert_eq!(made.health_check, Some(tcp_check()));
        assert_eq!(made, by_arn(&rig, &made).await?);
    }
    let ip = CreateTargetGroup {
        target_type: TargetType::Ip,
        ip_address_type: Some(IpAddressType::Ipv6),
        ..wanted("ip", &vpc.id, ElbProtocol::Tcp)
    };
    let made = rig.send(ip).await?;
    assert_eq!(
        (made.target_type, made.ip_address_type),
        (Some(TargetType::Ip), Some(IpAddressType::Ipv6))
    );
    let all = rig.send(DescribeTargetGroups::default()).await?;
    assert_eq!((all.items.len(), all.next), (5, None));
    let named = DescribeTargetGroups { names: vec!["ip".into()], ..Default::default() };
    assert_eq!(rig.send(named.clone()).await?.items, [made.clone()]);
    let other = CreateTargetGroup { port: port(1), ..wanted("ip", &vpc.id, ElbProtocol::Udp) };
    assert_eq!(rig.refused(other).await?, "DuplicateTargetGroupName");

    rig.send(DeleteTargetGroup { arn: made.arn.clone() })
        .await?;
    assert_eq!(rig.refused(named).await?, "TargetGroupNotFound");
    Ok(())
}

pub(crate) async fn health_checks(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, _) = rig.network().await?;
    let http = HealthCheck {
        protocol: HealthProtocol::Http,
        port: HealthPort::Number(port(31234)),
        path: Some("/healthz".into()),
        interval: 10,
        timeout: 6,
        healthy: 2,
        unhealthy: 4,
        matcher: Some("200-399".into()),
    };
    let made = rig
        .send(CreateTargetGroup {
            health_check: http.clone(),
            ..wanted("tg", &vpc.id, ElbProtocol::Tcp)
        })
        .await?;
    assert_eq!(made.health_check, Some(http.clone()));
    let https = HealthCheck {
        protocol: HealthProtocol::Https,
        port: HealthPort::Traffic,
        path: Some("/other".into()),
        interval: 20,
        timeout: 7,
        healthy: 5,
        unhealthy: 6,
        matcher: Some("204".into()),
    };
    rig.send(ModifyTargetGroup { arn: made.arn.clone(), health_check: https.clone() })
        .await?;
    let sent = rig.moto.overlay().take().pop().expect("a request was sent");
    assert_eq!(sent.parameter("Matcher.HttpCode"), Some("204"));
    // moto changes the codes of a group with protocol HTTP alone.
    let expected = HealthCheck { matcher: http.matcher, ..https };
    assert_eq!(by_arn(&rig, &made).await?.health_check, Some(expected));
    Ok(())
}

pub(crate) async fn members(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, [subnet, _]) = rig.network().await?;
    let one = rig.fixture.instance(&subnet, "t3.small", &[], &[]).await?;
    let two = rig.fixture.instance(&subnet, "t3.small", &[], &[]).await?;
    let group = rig.send(wanted("tg", &vpc.id, ElbProtocol::Tcp)).await?;
    let target = |id: &str| Target { id: id.into(), port: 30080, zone: None };
    let register = RegisterTargets {
        arn: group.arn.clone(),
        targets: vec![target(&one.id), target(&two.id)],
    };
    rig.send(register.clone()).await?;
    rig.send(register).await?;
    let health = rig
        .send(DescribeTargetHealth { arn: group.arn.clone() })
        .await?;
    let mut found: Vec<_> = health
        .iter()
        .map(|health| (&health.target, &*health.state))
        .collect();
    found.sort();
    let (first, second) = (target(&one.id), target(&two.id));
    let mut expected = vec![(&first, "healthy"), (&second, "healthy")];
    expected.sort();
    assert_eq!(found, expected);

    let deregister = DeregisterTargets { arn: group.arn.clone(), targets: vec![target(&one.id)] };
    rig.send(deregister).await?;
    rig.fixture.instance_state("StopInstances", &two.id).await?;
    let health = rig
        .send(DescribeTargetHealth { arn: group.arn.clone() })
        .await?;
    let [health] = &health[..] else {
        anyhow::bail!("{health:?}")
    };
    assert_eq!(
        (&health.target, &*health.state, &*health.reason),
        (&second, "unused", "Target.InvalidState")
    );

    let ip = CreateTargetGroup {
        target_type: TargetType::Ip,
        ..wanted("ip", &vpc.id, ElbProtocol::Tcp)
    };
    let group = rig.send(ip).await?;
    let outside = Target { id: "192.168.7.7".into(), port: 80, zone: Some("all".into()) };
    rig.send(RegisterTargets { arn: group.arn.clone(), targets: vec![outside.clone()] })
        .await?;
    let sent = rig.moto.overlay().take().pop().expect("a request was sent");
    assert_eq!(sent.parameter("Targets.member.1.AvailabilityZone"), Some("all"));
    let health = rig.send(DescribeTargetHealth { arn: group.arn }).await?;
    assert_eq!((&*health[0].target.id, health[0].target.port), ("192.168.7.7", 80));
    Ok(())
}

pub(crate) async fn attributes(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (vpc, _) = rig.network().await?;
    let arn = rig.send(wanted("tg", &vpc.id, ElbProtocol::Tcp)).await?.arn;
    let changes = [
        ("preserve_client_ip.enabled".into(), "false".into()),
        ("deregistration_delay.timeout_seconds".into(), "17".into()),
    ];
    let attributes = changes.clone().into();
    rig.send(ModifyTargetGroupAttributes { arn: arn.clone(), attributes })
        .await?;
    let attributes = rig.send(DescribeTargetGroupAttributes { arn }).await?;
    for (key, value) in changes {
        assert_eq!(attributes.get(&key), Some(&value));
    }
    Ok(())
}
