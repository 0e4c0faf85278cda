//! Wanted balancers by one line each, and plans carried out on a picture.

use super::super::*;
use crate::{
    api::elb::{
        CreateTargetGroup, ElbProtocol, Listener, LoadBalancer, LoadBalancerState,
        LoadBalancerZone, Target, TargetGroup,
    },
    lb::{
        apply::working_state::WorkingState,
        model::{DesiredListener, Tls},
        test_fixtures,
    },
};

pub(super) fn listener(port: u16, protocol: ElbProtocol, node_port: u16) -> DesiredListener {
    let tls = protocol == ElbProtocol::Tls;
    let backend = if tls { ElbProtocol::Tcp } else { protocol };
    let mut listener = test_fixtures::listener(port, node_port, backend);
    listener.protocol = protocol;
    listener.tls = tls.then(|| Tls {
        certificates: vec!["cert-1".into()],
        policy: None,
        alpn: None,
    });
    listener.target_group.name = format!("k8s-default-web-{port}-{node_port}-{backend}").into();
    listener
}

pub(super) fn wanted(listeners: Vec<DesiredListener>) -> DesiredLoadBalancer {
    let attributes = attributes(&[("load_balancing.cross_zone.enabled", "false")]);
    DesiredLoadBalancer {
        name: "au1".into(),
        listeners,
        attributes,
        ..test_fixtures::desired()
    }
}

pub(super) fn attributes(pairs: &[(&str, &str)]) -> Attributes {
    pairs
        .iter()
        .map(|(k, v)| ((*k).into(), (*v).into()))
        .collect()
}

pub(super) fn mapping(subnet: &str) -> SubnetMapping {
    SubnetMapping {
        subnet: subnet.into(),
        allocation: None,
        private_ipv4: None,
        ipv6: None,
        source_nat_prefix: None,
    }
}

pub(super) fn plan_input(wanted: &DesiredLoadBalancer, instances: &[&str]) -> PlanInput {
    let target = |id: &str, port: u16| Target { id: id.into(), port, zone: None };
    let targets = wanted.listeners.iter().map(|listener| {
        let port = listener.target_group.port.get();
        (
            (listener.port, listener.protocol),
            instances.iter().map(|id| target(id, port)).collect(),
        )
    });
    let tags =
        [("kubernetes.io/cluster/c", "owned"), ("kubernetes.io/service-name", "default/web")];
    PlanInput {
        vpc: "vpc-1".into(),
        tags: attributes(&tags)
            .into_iter()
            .chain(wanted.extra_tags.clone())
            .collect(),
        subnets: Some(vec![mapping("subnet-a"), mapping("subnet-b")]),
        groups: Vec::new(),
        targets: targets.collect(),
        rules_digest: Digest::of(wanted),
        keeps_targets: false,
    }
}

/// Carries out a step on a picture, giving new objects ARNs that tell what they are.
pub(super) fn carry_out(picture: &mut WorkingState, step: &PlannedAction, exposure: Digest) {
    match &step.action {
        ActionKind::CreateLoadBalancer(create) => {
            picture.load_balancer_created(balancer(create), &create.tags);
        }
        ActionKind::CreateTargetGroup(key, create) => {
            assert!(
                picture
                    .observed
                    .target_groups
                    .iter()
                    .all(|seen| seen.resource.name != create.name),
                "{} is taken",
                create.name
            );
            picture.target_group_created(*key, group(create), &create.tags);
        }
        ActionKind::CreateListener(settings) => {
            let seen = picture.observed.load_balancer.as_ref().unwrap();
            let place = |listener: &crate::lb::observe::observed::ObservedListener| {
                (listener.resource.port, listener.resource.protocol)
            };
            assert!(
                seen.listeners
                    .iter()
                    .all(|l| place(l) != (settings.key.0.get(), Some(settings.key.1)))
            );
            let listener = Listener {
                arn: format!("listener/{}/{}", settings.key.1, settings.key.0).into(),
                port: settings.key.0.get(),
                protocol: Some(settings.key.1),
                certificate: settings.certificate.clone(),
                ssl_policy: settings.ssl_policy.clone(),
                alpn_policy: settings.alpn_policy.clone(),
                target_group: Some(
                    picture
                        .target_group_arn(&settings.group)
                        .expect("its group is there"),
                ),
            };
            picture.listener_created(listener, &settings.tags);
        }
        ActionKind::RegisterTargets(of, targets) => {
            assert!(targets.len() <= 200);
            let arn = picture.target_group_arn(of).unwrap();
            picture.targets_changed(&arn, targets, &[]);
        }
        ActionKind::DeregisterTargets(arn, targets) => picture.targets_changed(arn, &[], targets),
        ActionKind::DeleteTargetGroup(arn) => {
            let listeners = picture
                .observed
                .load_balancer
                .iter()
                .flat_map(|b| &b.listeners);
            assert!(
                listeners
                    .clone()
                    .all(|l| l.resource.target_group.as_ref() != Some(arn)),
                "{arn} is in use"
            );
            picture.action_applied(&step.action);
        }
        ActionKind::RemoveSecurityGroupRules => picture.observed.rules_digest = Some(exposure),
        action => picture.action_applied(action),
    }
}

pub(super) fn balancer(create: &CreateLoadBalancer) -> LoadBalancer {
    let zone = |m: &SubnetMapping| LoadBalancerZone {
        subnet: Some(m.subnet.clone()),
        source_nat_prefixes: m
            .source_nat_prefix
            .iter()
            .map(|prefix| prefix.to_string().into())
            .collect(),
        ..LoadBalancerZone::default()
    };
    LoadBalancer {
        arn: format!("lb/{}", create.name).into(),
        name: create.name.clone(),
        dns_name: "x.elb.us-west-2.amazonaws.com".into(),
        kind: "network".into(),
        scheme: Some(create.scheme),
        state: Some(LoadBalancerState::Active),
        state_reason: "".into(),
        vpc: Some("vpc-1".into()),
        ip_address_type: Some(create.ip_address_type),
        zones: create.subnets.iter().map(zone).collect(),
        security_groups: create.security_groups.clone(),
        private_link_rules: None,
        ipv6_source_nat: create.ipv6_source_nat,
        created: None,
    }
}

pub(super) fn group(create: &CreateTargetGroup) -> TargetGroup {
    TargetGroup {
        arn: format!("tg/{}", create.name).into(),
        name: create.name.clone(),
        protocol: Some(create.protocol),
        port: create.port.get(),
        vpc: Some(create.vpc.clone()),
        target_type: Some(create.target_type),
        ip_address_type: Some(create.ip_address_type.unwrap_or(IpAddressType::Ipv4)),
        health_check: Some(create.health_check.clone()),
        load_balancers: Vec::new(),
    }
}

/// Carries out a whole plan, and plans again at every point where it may break off.
pub(super) fn reach(
    wanted: &DesiredLoadBalancer,
    plan_input: &PlanInput,
    from: &ObservedState,
) -> ObservedState {
    let steps = plan(wanted, plan_input, from).unwrap();
    let run = |steps: &[PlannedAction], from: ObservedState| {
        let mut picture = WorkingState::new(from);
        for step in steps {
            carry_out(&mut picture, step, plan_input.rules_digest);
        }
        picture.observed
    };
    let end = run(&steps, from.clone());
    assert_eq!(plan(wanted, plan_input, &end).unwrap(), [], "nothing is to be done on the result");
    for broken_off in 0..steps.len() {
        let there = run(&steps[..broken_off], from.clone());
        let rest = plan(wanted, plan_input, &there).unwrap();
        let mut again = run(&rest, there);
        let mut end = end.clone();
        for observed in [&mut again, &mut end] {
            observed
                .target_groups
                .sort_by(|a, b| a.resource.arn.cmp(&b.resource.arn));
            observed
                .load_balancer
                .as_mut()
                .unwrap()
                .listeners
                .sort_by(|a, b| a.resource.arn.cmp(&b.resource.arn));
        }
        assert_eq!(again, end, "broken off after {broken_off} of {steps:#?}");
    }
    end
}
