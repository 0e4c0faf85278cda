//! Classic load balancers: what AWS' documentation says of each request.

use super::*;
use crate::api::{
    SecurityGroupId,
    classic::{
        AddClassicTags, AttachClassicSubnets, ClassicAccessLog, ClassicAttributes, ClassicDraining,
        ClassicHealthCheck, ClassicListener, ConfigureClassicHealthCheck, CreateClassic,
        CreateClassicListeners, CreateClassicPolicy, DeleteClassic, DeleteClassicListeners,
        DeregisterClassic, DescribeClassic, DescribeClassicAttributes, DescribeClassicTags,
        DetachClassicSubnets, ModifyClassicAttributes, RegisterClassic, SetClassicBackendPolicies,
        SetClassicListenerPolicies, SetClassicSecurityGroups,
    },
    ec2::DeleteSecurityGroup,
};

const NAME: &str = "old";

fn listener(port: u16, protocol: &str, certificate: Option<&str>) -> ClassicListener {
    let backend = if protocol.starts_with("HTTP") {
        "http"
    } else {
        "tcp"
    };
    ClassicListener {
        port,
        protocol: protocol.into(),
        instance_port: 30000 + port,
        instance_protocol: backend.into(),
        certificate: certificate.map(Into::into),
    }
}

fn create(world: &FakeCluster, group: &SecurityGroupId) -> CreateClassic {
    CreateClassic {
        name: NAME.into(),
        scheme: Scheme::InternetFacing,
        subnets: world.public.clone(),
        security_groups: vec![group.clone()],
        listeners: vec![listener(80, "tcp", None)],
        tags: tags(&[("kubernetes.io/cluster/test", "owned")]),
    }
}

/// A load balancer with a group of its own.
async fn world() -> (FakeCluster, SecurityGroupId) {
    let world = FakeCluster::small(2);
    let group = world.aws.security_group(&world.vpc, "own", &[]);
    world.aws.ask(create(&world, &group)).await.unwrap();
    (world, group)
}

async fn the_only(aws: &FakeAws) -> crate::api::classic::ClassicLoadBalancer {
    let named = DescribeClassic { names: vec![NAME.into()], token: None };
    aws.ask(named).await.unwrap().items.remove(0)
}

#[tokio::test(start_paused = true)]
async fn creation_checks_name_listeners_subnets_and_groups() {
    let (world, group) = world().await;
    let good = || CreateClassic { name: "new".into(), ..create(&world, &group) };
    let with = |listener| CreateClassic { listeners: vec![listener], ..good() };
    let unmatched = ClassicListener {
        instance_protocol: "http".into(),
        ..listener(80, "tcp", None)
    };
    let private = [world.public[0].clone(), world.private[0].clone()].to_vec();
    let cases = [
        (create(&world, &group), "DuplicateLoadBalancerName"),
        (CreateClassic { name: "-a".into(), ..good() }, "ValidationError"),
        (CreateClassic { listeners: vec![], ..good() }, "ValidationError"),
        (with(listener(80, "udp", None)), "UnsupportedProtocol"),
        (with(listener(443, "ssl", None)), "CertificateNotFound"),
        (with(listener(443, "ssl", Some("arn:x"))), "CertificateNotFound"),
        (with(listener(80, "tcp", Some("arn:x"))), "InvalidConfigurationRequest"),
        (with(unmatched), "InvalidConfigurationRequest"),
        (CreateClassic { subnets: vec!["subnet-1".into()], ..good() }, "SubnetNotFound"),
        (CreateClassic { subnets: private, ..good() }, "InvalidConfigurationRequest"),
        (CreateClassic { security_groups: vec!["sg-1".into()], ..good() }, "InvalidSecurityGroup"),
        (CreateClassic { tags: tags(&[("aws:x", "")]), ..good() }, "ValidationError"),
        (good(), "ok"),
    ];
    for (request, expected) in cases {
        assert_eq!(code(&world.aws, request.clone()).await, expected, "{request:?}");
    }
    world.aws.quotas(|quotas| quotas.classic_load_balancers = 2);
    let third = CreateClassic { name: "third".into(), ..good() };
    assert_eq!(code(&world.aws, third).await, "TooManyLoadBalancers");
}

#[tokio::test(start_paused = true)]
async fn listeners_are_made_once_and_cannot_change() {
    let (world, _) = world().await;
    let aws = &world.aws;
    let certificate = aws.certificate();
    let make = |listener| CreateClassicListeners { name: NAME.into(), listeners: vec![listener] };
    assert_eq!(code(aws, make(listener(80, "TCP", None))).await, "ok", "the same again");
    let other = ClassicListener { instance_port: 1, ..listener(80, "tcp", None) };
    assert_eq!(code(aws, make(other)).await, "DuplicateListener");
    assert_eq!(code(aws, make(listener(443, "ssl", Some(&certificate)))).await, "ok");
    let there = the_only(aws).await;
    assert_eq!(*there.listeners[0].listener.protocol, *"TCP", "in capitals");
    assert_eq!(*there.listeners[1].policies, [Box::<str>::from("ELBSecurityPolicy-2016-08")]);
    let delete = DeleteClassicListeners { name: NAME.into(), ports: vec![80, 81] };
    assert_eq!(code(aws, delete).await, "ok");
    assert_eq!(the_only(aws).await.listeners.len(), 1);
    let unknown = DeleteClassicListeners { name: "none".into(), ports: vec![80] };
    assert_eq!(code(aws, unknown).await, "LoadBalancerNotFound");
}

#[tokio::test(start_paused = true)]
async fn policies_are_made_before_they_are_used() {
    let (world, _) = world().await;
    let aws = &world.aws;
    let make = |policy: &str, kind: &str, key: &str, value: &str| CreateClassicPolicy {
        name: NAME.into(),
        policy: policy.into(),
        kind: kind.into(),
        attribute: (key.into(), value.into()),
    };
    let backend = |instance_port, policies: &[&str]| SetClassicBackendPolicies {
        name: NAME.into(),
        instance_port,
        policies: policies.iter().map(|it| (*it).into()).collect(),
    };
    let of_listener = |port, policies: &[&str]| SetClassicListenerPolicies {
        name: NAME.into(),
        port,
        policies: policies.iter().map(|it| (*it).into()).collect(),
    };
    let proxy = || make("p", "ProxyProtocolPolicyType", "ProxyProtocol", "true");
    let tls = |value| make("t", "SSLNegotiationPolicyType", "Reference-Security-Policy", value);
    assert_eq!(code(aws, backend(30080, &["p"])).await, "PolicyNotFound");
    assert_eq!(code(aws, make("p", "Other", "a", "b")).await, "PolicyTypeNotFound");
    assert_eq!(code(aws, proxy()).await, "ok");
    assert_eq!(code(aws, proxy()).await, "DuplicatePolicyName");
    assert_eq!(code(aws, tls("strong")).await, "InvalidConfigurationRequest");
    assert_eq!(code(aws, tls("ELBSecurityPolicy-2015-05")).await, "ok");
    assert_eq!(code(aws, backend(1, &["p"])).await, "InvalidConfigurationRequest");
    assert_eq!(code(aws, backend(30080, &["t"])).await, "InvalidConfigurationRequest");
    assert_eq!(code(aws, backend(30080, &["p"])).await, "ok");
    assert_eq!(code(aws, of_listener(80, &["t"])).await, "InvalidConfigurationRequest");
    assert_eq!(code(aws, of_listener(443, &["t"])).await, "ListenerNotFound");
    // The policy of a port outlives its listener.
    let delete = DeleteClassicListeners { name: NAME.into(), ports: vec![80] };
    assert_eq!(code(aws, delete).await, "ok");
    assert_eq!(the_only(aws).await.backends.len(), 1);
    assert_eq!(code(aws, backend(30080, &[])).await, "ok");
    assert_eq!(the_only(aws).await.backends, []);
    assert_eq!(the_only(aws).await.policies.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn health_check_and_attributes_have_limits() {
    let (world, _) = world().await;
    let aws = &world.aws;
    let check = |target: &str, interval, timeout, healthy| ConfigureClassicHealthCheck {
        name: NAME.into(),
        check: ClassicHealthCheck {
            target: target.into(),
            interval,
            timeout,
            healthy,
            unhealthy: 2,
        },
    };
    let cases = [
        (check("HTTP:80/x", 10, 5, 2), "ok"),
        (check("HTTP:80", 10, 5, 2), "ValidationError"),
        (check("TCP:80/x", 10, 5, 2), "ValidationError"),
        (check("TCP:0", 10, 5, 2), "ValidationError"),
        (check("tcp:80", 10, 5, 2), "ValidationError"),
        (check("TCP:80", 5, 5, 2), "ValidationError"),
        (check("TCP:80", 301, 5, 2), "ValidationError"),
        (check("TCP:80", 10, 5, 1), "ValidationError"),
    ];
    for (request, expected) in cases {
        assert_eq!(code(aws, request.clone()).await, expected, "{request:?}");
    }
    let modify = |attributes| ModifyClassicAttributes { name: NAME.into(), attributes };
    let log = |bucket: Option<&str>, interval| ClassicAttributes {
        access_log: Some(ClassicAccessLog {
            enabled: true,
            interval,
            bucket: bucket.map(Into::into),
            prefix: None,
        }),
        ..ClassicAttributes::default()
    };
    let idle =
        |seconds| ClassicAttributes { idle_timeout: Some(seconds), ..ClassicAttributes::default() };
    let draining = ClassicAttributes {
        draining: Some(ClassicDraining { enabled: true, timeout: Some(3601) }),
        ..ClassicAttributes::default()
    };
    let cases = [
        (modify(log(None, None)), "InvalidConfigurationRequest"),
        (modify(log(Some("b"), Some(10))), "ValidationError"),
        (modify(log(Some("b"), None)), "ok"),
        (modify(idle(0)), "ValidationError"),
        (modify(idle(4000)), "ok"),
        (modify(draining), "ValidationError"),
    ];
    for (request, expected) in cases {
        assert_eq!(code(aws, request.clone()).await, expected, "{request:?}");
    }
    let found = aws
        .ask(DescribeClassicAttributes { name: NAME.into() })
        .await
        .unwrap();
    assert_eq!(found.idle_timeout, Some(4000));
    assert_eq!(found.access_log.unwrap().interval, Some(60));
    let default = ClassicDraining { enabled: false, timeout: Some(300) };
    assert_eq!(found.draining, Some(default));
}

#[tokio::test(start_paused = true)]
async fn subnets_and_groups_hold_interfaces() {
    let (world, group) = world().await;
    let aws = &world.aws;
    let attach = |subnets: &[SubnetId]| AttachClassicSubnets {
        name: NAME.into(),
        subnets: subnets.to_vec(),
    };
    let detach = |subnets: &[SubnetId]| DetachClassicSubnets {
        name: NAME.into(),
        subnets: subnets.to_vec(),
    };
    let delete = || DeleteSecurityGroup { id: group.clone() };
    assert_eq!(
        code(aws, attach(&world.private[..1])).await,
        "InvalidConfigurationRequest",
        "a zone takes one subnet"
    );
    assert_eq!(code(aws, detach(&world.public)).await, "InvalidConfigurationRequest");
    assert_eq!(code(aws, detach(&world.public[..1])).await, "ok");
    assert_eq!(code(aws, attach(&world.private[..1])).await, "ok");
    assert_eq!(code(aws, delete()).await, "DependencyViolation");
    let none = SetClassicSecurityGroups { name: NAME.into(), groups: vec![] };
    assert_eq!(code(aws, none).await, "InvalidConfigurationRequest");
    let other =
        SetClassicSecurityGroups { name: NAME.into(), groups: vec![world.node_group.clone()] };
    assert_eq!(code(aws, other).await, "ok");
    assert_eq!(code(aws, delete()).await, "ok");
}

#[tokio::test(start_paused = true)]
async fn they_have_members_and_tags() {
    let (world, _) = world().await;
    let (aws, n) = (&world.aws, &world.nodes);
    let unknown = DescribeClassic { names: vec!["none".into()], token: None };
    assert_eq!(code(aws, unknown).await, "LoadBalancerNotFound");
    let add = AddClassicTags { name: NAME.into(), tags: tags(&[("a", "1")]) };
    assert_eq!(code(aws, add).await, "ok");
    let found = aws
        .ask(DescribeClassicTags { names: vec![NAME.into()] })
        .await
        .unwrap();
    assert_eq!(found[0].1.len(), 2);
    let add = |id: &str| RegisterClassic { name: NAME.into(), instances: vec![id.into()] };
    assert_eq!(code(aws, add(&n[0])).await, "ok");
    assert_eq!(code(aws, add(&n[1])).await, "ok");
    assert_eq!(code(aws, add("i-0123456789abcdef0")).await, "InvalidInstance");
    let remove = DeregisterClassic { name: NAME.into(), instances: vec![n[0].clone()] };
    assert_eq!(code(aws, remove).await, "ok");
    assert_eq!(the_only(aws).await.instances, n[1..]);
    let delete = DeleteClassic { name: NAME.into() };
    assert_eq!(
        (code(aws, delete.clone()).await, code(aws, delete).await),
        ("ok".into(), "ok".into())
    );
}
