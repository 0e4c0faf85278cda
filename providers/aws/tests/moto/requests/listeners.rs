use ccm_aws::api::{
    LoadBalancerArn, TargetGroupArn,
    elb::{
        AddListenerCertificates, CreateListener, DeleteListener, DeleteLoadBalancer,
        DeleteTargetGroup, DescribeListenerAttributes, DescribeListenerCertificates,
        DescribeListeners, DescribeTargetGroups, ElbProtocol, Listener, ListenerSpec,
        ModifyListener, ModifyListenerAttributes, RemoveListenerCertificates,
    },
};

use super::{
    balancers,
    fixture::{RequestFixture, tags},
    targets::{self, port},
};

fn spec(number: u16, protocol: ElbProtocol, target_group: &TargetGroupArn) -> ListenerSpec {
    ListenerSpec {
        port: port(number),
        protocol,
        target_group: target_group.clone(),
        certificate: None,
        ssl_policy: None,
        alpn_policy: None,
    }
}

fn wanted(load_balancer: &LoadBalancerArn, spec: ListenerSpec) -> CreateListener {
    CreateListener {
        load_balancer: load_balancer.clone(),
        spec,
        tags: tags(&[("k", "v")]),
    }
}

async fn all(
    rig: &RequestFixture<'_>,
    load_balancer: &LoadBalancerArn,
) -> anyhow::Result<Vec<Listener>> {
    let found = rig
        .send(DescribeListeners { load_balancer: load_balancer.clone(), token: None })
        .await?;
    assert_eq!(found.next, None);
    Ok(found.items)
}

/// A load balancer with target groups of these protocols.
async fn base(
    rig: &RequestFixture<'_>,
    protocols: &[ElbProtocol],
) -> anyhow::Result<(LoadBalancerArn, Vec<TargetGroupArn>)> {
    let (vpc, [a, _]) = rig.network().await?;
    let balancer = rig.send(balancers::wanted("nlb", &[&a])).await?.arn;
    let mut groups = Vec::new();
    for (number, protocol) in protocols.iter().enumerate() {
        groups.push(
            rig.send(targets::wanted(&format!("tg-{number}"), &vpc.id, *protocol))
                .await?
                .arn,
        );
    }
    Ok((balancer, groups))
}

pub(crate) async fn life(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let protocols = [ElbProtocol::Tcp, ElbProtocol::Udp, ElbProtocol::TcpUdp, ElbProtocol::Tcp];
    let (balancer, groups) = base(&rig, &protocols).await?;
    for (at, protocol) in protocols[..3].iter().enumerate() {
        let number = u16::try_from(at)? + 80;
        let made = rig
            .send(wanted(&balancer, spec(number, *protocol, &groups[at])))
            .await?;
        assert_eq!(
            (made.port, made.protocol, made.target_group.as_ref()),
            (number, Some(*protocol), Some(&groups[at]))
        );
        // moto says a policy for them all.
        assert_eq!((made.certificate, made.alpn_policy), (None, None));
    }
    let found = all(&rig, &balancer).await?;
    assert_eq!(
        found
            .iter()
            .map(|listener| listener.port)
            .collect::<Vec<_>>(),
        [80, 81, 82]
    );
    let used = DescribeTargetGroups { load_balancer: Some(balancer.clone()), ..Default::default() };
    let used = rig.send(used).await?.items;
    assert_eq!(used.len(), 3);
    assert!(
        used.iter()
            .all(|group| group.load_balancers == [balancer.clone()])
    );
    assert_eq!(
        rig.refused(DeleteTargetGroup { arn: groups[0].clone() })
            .await?,
        "ResourceInUse"
    );

    let tcp = found[0].arn.clone();
    rig.send(ModifyListener {
        arn: tcp.clone(),
        spec: spec(8080, ElbProtocol::Tcp, &groups[3]),
    })
    .await?;
    let changed = all(&rig, &balancer).await?.remove(0);
    assert_eq!((changed.port, changed.target_group.as_ref()), (8080, Some(&groups[3])));
    rig.send(DeleteListener { arn: tcp.clone() }).await?;
    assert_eq!(rig.refused(DeleteListener { arn: tcp }).await?, "ListenerNotFound");
    rig.send(DeleteLoadBalancer { arn: balancer.clone() })
        .await?;
    let gone = DescribeListeners { load_balancer: balancer, token: None };
    assert_eq!(rig.refused(gone).await?, "LoadBalancerNotFound");
    rig.send(DeleteTargetGroup { arn: groups[1].clone() })
        .await?;
    Ok(())
}

pub(crate) async fn tls(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (balancer, groups) = base(&rig, &[ElbProtocol::Tls, ElbProtocol::Tcp]).await?;
    let mut certificates = Vec::new();
    for name in ["a.example", "b.example", "c.example"] {
        certificates.push(Box::<str>::from(rig.fixture.certificate(name).await?));
    }
    let tls = ListenerSpec {
        certificate: Some(certificates[0].clone()),
        ssl_policy: Some("ELBSecurityPolicy-2016-08".into()),
        alpn_policy: Some("HTTP2Preferred".into()),
        ..spec(443, ElbProtocol::Tls, &groups[0])
    };
    let made = rig.send(wanted(&balancer, tls.clone())).await?;
    assert_eq!(
        (made.protocol, made.certificate.as_ref()),
        (Some(ElbProtocol::Tls), Some(&certificates[0]))
    );
    assert_eq!(made.ssl_policy.as_deref(), Some("ELBSecurityPolicy-2016-08"));
    assert_eq!(made.alpn_policy.as_deref(), Some("HTTP2Preferred"));

    let more = certificates[1..].to_vec();
    for certificate in &more {
        let certificates = vec![certificate.clone()];
        rig.send(AddListenerCertificates { arn: made.arn.clone(), certificates })
            .await?;
    }
    let listed = rig
        .send(DescribeListenerCertificates { arn: made.arn.clone() })
        .await?
        .items;
    let mut listed: Vec<_> = listed
        .into_iter()
        .map(|certificate| certificate.arn)
        .collect();
    listed.sort();
    let mut expected = certificates.clone();
    expected.sort();
    assert_eq!(listed, expected);
    rig.send(RemoveListenerCertificates {
        arn: made.arn.clone(),
        certificates: vec![more[0].clone()],
    })
    .await?;
    assert_eq!(
        rig.send(DescribeListenerCertificates { arn: made.arn.clone() })
            .await?
            .items
            .len(),
        2
    );

    let absent = ListenerSpec {
        certificate: Some(
            "arn:aws:acm:us-west-2:123456789012:certificate/00000000-0000-0000-0000-000000000000"
                .into(),
        ),
        ..ListenerSpec { port: port(444), ..tls.clone() }
    };
    assert_eq!(rig.refused(wanted(&balancer, absent)).await?, "CertificateNotFound");

    // The proxy mends what moto refuses here.
    let changed = ListenerSpec {
        certificate: Some(certificates[2].clone()),
        ssl_policy: Some("ELBSecurityPolicy-TLS-1-2-2017-01".into()),
        ..tls
    };
    rig.send(ModifyListener { arn: made.arn.clone(), spec: changed })
        .await?;
    let found = all(&rig, &balancer).await?.remove(0);
    assert_eq!(
        (found.protocol, found.certificate.as_ref()),
        (Some(ElbProtocol::Tls), Some(&certificates[2]))
    );
    assert_eq!(found.ssl_policy.as_deref(), Some("ELBSecurityPolicy-TLS-1-2-2017-01"));
    Ok(())
}

pub(crate) async fn attributes(rig: RequestFixture<'_>) -> anyhow::Result<()> {
    let (balancer, groups) = base(&rig, &[ElbProtocol::Tcp]).await?;
    let arn = rig
        .send(wanted(&balancer, spec(80, ElbProtocol::Tcp, &groups[0])))
        .await?
        .arn;
    let attributes = [("tcp.idle_timeout.seconds".into(), "77".into())].into();
    rig.send(ModifyListenerAttributes { arn: arn.clone(), attributes })
        .await?;
    let found = rig.send(DescribeListenerAttributes { arn }).await?;
    assert_eq!(found.get("tcp.idle_timeout.seconds").map(|value| &**value), Some("77"));
    Ok(())
}
