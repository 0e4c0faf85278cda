//! Annotations of Services, as each provider reads them.

use std::{collections::BTreeSet, num::NonZeroU16, sync::Arc};

use ccm_aws::{lb::spec as aws, ownership_tags::Cluster};
use ccm_core::{
    k8s::{IpFamily, Protocol, ServicePort, ServiceView, TrafficPolicy},
    provider::{FieldError, LoadBalancers as _, ServiceInterpretation},
};
use ccm_mock::{CloudConfig, MockCloud, MockProvider, provider::annotations as mock};
use ccm_openstack::lb::{
    annotations as openstack, features::Features, settings::LoadBalancerSettings, spec,
};

use crate::input::Input;

/// Words of values.
pub const WORDS: &[&str] = VALUES;

const VALUES: &[&str] = &[
    "true",
    "false",
    "",
    "*",
    "on",
    "off",
    "nlb",
    "external",
    "nlb-ip",
    "ip",
    "instance",
    "internal",
    "dualstack",
    "ipv4",
    "80",
    "443",
    "0",
    "-1",
    "99999",
    "traffic-port",
    "HTTP",
    "TCP",
    "a=b",
    "a=b,c=d",
    "a",
    ",",
    "=",
    "k=v,k",
    "10.0.0.0/8",
    "fd00::/8",
    "::/0",
    "0.0.0.0/0",
    "subnet-1,subnet-2",
    "sg-1",
    "eipalloc-1",
    "10.0.0.7",
    "fd00::7",
    "200-399",
    "stickiness.enabled=true",
    "preserve_client_ip.enabled=false",
    "tcp.idle_timeout.seconds=400",
    "5s",
    "nodes",
    "endpoints",
    "internet-facing",
    "Proxy",
    "VIP",
    "arn:aws:acm:eu-west-1:1:certificate/1",
    "v1",
    "v2",
    "ü",
    "\u{0}",
];

/// Annotations of others, with keys that begin almost like ours.
const FOREIGN: [&str; 4] = [
    "example.com/scheme",
    "service.beta.kubernetes.io/azure-load-balancer-internal",
    "loadbalancer.openstack.orgs/x",
    "mock",
];

/// Draws a Service with annotations from the bytes.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let keys = keys();
    let service = service(&mut input, &keys);
    let foreign = {
        let mut other = service.clone();
        for key in FOREIGN {
            other
                .annotations
                .insert(key.into(), input.word(VALUES).into());
        }
        other
    };
    of_aws(&mut input, &service, &foreign, &keys);
    of_openstack(&mut input, &service, &foreign, &keys);
    of_mock(&service, &foreign, &keys);
}

/// The keys of all providers.
fn keys() -> Vec<Box<str>> {
    let mock = [
        mock::BACKENDS,
        mock::NODE_SELECTOR,
        mock::SCHEME,
        mock::IP_MODE,
        mock::ACTIVATION_DELAY,
        mock::LOAD_BALANCER_ID,
    ];
    ccm_aws::lb::spec::annotations::keys()
        .chain(openstack::keys())
        .chain(mock.map(Box::from))
        .collect()
}

fn service(input: &mut Input<'_>, keys: &[Box<str>]) -> ServiceView {
    let mut service = ServiceView {
        uid: "0f1e2d3c-0000-1111-2222-333344445555".into(),
        ..ServiceView::named("ns", "web")
    };
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    service.ports = input
        .list(3, |input| {
            let number = [53, 80, 443][input.up_to(2)];
            ServicePort {
                name: format!("p{number}").into(),
                protocol: protocols[input.up_to(2)],
                port: NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN),
                node_port: NonZeroU16::new(if input.one_in(4) { 0 } else { 30000 + number }),
                target_port: input.pick(&["8080", "web", ""]).into(),
                app_protocol: None,
            }
        })
        .into();
    let families = [&[][..], &[IpFamily::V4], &[IpFamily::V6], &[IpFamily::V4, IpFamily::V6]];
    service.ip_families = families[input.up_to(3)].into();
    if input.one_in(4) {
        service.external_traffic_policy = TrafficPolicy::Local;
        service.health_check_node_port = NonZeroU16::new(31999);
    }
    if input.one_in(4) {
        service.load_balancer_ip = Some(input.word(VALUES).into());
    }
    service.source_ranges = input.list(2, |input| input.word(VALUES).into()).into();
    let annotations = input.list(6, |input| {
        let mut key = keys[input.up_to(keys.len() - 1)].to_string();
        if key.ends_with('.') || input.one_in(16) {
            key += &input.word(&["80", "TCP-80", "x"]);
        }
        // Several values at once, as lists have.
        let value = input.list(2, |input| input.word(VALUES)).join(",");
        (
            Arc::from(key),
            Arc::from(if value.is_empty() {
                input.word(VALUES)
            } else {
                value
            }),
        )
    });
    service.annotations = annotations.into_iter().collect();
    if input.one_in(2) {
        service
            .annotations
            .insert("service.beta.kubernetes.io/aws-load-balancer-type".into(), "nlb".into());
    }
    service
}

fn of_aws(input: &mut Input<'_>, service: &ServiceView, foreign: &ServiceView, keys: &[Box<str>]) {
    let settings = ccm_aws::config::Settings {
        claim_external: input.one_in(2),
        managed_security_groups: input.one_in(2),
        annotation_dialect: if input.one_in(2) {
            ccm_aws::config::AnnotationDialect::Upstream
        } else {
            ccm_aws::config::AnnotationDialect::Extended
        },
        ..ccm_aws::config::Settings::default()
    };
    let cluster = Cluster::new("c", false);
    let read = |service: &ServiceView| aws::parse(service, &settings, &cluster).spec;
    let verdict = read(service);
    assert_eq!(read(foreign), verdict, "annotations of others count");
    match verdict {
        aws::ServiceSpec::Invalid(mistakes) => named(&mistakes, service, keys),
        aws::ServiceSpec::Nlb(wanted) => assert!(!wanted.listeners.is_empty()),
        aws::ServiceSpec::Classic(wanted) => assert!(!wanted.listeners.is_empty()),
        aws::ServiceSpec::ImplementedElsewhere => {}
    }
    let _ = aws::node_requirements_of(service);
}

fn of_openstack(
    input: &mut Input<'_>,
    service: &ServiceView,
    foreign: &ServiceView,
    keys: &[Box<str>],
) {
    let settings = LoadBalancerSettings {
        driver: ccm_openstack::lb::features::Driver::parse(input.pick(&["amphora", "ovn"])),
        manage_security_groups: input.one_in(2),
        monitor: input.one_in(2),
        ..LoadBalancerSettings::default()
    };
    let features = Features::new((2, 30), &settings.driver);
    let read = |service: &ServiceView| spec::parse(service, &settings, features, "c").desired;
    let wanted = read(service);
    assert_eq!(read(foreign), wanted, "annotations of others count");
    match wanted {
        Err(mistakes) => named(&mistakes, service, keys),
        Ok(wanted) => assert_eq!(wanted.name.is_empty(), service.name.is_empty()),
    }
}

fn of_mock(service: &ServiceView, foreign: &ServiceView, keys: &[Box<str>]) {
    let provider = MockProvider::new_in_process(
        MockCloud::new(&CloudConfig::default()).expect("it is the default"),
    );
    let claim = provider.interpret(service);
    assert_eq!(provider.interpret(foreign), claim, "annotations of others count");
    match claim {
        ServiceInterpretation::Invalid(mistakes) => named(&mistakes, service, keys),
        ServiceInterpretation::Valid { .. } => assert!(!service.ports.is_empty()),
        ServiceInterpretation::ImplementedElsewhere => panic!("without a class it is ours"),
    }
}

/// There are mistakes, and each names its annotation, or its field of the Service; none is told
/// twice.
fn named(mistakes: &[FieldError], service: &ServiceView, keys: &[Box<str>]) {
    assert!(!mistakes.is_empty());
    let told: BTreeSet<String> = mistakes.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), mistakes.len(), "told twice: {mistakes:?}");
    for mistake in mistakes {
        let field = &*mistake.field;
        let known = keys.iter().any(|key| field.starts_with(&**key));
        assert!(
            field.starts_with("spec.") || known || service.annotations.contains_key(field),
            "{mistake:?}"
        );
        assert!(!mistake.message.is_empty(), "{mistake:?}");
    }
}
