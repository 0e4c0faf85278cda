//! A classic load balancer as cloud-provider-aws v1.37 makes it, request by request.

use std::collections::BTreeSet;

use ccm_core::k8s::ServiceView;

use super::fixture::Fixture;
use crate::{
    api::{
        Tags,
        classic::{
            ClassicAccessLog, ClassicAttributes, ClassicDraining, ClassicHealthCheck,
            ClassicListener, ConfigureClassicHealthCheck, CreateClassic, ModifyClassicAttributes,
            RegisterClassic,
        },
        ec2::{AuthorizeSecurityGroupIngress, CreateSecurityGroup, Rule, RuleSource},
        elb::Scheme,
    },
    lb::names,
};

fn tags(pairs: &[(&str, &str)]) -> Tags {
    pairs
        .iter()
        .map(|(key, value)| ((*key).into(), (*value).into()))
        .collect()
}

fn from_everywhere(protocol: &str, ports: (i32, i32)) -> Rule {
    Rule {
        protocol: protocol.into(),
        ports: Some(ports),
        source: RuleSource::Cidr("0.0.0.0/0".parse().unwrap()),
        description: Box::default(),
    }
}

/// Makes the load balancer of a Service without annotations, with these nodes by number, and returns
/// its host name.
// length: one request after the other, as upstream sends them
pub(super) async fn made_by_upstream(
    rig: &Fixture,
    web: &ServiceView,
    members: &[usize],
) -> Box<str> {
    let aws = &rig.aws;
    let name = names::load_balancer(&web.uid);
    // The security group, which has no tag for the Service.
    let group = CreateSecurityGroup {
        name: format!("k8s-elb-{name}").into(),
        description: format!("Security group for Kubernetes ELB {name} ({})", web.key()).into(),
        vpc: rig.world.vpc.clone(),
        tags: tags(&[("kubernetes.io/cluster/test", "owned")]),
    };
    let group = aws.ask(group).await.unwrap();
    let ports = web.ports.iter().map(|port| i32::from(port.port.get()));
    let mut rules: Vec<Rule> = ports
        .map(|port| from_everywhere("tcp", (port, port)))
        .collect();
    rules.push(from_everywhere("icmp", (3, 4)));
    let request = AuthorizeSecurityGroupIngress { id: group.clone(), rules };
    aws.ask(request).await.unwrap();
    // The load balancer, with protocols in lower case.
    let listener = |port: &ccm_core::k8s::ServicePort| ClassicListener {
        port: port.port.get(),
        protocol: "tcp".into(),
        instance_port: port.node_port.unwrap().get(),
        instance_protocol: "tcp".into(),
        certificate: None,
    };
    let create = CreateClassic {
        name: name.clone(),
        scheme: Scheme::InternetFacing,
        subnets: rig.world.public.clone(),
        security_groups: vec![group.clone()],
        listeners: web.ports.iter().map(listener).collect(),
        tags: tags(&[
            ("kubernetes.io/cluster/test", "owned"),
            ("kubernetes.io/service-name", &web.key().to_string()),
        ]),
    };
    let host = aws.ask(create).await.unwrap();
    let attributes = ClassicAttributes {
        access_log: Some(ClassicAccessLog::default()),
        draining: Some(ClassicDraining::default()),
        idle_timeout: Some(60),
        cross_zone: Some(false),
    };
    aws.ask(ModifyClassicAttributes { name: name.clone(), attributes })
        .await
        .unwrap();
    let first = web.ports[0].node_port.unwrap();
    let check = ClassicHealthCheck {
        target: format!("TCP:{first}").into(),
        interval: 10,
        timeout: 5,
        healthy: 2,
        unhealthy: 6,
    };
    aws.ask(ConfigureClassicHealthCheck { name: name.clone(), check })
        .await
        .unwrap();
    // The instances, which admit everything from it.
    let all = Rule {
        protocol: "-1".into(),
        ports: None,
        source: RuleSource::Group(group, None),
        description: Box::default(),
    };
    let id = rig.world.node_group.clone();
    aws.ask(AuthorizeSecurityGroupIngress { id, rules: vec![all] })
        .await
        .unwrap();
    let ids: BTreeSet<_> = members
        .iter()
        .map(|n| rig.world.nodes[*n].clone())
        .collect();
    aws.ask(RegisterClassic { name, instances: ids.into_iter().collect() })
        .await
        .unwrap();
    host
}
