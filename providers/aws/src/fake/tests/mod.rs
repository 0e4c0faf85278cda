//! What the in-memory AWS promises: AWS' contract, rule by rule.

mod balancers;
mod classic;
mod ec2;
mod faults;
mod groups;
mod listeners;
mod targets;

use std::num::NonZeroU16;

use super::{classic::mapping, *};
use crate::api::{
    LoadBalancerArn, SubnetId, TargetGroupArn, VpcId,
    ec2::DescribeInstances,
    elb::{
        CreateListener, CreateLoadBalancer, CreateTargetGroup, ElbProtocol, HealthCheck,
        HealthPort, HealthProtocol, IpAddressType, ListenerSpec, Scheme, SubnetMapping, TargetType,
    },
};

/// Asks, and returns the code of the answer: `ok` when it is none.
async fn code<R: Request>(aws: &FakeAws, request: R) -> String {
    match aws.ask(request).await {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.code().to_owned(),
    }
}

fn port(port: u16) -> NonZeroU16 {
    NonZeroU16::new(port).unwrap()
}

fn tags(pairs: &[(&str, &str)]) -> crate::api::Tags {
    builders::tags_of(pairs)
}

/// An internet-facing load balancer in the public subnets.
fn balancer(world: &FakeCluster, name: &str) -> CreateLoadBalancer {
    CreateLoadBalancer {
        name: name.into(),
        scheme: Scheme::InternetFacing,
        ip_address_type: IpAddressType::Ipv4,
        subnets: world.public.iter().map(mapping).collect(),
        security_groups: Vec::new(),
        ipv6_source_nat: None,
        tags: tags(&[("a", "1")]),
    }
}

fn health_check() -> HealthCheck {
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

fn target_group(vpc: &VpcId, name: &str) -> CreateTargetGroup {
    CreateTargetGroup {
        name: name.into(),
        protocol: ElbProtocol::Tcp,
        port: port(30_080),
        vpc: vpc.clone(),
        target_type: TargetType::Instance,
        ip_address_type: None,
        health_check: health_check(),
        tags: tags(&[("a", "1")]),
    }
}

fn spec(number: u16, target_group: &TargetGroupArn) -> ListenerSpec {
    ListenerSpec {
        port: port(number),
        protocol: ElbProtocol::Tcp,
        target_group: target_group.clone(),
        certificate: None,
        ssl_policy: None,
        alpn_policy: None,
    }
}

fn listener(balancer: &LoadBalancerArn, spec: ListenerSpec) -> CreateListener {
    CreateListener { load_balancer: balancer.clone(), spec, tags: tags(&[]) }
}

/// Makes a load balancer with a target group behind port 80.
async fn stack(world: &FakeCluster) -> (LoadBalancerArn, TargetGroupArn) {
    let balancer = world.aws.ask(balancer(world, "lb")).await.unwrap().arn;
    let group = world
        .aws
        .ask(target_group(&world.vpc, "tg"))
        .await
        .unwrap()
        .arn;
    world
        .aws
        .ask(listener(&balancer, spec(80, &group)))
        .await
        .unwrap();
    (balancer, group)
}

#[tokio::test(start_paused = true)]
async fn a_world_is_as_its_documentation_says() {
    let world = FakeCluster::small(4);
    let items = world
        .aws
        .ask(DescribeInstances::default())
        .await
        .unwrap()
        .items;
    let zones: Vec<_> = items.iter().map(|instance| &*instance.zone).collect();
    assert_eq!(zones, ["us-west-2a", "us-west-2b", "us-west-2c", "us-west-2a"]);
    assert_eq!(&*items[0].private_dns_name, "ip-10-0-128-4.us-west-2.compute.internal");
    let subnets = world
        .aws
        .ask(crate::api::ec2::DescribeSubnets::default())
        .await
        .unwrap()
        .items;
    let networks: Vec<_> = subnets
        .iter()
        .filter_map(|subnet| subnet.cidr)
        .map(|cidr| cidr.to_string())
        .collect();
    let expected = [
        "10.0.0.0/20",
        "10.0.16.0/20",
        "10.0.32.0/20",
        "10.0.128.0/20",
        "10.0.144.0/20",
        "10.0.160.0/20",
    ];
    assert_eq!(networks, expected);
    assert_eq!(subnets[3].free_ips, 4096 - 5 - 2);
    assert_eq!(world.aws.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn equal_histories_have_equal_ids_and_snapshots_and_others_differ() {
    let (one, two) = (FakeCluster::small(2), FakeCluster::small(2));
    assert_eq!(stack(&one).await, stack(&two).await);
    assert_eq!(one.aws.snapshot(), two.aws.snapshot());

    // Made, deleted and made again: other ARNs, same snapshot.
    let (balancer, _) = stack(&one).await;
    one.aws
        .ask(crate::api::elb::DeleteLoadBalancer { arn: balancer.clone() })
        .await
        .unwrap();
    let (again, group) = stack(&one).await;
    assert_ne!(again, balancer);
    assert_eq!(one.aws.snapshot(), two.aws.snapshot());

    one.aws.tag(&group, "b", "2");
    let diff = two.aws.snapshot().diff(&one.aws.snapshot());
    assert_eq!(diff, "- target group tg: tags: a=1\n+ target group tg: tags: a=1, b=2\n");
}
