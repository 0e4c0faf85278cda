use super::*;
use crate::api::elb::{
    AddListenerCertificates, DeleteListener, DescribeListenerAttributes,
    DescribeListenerCertificates, DescribeListeners, ModifyListener, ModifyListenerAttributes,
    RemoveListenerCertificates,
};

async fn group_of(world: &FakeCluster, name: &str, protocol: ElbProtocol) -> TargetGroupArn {
    let request = CreateTargetGroup { protocol, ..target_group(&world.vpc, name) };
    world.aws.ask(request).await.unwrap().arn
}

#[tokio::test(start_paused = true)]
async fn listener_and_target_group_have_protocols_that_fit() {
    use ElbProtocol::{Tcp, TcpUdp, Tls, Udp};
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let certificate = aws.certificate();
    let arn = aws.ask(balancer(&world, "lb")).await.unwrap().arn;
    let fitting = [
        (Tcp, Tcp),
        (Tcp, TcpUdp),
        (Tls, Tcp),
        (Tls, Tls),
        (Udp, Udp),
        (Udp, TcpUdp),
        (TcpUdp, TcpUdp),
    ];
    let mut number = 0;
    for group in ElbProtocol::ALL {
        let target_group = group_of(&world, &group.as_str().replace('_', "-"), *group).await;
        for protocol in ElbProtocol::ALL {
            number += 1;
            let certificate = (*protocol == Tls).then(|| certificate.clone());
            let spec = ListenerSpec {
                protocol: *protocol,
                certificate,
                ..spec(number, &target_group)
            };
            let expected = if fitting.contains(&(*protocol, *group)) {
                "ok"
            } else {
                "IncompatibleProtocols"
            };
            assert_eq!(code(aws, listener(&arn, spec)).await, expected, "{protocol} to {group}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_port_takes_one_listener() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let (arn, tcp) = stack(&world).await;
    let udp = group_of(&world, "udp", ElbProtocol::Udp).await;
    let both = group_of(&world, "both", ElbProtocol::TcpUdp).await;
    let other = group_of(&world, "other", ElbProtocol::Tcp).await;
    let of =
        |protocol, number, group| listener(&arn, ListenerSpec { protocol, ..spec(number, group) });
    let cases = [
        ("the same again", of(ElbProtocol::Tcp, 80, &tcp), "ok"),
        ("to another group", of(ElbProtocol::Tcp, 80, &other), "DuplicateListener"),
        ("UDP on a TCP port", of(ElbProtocol::Udp, 80, &udp), "DuplicateListener"),
        ("both on a TCP port", of(ElbProtocol::TcpUdp, 80, &both), "DuplicateListener"),
        ("another port", of(ElbProtocol::Udp, 53, &udp), "ok"),
    ];
    for (name, request, expected) in cases {
        assert_eq!(code(aws, request).await, expected, "{name}");
    }
    let second = aws.listeners(&arn).remove(0);
    assert_eq!(second.port, 53);
    let move_to = |number, group| ModifyListener {
        arn: second.arn.clone(),
        spec: ListenerSpec { protocol: ElbProtocol::Udp, ..spec(number, group) },
    };
    assert_eq!(code(aws, move_to(80, &udp)).await, "DuplicateListener");
    assert_eq!(code(aws, move_to(54, &udp)).await, "ok");
    assert_eq!(code(aws, move_to(54, &tcp)).await, "IncompatibleProtocols");
    aws.quotas(|quotas| quotas.listeners_per_load_balancer = 2);
    assert_eq!(code(aws, of(ElbProtocol::Tcp, 81, &tcp)).await, "TooManyListeners");
}

#[tokio::test(start_paused = true)]
async fn a_target_group_serves_one_load_balancer() {
    let world = FakeCluster::small(0);
    let (_, group) = stack(&world).await;
    let other = world.aws.ask(balancer(&world, "other")).await.unwrap().arn;
    assert_eq!(
        code(&world.aws, listener(&other, spec(80, &group))).await,
        "TargetGroupAssociationLimit"
    );
    assert_eq!(
        code(&world.aws, listener(&other, spec(80, &"arn:none".into()))).await,
        "TargetGroupNotFound"
    );
    assert_eq!(
        code(&world.aws, listener(&"arn:none".into(), spec(80, &group))).await,
        "LoadBalancerNotFound"
    );
}

#[tokio::test(start_paused = true)]
async fn tls_needs_a_certificate_and_known_policies() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let (arn, group) = stack(&world).await;
    let known = aws.certificate();
    let tls = |certificate: Option<&str>, policy: Option<&str>, alpn: Option<&str>| ListenerSpec {
        protocol: ElbProtocol::Tls,
        certificate: certificate.map(Into::into),
        ssl_policy: policy.map(Into::into),
        alpn_policy: alpn.map(Into::into),
        ..spec(443, &group)
    };
    let cases = [
        ("no certificate", tls(None, None, None), "ValidationError"),
        ("unknown certificate", tls(Some("arn:aws:acm:x"), None, None), "CertificateNotFound"),
        ("unknown policy", tls(Some(&known), Some("x"), None), "SSLPolicyNotFound"),
        ("unknown ALPN policy", tls(Some(&known), None, Some("x")), "ValidationError"),
        (
            "certificate for TCP",
            ListenerSpec { protocol: ElbProtocol::Tcp, ..tls(Some(&known), None, None) },
            "ValidationError",
        ),
        ("good", tls(Some(&known), None, Some("HTTP2Only")), "ok"),
    ];
    for (name, spec, expected) in cases {
        assert_eq!(code(aws, listener(&arn, spec)).await, expected, "{name}");
    }
    let made = aws.listeners(&arn).remove(1);
    assert_eq!(made.ssl_policy.as_deref(), Some("ELBSecurityPolicy-2016-08"));

    // What a change does not name stays; without TLS all of it goes.
    let change = |spec| ModifyListener { arn: made.arn.clone(), spec };
    aws.ask(change(tls(None, Some("ELBSecurityPolicy-TLS13-1-2-2021-06"), None)))
        .await
        .unwrap();
    let changed = aws.listeners(&arn).remove(1);
    assert_eq!(
        (changed.certificate, changed.alpn_policy.as_deref()),
        (Some(known), Some("HTTP2Only"))
    );
    assert_eq!(changed.ssl_policy.as_deref(), Some("ELBSecurityPolicy-TLS13-1-2-2021-06"));
    aws.ask(change(spec(443, &group))).await.unwrap();
    let changed = aws.listeners(&arn).remove(1);
    assert_eq!((changed.certificate, changed.ssl_policy, changed.alpn_policy), (None, None, None));
}

#[tokio::test(start_paused = true)]
async fn more_certificates_come_and_go_and_the_default_one_stays() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let (balancer, group) = stack(&world).await;
    let [one, two, three] = [(); 3].map(|()| aws.certificate());
    let tls = ListenerSpec {
        protocol: ElbProtocol::Tls,
        certificate: Some(one.clone()),
        ..spec(443, &group)
    };
    let arn = aws.ask(listener(&balancer, tls)).await.unwrap().arn;
    let add = |arn: &crate::api::ListenerArn, certificate: &str| AddListenerCertificates {
        arn: arn.clone(),
        certificates: vec![certificate.into()],
    };
    assert_eq!(code(aws, add(&arn, &two)).await, "ok");
    assert_eq!(code(aws, add(&arn, "arn:aws:acm:x")).await, "CertificateNotFound");
    assert_eq!(code(aws, add(&"arn:none".into(), &two)).await, "ListenerNotFound");
    let plain = aws.listeners(&balancer)[0].arn.clone();
    assert_eq!(code(aws, add(&plain, &two)).await, "ValidationError");
    aws.quotas(|quotas| quotas.certificates_per_load_balancer = 1);
    assert_eq!(code(aws, add(&arn, &three)).await, "TooManyCertificates");
    let have = aws
        .ask(DescribeListenerCertificates { arn: arn.clone() })
        .await
        .unwrap()
        .items;
    let have: Vec<_> = have.iter().map(|it| (&*it.arn, it.default)).collect();
    assert_eq!(have, [(&*one, true), (&*two, false)]);
    let remove = |certificate: &str| RemoveListenerCertificates {
        arn: arn.clone(),
        certificates: vec![certificate.into()],
    };
    assert_eq!(code(aws, remove(&one)).await, "OperationNotPermitted");
    assert_eq!(code(aws, remove(&two)).await, "ok");
    let certificates = vec![two, three];
    let both = AddListenerCertificates { arn: arn.clone(), certificates: certificates.clone() };
    assert_eq!(code(aws, both).await, "ValidationError", "one in each call");
    assert_eq!(
        code(aws, RemoveListenerCertificates { arn, certificates }).await,
        "ValidationError"
    );
}

#[tokio::test(start_paused = true)]
async fn dualstack_and_udp_need_ipv6_targets_and_source_nat() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    for (n, subnet) in world.public.iter().enumerate() {
        aws.add_ipv6(subnet, &format!("fd00:{n}::/64"));
    }
    let v4 = aws.ask(balancer(&world, "v4")).await.unwrap().arn;
    let dual = CreateLoadBalancer {
        ip_address_type: IpAddressType::Dualstack,
        ..balancer(&world, "dual")
    };
    let nat = CreateLoadBalancer {
        name: "nat".into(),
        ipv6_source_nat: Some(true),
        ..dual.clone()
    };
    let (dual, nat) = (aws.ask(dual).await.unwrap().arn, aws.ask(nat).await.unwrap().arn);
    let mut number = 0;
    let cases = [
        (&v4, ElbProtocol::Tcp, IpAddressType::Ipv6, "InvalidConfigurationRequest"),
        (&dual, ElbProtocol::Tcp, IpAddressType::Ipv4, "ok"),
        (&dual, ElbProtocol::Tcp, IpAddressType::Ipv6, "ok"),
        (&dual, ElbProtocol::Udp, IpAddressType::Ipv4, "InvalidConfigurationRequest"),
        (&dual, ElbProtocol::Udp, IpAddressType::Ipv6, "InvalidConfigurationRequest"),
        (&nat, ElbProtocol::Udp, IpAddressType::Ipv6, "ok"),
    ];
    for (arn, protocol, family, expected) in cases {
        number += 1;
        let name = format!("tg-{number}");
        let ip_address_type = Some(family);
        let group =
            CreateTargetGroup { protocol, ip_address_type, ..target_group(&world.vpc, &name) };
        let group = aws.ask(group).await.unwrap().arn;
        let spec = ListenerSpec { protocol, ..spec(number, &group) };
        assert_eq!(code(aws, listener(arn, spec)).await, expected, "{protocol} {family} on {arn}");
    }
}

#[tokio::test(start_paused = true)]
async fn listeners_have_attributes_and_are_deleted_once() {
    let world = FakeCluster::small(0);
    let aws = &world.aws;
    let (balancer, _) = stack(&world).await;
    let list =
        |arn: &LoadBalancerArn| DescribeListeners { load_balancer: arn.clone(), token: None };
    let arn = aws.ask(list(&balancer)).await.unwrap().items[0].arn.clone();
    assert!(arn.contains(":listener/net/lb/"));
    assert_eq!(code(aws, list(&"arn:none".into())).await, "LoadBalancerNotFound");
    let have = aws
        .ask(DescribeListenerAttributes { arn: arn.clone() })
        .await
        .unwrap();
    assert_eq!(&*have["tcp.idle_timeout.seconds"], "350");
    let set = |key: &str, value: &str| ModifyListenerAttributes {
        arn: arn.clone(),
        attributes: builders::tags_of(&[(key, value)]),
    };
    assert_eq!(code(aws, set("tcp.idle_timeout.seconds", "60")).await, "ok");
    assert_eq!(code(aws, set("tcp.idle_timeout.seconds", "59")).await, "ValidationError");
    assert_eq!(code(aws, set("unknown", "1")).await, "ValidationError");
    let delete = DeleteListener { arn: arn.clone() };
    assert_eq!(code(aws, delete.clone()).await, "ok");
    assert_eq!(code(aws, delete).await, "ListenerNotFound");
}
