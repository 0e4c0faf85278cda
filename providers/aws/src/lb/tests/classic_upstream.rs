//! A classic load balancer as cloud-provider-aws v1.37 makes it, request by request.

use std::collections::BTreeSet;

use ccm_core::k8s::{ServiceView, TrafficPolicy};

use super::fixture::Fixture;
use crate::{
    api::{
        SecurityGroupId, Tags,
        classic::{
            ClassicAccessLog, ClassicAttributes, ClassicDraining, ClassicHealthCheck,
            ClassicListener, ConfigureClassicHealthCheck, CreateClassic, CreateClassicPolicy,
            ModifyClassicAttributes, RegisterClassic, SetClassicBackendPolicies,
            SetClassicListenerPolicies,
        },
        ec2::{AuthorizeSecurityGroupIngress, CreateSecurityGroup, Rule, RuleSource},
        elb::Scheme,
    },
    lb::{names, spec::annotations::PREFIX},
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

/// Returns the value of an annotation, or empty text.
fn annotation<'a>(web: &'a ServiceView, suffix: &str) -> &'a str {
    let found = web.annotations.get(&*format!("{PREFIX}{suffix}"));
    found.map_or("", |text| &**text)
}

/// Returns the IDs in an annotation.
fn ids(web: &ServiceView, suffix: &str) -> Vec<SecurityGroupId> {
    let text = annotation(web, suffix).split(',');
    text.filter(|id| !id.is_empty())
        .map(SecurityGroupId::from)
        .collect()
}

/// Makes the own security group, which has no tag for the Service.
pub(super) async fn own_group_by_upstream(rig: &Fixture, web: &ServiceView) -> SecurityGroupId {
    let name = names::load_balancer(&web.uid);
    let group = CreateSecurityGroup {
        name: format!("k8s-elb-{name}").into(),
        description: format!("Security group for Kubernetes ELB {name} ({})", web.key()).into(),
        vpc: rig.world.vpc.clone(),
        tags: tags(&[("kubernetes.io/cluster/test", "owned")]),
    };
    let group = rig.aws.ask(group).await.unwrap();
    let ports = web.ports.iter().map(|port| i32::from(port.port.get()));
    let mut rules: Vec<Rule> = ports
        .map(|port| from_everywhere("tcp", (port, port)))
        .collect();
    rules.push(from_everywhere("icmp", (3, 4)));
    let request = AuthorizeSecurityGroupIngress { id: group.clone(), rules };
    rig.aws.ask(request).await.unwrap();
    group
}

/// Makes policies and gives them to listeners and instance ports.
async fn policies_by_upstream(rig: &Fixture, web: &ServiceView) {
    let name = names::load_balancer(&web.uid);
    let policy = |policy: &str, kind: &str, attribute: (&str, &str)| CreateClassicPolicy {
        name: name.clone(),
        policy: policy.into(),
        kind: kind.into(),
        attribute: (attribute.0.into(), attribute.1.into()),
    };
    if annotation(web, "proxy-protocol") == "*" {
        let made = "k8s-proxyprotocol-enabled";
        let request = policy(made, "ProxyProtocolPolicyType", ("ProxyProtocol", "true"));
        rig.aws.ask(request).await.unwrap();
        for port in &web.ports {
            let request = SetClassicBackendPolicies {
                name: name.clone(),
                instance_port: port.node_port.unwrap().get(),
                policies: vec![made.into()],
            };
            rig.aws.ask(request).await.unwrap();
        }
    }
    let reference = annotation(web, "ssl-negotiation-policy");
    if !reference.is_empty() {
        let made = format!("k8s-SSLNegotiationPolicy-{reference}");
        let attribute = ("Reference-Security-Policy", reference);
        let request = policy(&made, "SSLNegotiationPolicyType", attribute);
        rig.aws.ask(request).await.unwrap();
        let port = annotation(web, "ssl-ports").parse().unwrap();
        let policies = vec![made.into()];
        let request = SetClassicListenerPolicies { name: name.clone(), port, policies };
        rig.aws.ask(request).await.unwrap();
    }
}

/// Makes the load balancer of a Service with these nodes by number, and returns its host name. Knows
/// the annotations for groups, TLS and proxy protocol, and the traffic policy `Local`.
// length: one request after the other, as upstream sends them
pub(super) async fn made_by_upstream(
    rig: &Fixture,
    web: &ServiceView,
    members: &[usize],
) -> Box<str> {
    let aws = &rig.aws;
    let name = names::load_balancer(&web.uid);
    // The security groups.
    let mut groups = ids(web, "security-groups");
    if groups.is_empty() {
        groups.push(own_group_by_upstream(rig, web).await);
    }
    let group = groups[0].clone();
    groups.extend(ids(web, "extra-security-groups"));
    // The load balancer, with protocols in lower case.
    let listener = |port: &ccm_core::k8s::ServicePort| {
        let has_tls = annotation(web, "ssl-ports") == port.port.get().to_string();
        ClassicListener {
            port: port.port.get(),
            protocol: if has_tls { "ssl" } else { "tcp" }.into(),
            instance_port: port.node_port.unwrap().get(),
            instance_protocol: "tcp".into(),
            certificate: has_tls.then(|| annotation(web, "ssl-cert").into()),
        }
    };
    let create = CreateClassic {
        name: name.clone(),
        scheme: Scheme::InternetFacing,
        subnets: rig.world.public.clone(),
        security_groups: groups,
        listeners: web.ports.iter().map(listener).collect(),
        tags: tags(&[
            ("kubernetes.io/cluster/test", "owned"),
            ("kubernetes.io/service-name", &web.key()),
        ]),
    };
    let host = aws.ask(create).await.unwrap();
    policies_by_upstream(rig, web).await;
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
        target: match (web.external_traffic_policy, web.health_check_node_port) {
            (TrafficPolicy::Local, Some(port)) => format!("HTTP:{port}/healthz"),
            _ => format!("TCP:{first}"),
        }
        .into(),
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
