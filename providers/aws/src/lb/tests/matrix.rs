//! Kinds of Services, each with and without a security group on its balancer: what is made for it,
//! that nothing more is to be done then, and that nothing of it is left after its deletion.

use std::{collections::BTreeSet, sync::Arc};

use ccm_core::{
    k8s::{EndpointSliceView, EndpointView, Protocol, ServiceView, SlicePort, TrafficPolicy},
    provider::{
        BackendKind, Backends, ErrorKind, LbSpec, LoadBalancers, Progress, ReadMode,
        ServiceInterpretation,
    },
};

use super::fixture::{Fixture, fresh, published, service, with};
use crate::{
    api::{
        Action,
        elb::{ElbProtocol, HealthProtocol, IpAddressType, Scheme, TargetType},
    },
    config::Settings,
};

use ElbProtocol::{Tcp, TcpUdp, Tls, Udp};

/// A class that the AWS load balancer controller has.
const CLASS: &str = "service.k8s.aws/nlb";

/// A kind of Service and what is made for it.
struct Case {
    name: &'static str,
    service: ServiceView,
    listeners: &'static [(u16, ElbProtocol)],
    target_type: TargetType,
    scheme: Scheme,
    families: IpAddressType,
    check: HealthProtocol,
    /// Attributes of the load balancer, and of each target group, beside AWS' defaults.
    attributes: &'static [(&'static str, &'static str)],
}

fn case(
    name: &'static str,
    service: ServiceView,
    listeners: &'static [(u16, ElbProtocol)],
) -> Case {
    Case {
        name,
        service,
        listeners,
        target_type: TargetType::Instance,
        scheme: Scheme::InternetFacing,
        families: IpAddressType::Ipv4,
        check: HealthProtocol::Tcp,
        attributes: &[],
    }
}

fn udp(mut service: ServiceView, at: usize) -> ServiceView {
    service.ports[at].protocol = Protocol::Udp;
    service
}

fn local(service: ServiceView) -> ServiceView {
    let health_check_node_port = 32213_u16.try_into().ok();
    ServiceView {
        external_traffic_policy: TrafficPolicy::Local,
        health_check_node_port,
        ..service
    }
}

fn dns() -> ServiceView {
    let mut service = udp(service("dns", &[53, 53]), 1);
    service.ports[1].name = "udp".into();
    service
}

fn cases(certificate: &str) -> Vec<Case> {
    let web = || service("web", &[80]);
    let secure =
        with(with(service("web", &[80, 443]), "ssl-cert", certificate), "ssl-ports", "443");
    let logged =
        with(with(secure, "access-log-enabled", "true"), "access-log-s3-bucket-name", "logs");
    let pods = || with(web(), "nlb-target-type", "ip");
    let preserving = with(pods(), "target-group-attributes", "preserve_client_ip.enabled=true");
    let tagged = with(web(), "additional-resource-tags", "team=infra");
    let claimed = ServiceView { class: Some(CLASS.into()), ..web() };
    let http = HealthProtocol::Http;
    let logs: &[_] = &[("access_logs.s3.enabled", "true"), ("access_logs.s3.bucket", "logs")];
    let (ip, internal) = (TargetType::Ip, Scheme::Internal);
    vec![
        case("simple", web(), &[(80, Tcp)]),
        case("many ports", service("web", &[80, 443, 8443]), &[(80, Tcp), (443, Tcp), (8443, Tcp)]),
        Case {
            attributes: logs,
            ..case("TLS and access logs", logged, &[(80, Tcp), (443, Tls)])
        },
        Case {
            check: http,
            ..case("policy Local", local(web()), &[(80, Tcp)])
        },
        Case {
            check: http,
            ..case("UDP and policy Local", local(udp(web(), 0)), &[(80, Udp)])
        },
        case("TCP and UDP on one port", dns(), &[(53, TcpUdp)]),
        case("tags", tagged, &[(80, Tcp)]),
        Case {
            families: IpAddressType::Dualstack,
            ..case("dual stack", with(web(), "ip-address-type", "dualstack"), &[(80, Tcp)])
        },
        Case { target_type: ip, ..case("pods", pods(), &[(80, Tcp)]) },
        Case {
            target_type: ip,
            scheme: internal,
            attributes: &[("preserve_client_ip.enabled", "true")],
            ..case(
                "pods that see clients, internal",
                with(preserving, "internal", "true"),
                &[(80, Tcp)],
            )
        },
        Case { scheme: internal, ..case("class", claimed, &[(80, Tcp)]) },
    ]
}

fn spec(rig: &Fixture, service: &ServiceView) -> LbSpec {
    let ServiceInterpretation::Valid { backends, .. } = rig.balancers.interpret(service) else {
        panic!("{} is ours: {:?}", service.key(), rig.balancers.interpret(service));
    };
    match backends {
        BackendKind::Nodes(_) => rig.spec(service),
        BackendKind::Endpoints => {
            let port = SlicePort {
                name: "p80".into(),
                protocol: Protocol::Tcp,
                port: 8080_u16.try_into().ok(),
            };
            let endpoint = EndpointView {
                addresses: ["10.0.1.1".parse().unwrap()].into(),
                node: None,
                zone: None,
                ready: true,
                serving: true,
                terminating: false,
            };
            let slice = EndpointSliceView {
                ports: [port].into(),
                endpoints: [endpoint].into(),
                ..EndpointSliceView::named("default", "web-1", "web")
            };
            LbSpec {
                backends: Backends::Endpoints(vec![Arc::new(slice)]),
                ..rig.spec(service)
            }
        }
    }
}

fn is_as_wanted(rig: &Fixture, case: &Case, managed: bool) {
    let name = case.name;
    let [balancer] = &*rig.aws.load_balancers() else {
        panic!("{name}: {:?}", rig.aws.load_balancers())
    };
    assert_eq!(
        (balancer.scheme, balancer.ip_address_type),
        (Some(case.scheme), Some(case.families)),
        "{name}"
    );
    assert_eq!(balancer.security_groups.len(), usize::from(managed), "{name}");
    let listeners = rig.aws.listeners(&balancer.arn);
    let mut seen: Vec<_> = listeners
        .iter()
        .map(|l| (l.port, l.protocol.unwrap()))
        .collect();
    seen.sort();
    assert_eq!(seen, case.listeners, "{name}");
    let groups = rig.aws.target_groups();
    assert_eq!(groups.len(), case.listeners.len(), "{name}");
    let wanted = |(key, value): &(&str, &str), arn: &str| {
        rig.aws
            .attributes(arn)
            .get(*key)
            .is_some_and(|v| **v == **value)
    };
    for group in &groups {
        assert_eq!(group.target_type, Some(case.target_type), "{name}");
        assert_eq!(
            group.health_check.as_ref().map(|check| check.protocol),
            Some(case.check),
            "{name}"
        );
        let targets = if case.target_type == TargetType::Ip {
            1
        } else {
            2
        };
        assert_eq!(rig.aws.targets(&group.arn).len(), targets, "{name}");
    }
    for attribute in case.attributes {
        let objects = groups
            .iter()
            .map(|group| group.arn.as_str())
            .chain([balancer.arn.as_str()]);
        assert!(objects.into_iter().any(|arn| wanted(attribute, arn)), "{name}: {attribute:?}");
    }
}

// LB1
#[tokio::test(start_paused = true)]
async fn every_kind_of_service_is_made_stays_and_goes_with_and_without_a_security_group() {
    for managed in [false, true] {
        let settings = Settings {
            managed_security_groups: managed,
            classes: vec![CLASS.into()],
            ..Settings::default()
        };
        let certificate = Fixture::new(0).aws.certificate();
        for case in cases(&certificate) {
            let rig = Fixture::with(2, settings.clone());
            assert_eq!(rig.aws.certificate(), certificate);
            for (subnet, number) in rig.world.public.iter().zip(0..) {
                rig.aws
                    .add_ipv6(subnet, &format!("2001:db8:0:{number}::/64"));
            }
            let before = rig.aws.snapshot();
            let made = rig
                .balancers
                .ensure(&rig.op(), &spec(&rig, &fresh(&case.service)), ReadMode::Fresh)
                .await;
            assert!(matches!(made.result, Ok(Progress::Done)), "{}: {made:?}", case.name);
            is_as_wanted(&rig, &case, managed);
            let service = published(&case.service, &made.status.unwrap());
            // Another process finds nothing to do, neither at its first look nor when it compares
            // everything.
            let rig = rig.restart();
            for look in ["first", "second"] {
                let changes = rig
                    .balancers
                    .plan(&rig.op(), &spec(&rig, &service))
                    .await
                    .unwrap();
                assert!(changes.is_empty(), "{}, {look} look: {changes:?}", case.name);
            }
            assert_eq!(rig.reasons(), [""; 0], "{}", case.name);
            rig.remove(&service).await;
            assert!(
                rig.aws.snapshot() == before,
                "{}: {}",
                case.name,
                before.diff(&rig.aws.snapshot())
            );
        }
    }
}

// SG2, LB2
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_an_error_and_makes_no_balancer() {
    let cases = [
        (Action::DescribeLoadBalancers, false),
        (Action::DescribeSubnets, false),
        (Action::DescribeRouteTables, false),
        (Action::DescribeSecurityGroups, false),
        (Action::DescribeVpcs, true),
    ];
    for (action, pods) in cases {
        let rig =
            Fixture::with(2, Settings { managed_security_groups: true, ..Settings::default() });
        rig.aws.fail_always(action, "InternalError");
        let web = service("web", &[80]);
        let web = fresh(&if pods {
            with(web, "nlb-target-type", "ip")
        } else {
            web
        });
        let error = rig
            .balancers
            .ensure(&rig.op(), &spec(&rig, &web), ReadMode::Fresh)
            .await
            .result
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transient, "{action:?}");
        assert!(error.chain().contains("InternalError"), "{action:?}: {error}");
        assert_eq!(
            (rig.aws.load_balancers().len(), rig.aws.target_groups().len()),
            (0, 0),
            "{action:?}"
        );
    }
}

// TG5
#[tokio::test(start_paused = true)]
async fn attributes_of_target_groups_that_fail_are_an_error_that_names_the_request() {
    for action in [Action::DescribeTargetGroupAttributes, Action::ModifyTargetGroupAttributes] {
        let rig = Fixture::new(1);
        let web = service("web", &[80, 443]);
        rig.settle(&web).await;
        let rig = rig.restart();
        rig.aws.fail_next(action, "InvalidConfigurationRequest");
        let web = with(web, "target-group-attributes", "preserve_client_ip.enabled=false");
        let error = rig.ensure(&web, ReadMode::Fresh).await.result.unwrap_err();
        assert!(
            error
                .chain()
                .contains(&format!("{}: InvalidConfigurationRequest", action.name())),
            "{error}"
        );
        // The next attempt changes those that still differ, and no attribute that is not named.
        rig.settle(&web).await;
        for group in rig.aws.target_groups() {
            let attributes = rig.aws.attributes(&group.arn);
            assert_eq!(
                attributes
                    .get("preserve_client_ip.enabled")
                    .map(|value| &**value),
                Some("false")
            );
            assert_eq!(
                attributes
                    .get("proxy_protocol_v2.enabled")
                    .map(|value| &**value),
                Some("false")
            );
        }
        rig.aws.reset_calls();
        assert!(matches!(rig.ensure(&web, ReadMode::Fresh).await.result, Ok(Progress::Done)));
        assert_eq!(rig.aws.writes(), 0, "what is equal is not written");
    }
}

// LB6
#[tokio::test(start_paused = true)]
async fn a_living_balancer_keeps_its_subnets_unless_others_are_named() {
    let rig = Fixture::new(1);
    let web = service("web", &[80]);
    rig.settle(&web).await;
    let arn = rig.aws.load_balancers()[0].arn.clone();
    let subnets = |rig: &Fixture| {
        let zones = rig.aws.load_balancers()[0].zones.clone();
        zones
            .into_iter()
            .filter_map(|zone| zone.subnet)
            .collect::<BTreeSet<_>>()
    };
    let three: BTreeSet<_> = rig.world.public.iter().cloned().collect();
    assert_eq!(subnets(&rig), three);
    // One that discovery would take for a new one.
    rig.aws
        .public_subnet(&rig.world.vpc, "d", "10.0.48.0/20", &[("kubernetes.io/role/elb", "1")]);
    let rig = rig.restart();
    rig.settle(&web).await;
    assert_eq!(subnets(&rig), three);
    let two = &rig.world.public[..2];
    let web = with(web, "subnets", &format!("{},{}", two[0], two[1]));
    rig.settle(&web).await;
    assert_eq!(subnets(&rig), two.iter().cloned().collect());
    assert_eq!(
        (rig.aws.load_balancers()[0].arn.clone(), rig.reasons()),
        (arn, vec!["LoadBalancerSubnetsRemoved"])
    );
}
