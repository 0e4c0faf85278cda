//! Tests of parsing Services.

use std::{num::NonZeroU16, sync::Arc, time::Duration};

use ccm_core::k8s::{Protocol, ServicePort, SessionAffinity, TrafficPolicy};

use super::*;
use crate::lb::{
    body,
    features::Driver,
    model::{ListenerProtocol, MonitorKind, PoolProtocol},
    settings::{HealthMonitorSettings, NetworkSettings},
    subnets::FloatingSubnet,
};

fn amphora() -> Features {
    Features::new((2, 30), &Driver::parse("amphora"))
}

fn port(protocol: Protocol, number: u16) -> ServicePort {
    ServicePort {
        name: format!("p{number}").into(),
        protocol,
        port: NonZeroU16::new(number).unwrap(),
        node_port: NonZeroU16::new(30000 + number),
        target_port: "80".into(),
        app_protocol: None,
    }
}

fn service(annotations: &[(&str, &str)]) -> ServiceView {
    let key = |key: &str| {
        if key.contains('/') {
            key.into()
        } else {
            format!("{}{key}", annotations::PREFIX)
        }
    };
    let annotations = annotations
        .iter()
        .map(|(k, v)| (Arc::from(key(k)), Arc::from(*v)))
        .collect();
    ServiceView {
        annotations,
        ip_families: [IpFamily::V4].into(),
        ports: [port(Protocol::Tcp, 80)].into(),
        uid: "uid-1".into(),
        ..ServiceView::named("ns", "web")
    }
}

fn wanted_of(
    service: &ServiceView,
    settings: &LoadBalancerSettings,
    features: Features,
) -> DesiredLoadBalancer {
    *parse(service, settings, features, "c1").desired.unwrap()
}

fn wanted(annotations: &[(&str, &str)]) -> DesiredLoadBalancer {
    wanted_of(&service(annotations), &LoadBalancerSettings::default(), amphora())
}

fn mistakes_of(service: &ServiceView, settings: &LoadBalancerSettings) -> Vec<String> {
    let features = Features::new((2, 30), &settings.driver);
    parse(service, settings, features, "c1")
        .desired
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn reasons(
    service: &ServiceView,
    settings: &LoadBalancerSettings,
    features: Features,
) -> Vec<&'static str> {
    parse(service, settings, features, "c1")
        .notices
        .iter()
        .map(|remark| remark.reason)
        .collect()
}

#[test]
fn a_plain_service_has_the_defaults() {
    let wanted = wanted(&[]);
    assert_eq!(&*wanted.name, "kube_service_c1_ns_web");
    assert_eq!(&*wanted.create_settings.driver, "amphora");
    let [listener] = &*wanted.listeners else {
        panic!("{wanted:?}")
    };
    assert_eq!(
        (listener.protocol, listener.port, listener.connection_limit),
        (ListenerProtocol::Tcp, 80, -1)
    );
    let timeouts = listener.timeouts.unwrap();
    let timeouts = (
        timeouts.client_data,
        timeouts.member_connect,
        timeouts.member_data,
        timeouts.tcp_inspect,
    );
    assert_eq!(timeouts, (50_000, 5_000, 50_000, 0));
    assert_eq!(listener.allowed, Some(vec!["0.0.0.0/0".parse().unwrap()]));
    assert_eq!((listener.pool.protocol, listener.pool.node_port), (PoolProtocol::Tcp, Some(30080)));
    assert_eq!(
        (&listener.pool.monitor, &wanted.security_group, wanted.internal),
        (&None, &None, false)
    );
}

// L08 L09 L10 L11 L12 L13
#[test]
fn tls_goes_before_forwarding_and_that_before_the_ports_protocol() {
    let cases = [
        (true, false, Protocol::Tcp, "TERMINATED_HTTPS"),
        (false, true, Protocol::Tcp, "HTTP"),
        (false, false, Protocol::Tcp, "TCP"),
        (false, false, Protocol::Udp, "UDP"),
        (false, false, Protocol::Sctp, "SCTP"),
        (true, true, Protocol::Tcp, "TERMINATED_HTTPS"),
    ];
    for (tls, forwarded_for, protocol, wanted) in cases {
        assert_eq!(ListenerProtocol::choose(tls, forwarded_for, protocol).as_str(), wanted);
    }
}

const REF: (&str, &str) = ("default-tls-container-ref", "https://keys/v1/containers/abc");
const XFF: (&str, &str) = ("x-forwarded-for", "true");

// L19 H04
#[test]
fn bodies_have_what_octavia_knows_and_no_more() {
    let (new, old) = (amphora(), Features::new((2, 4), &Driver::parse("amphora")));
    let limited = [("connection-limit", "100"), ("enable-health-monitor", "true")];
    let tags = |features| {
        let wanted = wanted_of(&service(&limited), &LoadBalancerSettings::default(), features);
        let body = body::listener(&wanted.listeners[0], &wanted.name, features);
        assert_eq!((body.protocol_port, body.connection_limit), (80, Some(100)));
        assert_eq!(body.protocol, Some("TCP".into()));
        body.tags
    };
    assert_eq!(tags(new), Some(vec!["kube_service_c1_ns_web".to_owned()]));
    assert_eq!(tags(old), None);
    let settings = LoadBalancerSettings { monitor: true, ..LoadBalancerSettings::default() };
    let checked = |health| {
        let pool = wanted_of(&local(Protocol::Tcp, health), &settings, new)
            .listeners
            .remove(0)
            .pool;
        let body = body::monitor(&pool.monitor.unwrap(), 0, "lb");
        [
            body.kind.map(|kind| kind.to_string()),
            body.http_method,
            body.url_path,
            body.expected_codes,
        ]
    };
    assert_eq!(
        checked(Some(32100)),
        ["HTTP", "GET", "/healthz", "200"].map(|text| Some(text.to_owned()))
    );
    assert_eq!(checked(None), [Some("TCP".to_owned()), None, None, None]);
}

// L19 L20 L21 L22 L23
#[test]
fn listeners_are_built_from_annotations() {
    let one = |annotations: &[(&str, &str)]| wanted(annotations).listeners.remove(0);
    let plain = one(&[("connection-limit", "100")]);
    assert_eq!(
        (plain.protocol, plain.connection_limit, plain.forwarded_for),
        (ListenerProtocol::Tcp, 100, false)
    );
    let both = one(&[REF, XFF]);
    assert_eq!((both.protocol, both.forwarded_for), (ListenerProtocol::TerminatedHttps, true));
    assert_eq!(both.tls_container.as_deref(), Some(REF.1));
    let tls = one(&[REF]);
    assert_eq!((tls.protocol, tls.forwarded_for), (ListenerProtocol::TerminatedHttps, false));
    let ranges = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let limited = one(&[REF, XFF, (ranges, "10.1.2.3/8, 192.168.0.0/16")]);
    let allowed: Vec<_> = limited
        .allowed
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(allowed, ["10.0.0.0/8", "192.168.0.0/16"]);
    assert_eq!(
        (limited.protocol, limited.forwarded_for),
        (ListenerProtocol::TerminatedHttps, true)
    );
    let forwarded = one(&[XFF]);
    assert_eq!((forwarded.protocol, forwarded.forwarded_for), (ListenerProtocol::Http, true));
    let old = Features::new((2, 1), &Driver::parse(""));
    let old = wanted_of(&service(&[]), &LoadBalancerSettings::default(), old)
        .listeners
        .remove(0);
    assert_eq!(old.allowed, None);
}

// O01 O02 O03 O06
#[test]
fn pools_speak_what_the_listener_and_its_options_ask_for() {
    let (v1, v2) = (Some(ProxyProtocol::V1), Some(ProxyProtocol::V2));
    let cases = [
        (v1, false, Protocol::Tcp, "PROXY"),
        (None, true, Protocol::Tcp, "HTTP"),
        (None, true, Protocol::Udp, "UDP"),
        (v2, false, Protocol::Tcp, "PROXYV2"),
        (None, false, Protocol::Tcp, "TCP"),
        (None, false, Protocol::Udp, "UDP"),
        (None, false, Protocol::Sctp, "SCTP"),
    ];
    for (proxy, http, protocol, wanted) in cases {
        assert_eq!(PoolProtocol::choose(proxy, http, protocol).as_str(), wanted);
    }
}

// O01 O04 O05 O07
#[test]
fn algorithm_and_affinity_are_read() {
    let settings = LoadBalancerSettings {
        method: "SOURCE_IP_PORT".into(),
        ..LoadBalancerSettings::default()
    };
    let one = |service: &ServiceView| {
        wanted_of(service, &settings, amphora())
            .listeners
            .remove(0)
            .pool
    };
    let plain = one(&service(&[]));
    assert_eq!((&*plain.method, plain.session_persistence), ("SOURCE_IP_PORT", false));
    let affinity = SessionAffinity::ClientIp(Duration::from_secs(10800));
    let sticky = ServiceView {
        session_affinity: affinity,
        ..service(&[("lb-method", "ROUND_ROBIN")])
    };
    let sticky = one(&sticky);
    assert_eq!((&*sticky.method, sticky.session_persistence), ("ROUND_ROBIN", true));
    let unknown = service(&[("lb-method", "FASTEST")]);
    assert_eq!(&*one(&unknown).method, "SOURCE_IP_PORT");
    assert_eq!(reasons(&unknown, &settings, amphora()), ["LoadBalancerLbMethodUnknown"]);
}

// X01 X02 X03 X04 X05 X06
#[test]
fn proxy_protocol_is_off_unless_it_is_named() {
    let cases =
        [("false", None), ("true", Some(ProxyProtocol::V1)), ("v1", Some(ProxyProtocol::V1))];
    for (text, wanted) in
        cases
            .into_iter()
            .chain([("v2", Some(ProxyProtocol::V2)), ("", None), ("V2", None)])
    {
        assert_eq!(ProxyProtocol::parse(text), wanted, "{text:?}");
    }
    assert_eq!(
        wanted(&[("proxy-protocol", "v2")]).listeners[0]
            .pool
            .protocol,
        PoolProtocol::ProxyV2
    );
    assert_eq!(wanted(&[]).listeners[0].pool.protocol, PoolProtocol::Tcp);
}

fn local(protocol: Protocol, health: Option<u16>) -> ServiceView {
    ServiceView {
        external_traffic_policy: TrafficPolicy::Local,
        health_check_node_port: health.and_then(NonZeroU16::new),
        ports: [port(protocol, 80)].into(),
        ..service(&[])
    }
}

// H01 H02 H03 H04
#[test]
fn monitors_ask_kube_proxy_where_the_driver_can() {
    let checks = HealthMonitorSettings {
        delay: Duration::from_secs(6),
        timeout: Duration::from_secs(5),
        max_retries: 4,
        max_retries_down: 3,
    };
    let cases = [
        (Protocol::Udp, "ovn", Some(32100), MonitorKind::UdpConnect, None),
        (Protocol::Tcp, "ovn", Some(32100), MonitorKind::Tcp, None),
        (Protocol::Tcp, "amphora", None, MonitorKind::Tcp, None),
        (Protocol::Tcp, "amphora", Some(32100), MonitorKind::Http, Some(32100)),
        (Protocol::Udp, "amphora", Some(32100), MonitorKind::Http, Some(32100)),
        (Protocol::Sctp, "amphora", None, MonitorKind::Sctp, None),
    ];
    for (protocol, driver, health, kind, monitor_port) in cases {
        let settings = LoadBalancerSettings {
            monitor: true,
            checks,
            driver: Driver::parse(driver),
            ..LoadBalancerSettings::default()
        };
        let features = Features::new((2, 30), &settings.driver);
        let pool = wanted_of(&local(protocol, health), &settings, features)
            .listeners
            .remove(0)
            .pool;
        let monitor = pool.monitor.unwrap();
        assert_eq!(
            (monitor.kind, pool.monitor_port),
            (kind, monitor_port),
            "{protocol:?} {driver}"
        );
        let numbers =
            (monitor.delay, monitor.timeout, monitor.max_retries, monitor.max_retries_down);
        assert_eq!(numbers, (6, 5, 4, 3));
    }
    let old = Features::new((2, 15), &Driver::parse(""));
    let settings = LoadBalancerSettings { monitor: true, ..LoadBalancerSettings::default() };
    let pool = wanted_of(&local(Protocol::Udp, Some(32100)), &settings, old)
        .listeners
        .remove(0)
        .pool;
    assert_eq!((pool.monitor.unwrap().kind, pool.monitor_port), (MonitorKind::UdpConnect, None));
}

#[test]
fn local_traffic_without_checks_is_remarked() {
    let unchecked = local(Protocol::Tcp, Some(32100));
    assert_eq!(
        reasons(&unchecked, &LoadBalancerSettings::default(), amphora()),
        ["LoadBalancerLocalWithoutMonitor"]
    );
    assert_eq!(
        reasons(
            &unchecked,
            &LoadBalancerSettings { monitor: true, ..LoadBalancerSettings::default() },
            amphora()
        ),
        [""; 0]
    );
}

fn classes() -> LoadBalancerSettings {
    let of = |name: &str| NetworkSettings {
        floating_network: format!("{name}-floating").into(),
        floating_subnet: FloatingSubnet::from_settings("", &format!("{name}-*"), ""),
        network: format!("{name}-network").into(),
        subnet: format!("{name}-subnet").into(),
        member_subnet: format!("{name}-member").into(),
    };
    LoadBalancerSettings {
        networks: of("config"),
        classes: [("fast".into(), of("fast"))].into(),
        ..LoadBalancerSettings::default()
    }
}

// I01 I02 I03 I04 I05 I06 I07 I08 I09 I10 I11 I12
#[test]
fn annotations_go_before_the_class_and_that_before_the_configuration() {
    type Choose = fn(&str, &str, &LoadBalancerSettings) -> Result<Option<Box<str>>, FieldError>;
    let kinds: [(&str, Choose); 3] = [
        ("member", choose_member_subnet),
        ("subnet", choose_vip_subnet),
        ("network", choose_vip_network),
    ];
    let settings = classes();
    for (kind, choose) in kinds {
        let chosen = |annotation, class| choose(annotation, class, &settings).unwrap().unwrap();
        assert_eq!(&*chosen("given", "none"), "given");
        assert_eq!(*chosen("", "fast"), format!("fast-{kind}"));
        assert_eq!(*chosen("", ""), format!("config-{kind}"));
        let mistake = choose("", "none", &settings).unwrap_err();
        assert!(
            mistake
                .message
                .starts_with("invalid loadbalancer class \"none\""),
            "{mistake}"
        );
        assert_eq!(choose("", "", &LoadBalancerSettings::default()).unwrap(), None);
    }
}

#[test]
fn the_class_of_an_external_service_decides_where_the_vip_is() {
    let asks = [
        ("class", "fast"),
        ("subnet-id", "mine"),
        ("network-id", "my-net"),
        ("member-subnet-id", "m"),
    ];
    let external = wanted_of(&service(&asks), &classes(), amphora());
    assert_eq!(external.create_settings.subnet.as_deref(), Some("fast-subnet"));
    assert_eq!(external.create_settings.network.as_deref(), Some("fast-network"));
    assert_eq!(
        (external.vip_subnet.as_deref(), external.member_subnet.as_deref()),
        (Some("mine"), Some("m"))
    );
    assert_eq!(external.floating_ip.network.as_deref(), Some("fast-floating"));
    let internal = wanted_of(
        &service(&asks),
        &LoadBalancerSettings { internal: true, ..classes() },
        amphora(),
    );
    assert_eq!(internal.create_settings.subnet.as_deref(), Some("mine"));
    assert!(internal.internal);
}

#[test]
fn an_empty_annotation_takes_the_place_of_the_configuration() {
    let found = wanted_of(
        &service(&[("floating-network-id", ""), ("subnet-id", "")]),
        &classes(),
        amphora(),
    );
    assert_eq!(found.floating_ip.network, None);
    assert_eq!(found.create_settings.subnet.as_deref(), Some("config-subnet"));
    assert_eq!(
        found.floating_ip.subnet,
        FloatingSubnet::Matching { name: "config-*".into(), tags: "".into() }
    );
    let by_id = wanted_of(
        &service(&[("floating-subnet-id", "s"), ("floating-subnet", "x*")]),
        &classes(),
        amphora(),
    );
    assert_eq!(by_id.floating_ip.subnet, FloatingSubnet::Id("s".into()));
}

#[test]
fn all_mistakes_are_found_together() {
    let bad = ServiceView {
        ports: [port(Protocol::Udp, 80)].into(),
        source_ranges: ["10.0.0.0/33".into()].into(),
        load_balancer_ip: Some("ten".into()),
        ..service(&[
            ("class", "none"),
            ("proxy-protocol", "v1"),
            XFF,
            ("default-tls-container-ref", "https://keys/v1/orders/abc"),
            ("connection-limit", "-7"),
            ("health-monitor-max-retries", "11"),
            ("floating-subnet", "~("),
        ])
    };
    let found = mistakes_of(&bad, &LoadBalancerSettings::default());
    let parts = [
        "proxy-protocol: cannot be had together",
        "\"10.0.0.0/33\" is not a network",
        "default-tls-container-ref: ",
        "connection-limit: -7 is not between",
        "health-monitor-max-retries: 11 is not between 1 and 10",
        "proxy-protocol: spec.ports[0] is not TCP",
        "x-forwarded-for: spec.ports[0] is not TCP",
        "default-tls-container-ref: spec.ports[0] is not TCP",
        "class: invalid loadbalancer class \"none\"",
        "spec.loadBalancerIP: \"ten\" is no address",
        "floating-subnet: ",
    ];
    assert_eq!(found.len(), parts.len(), "{found:#?}");
    for part in parts {
        assert!(found.iter().any(|mistake| mistake.contains(part)), "{part}: {found:#?}");
    }
    let ovn = LoadBalancerSettings { driver: Driver::Ovn, ..LoadBalancerSettings::default() };
    assert_eq!(mistakes_of(&service(&[("proxy-protocol", "v1")]), &ovn).len(), 1);
    assert_eq!(
        mistakes_of(&ServiceView { ports: [].into(), ..service(&[]) }, &ovn),
        ["spec.ports: there are no ports"]
    );
    let ports = [
        port(Protocol::Tcp, 53),
        port(Protocol::Udp, 53),
        port(Protocol::Sctp, 53),
        port(Protocol::Udp, 53),
    ];
    let found = mistakes_of(
        &ServiceView { ports: ports.into(), ..service(&[REF]) },
        &LoadBalancerSettings::default(),
    );
    let tls = |index: usize| {
        format!(
            "{}{}: spec.ports[{index}] is not TCP and cannot have it",
            annotations::PREFIX,
            REF.0
        )
    };
    let same = "spec.ports[3]: would need the same listener as spec.ports[1]";
    assert_eq!(found, [&*tls(1), &tls(2), same, &tls(3)]);
}

#[test]
fn the_certificate_of_the_configuration_is_for_tcp() {
    let settings = LoadBalancerSettings {
        tls_container_ref: REF.1.into(),
        ..LoadBalancerSettings::default()
    };
    let ports = [port(Protocol::Tcp, 53), port(Protocol::Udp, 53), port(Protocol::Sctp, 53)];
    let listeners =
        wanted_of(&ServiceView { ports: ports.into(), ..service(&[]) }, &settings, amphora())
            .listeners;
    let found: Vec<_> = listeners
        .iter()
        .map(|l| (l.protocol, l.pool.protocol, l.tls_container.as_deref()))
        .collect();
    let want = [
        (ListenerProtocol::TerminatedHttps, PoolProtocol::Http, Some(REF.1)),
        (ListenerProtocol::Udp, PoolProtocol::Udp, None),
        (ListenerProtocol::Sctp, PoolProtocol::Sctp, None),
    ];
    assert_eq!(found, want);
}

#[test]
fn no_source_range_of_the_family_is_a_mistake_and_not_open() {
    let six = ServiceView {
        source_ranges: ["2001:db8::/32".into()].into(),
        ..service(&[])
    };
    assert_eq!(mistakes_of(&six, &LoadBalancerSettings::default()).len(), 1);
    let both = ["2001:db8::/32".into(), "10.0.0.0/8".into()];
    let both = ServiceView { source_ranges: both.into(), ..service(&[]) };
    let allowed = wanted_of(&both, &LoadBalancerSettings::default(), amphora())
        .listeners
        .remove(0)
        .allowed;
    assert_eq!(allowed, Some(vec!["10.0.0.0/8".parse().unwrap()]));
    let six = ServiceView { ip_families: [IpFamily::V6].into(), ..service(&[]) };
    let allowed = wanted_of(&six, &LoadBalancerSettings::default(), amphora())
        .listeners
        .remove(0)
        .allowed;
    assert_eq!(allowed, Some(vec!["::/0".parse().unwrap()]));
}

#[test]
fn what_the_provider_writes_itself_is_not_wanted() {
    let written = service(&[("load-balancer-id", "x"), ("load-balancer-address", "1.2.3.4")]);
    assert_eq!(wanted_of(&written, &LoadBalancerSettings::default(), amphora()), wanted(&[]));
}

#[test]
fn an_asked_address_is_the_vips_or_the_floating_ips() {
    let asks = |annotations: &[(&str, &str)], family| {
        let service = ServiceView {
            load_balancer_ip: Some("10.0.0.7".into()),
            ip_families: [family].into(),
            ..service(annotations)
        };
        let wanted = wanted_of(&service, &LoadBalancerSettings::default(), amphora());
        (wanted.create_settings.address.is_some(), wanted.floating_ip.address.is_some())
    };
    assert_eq!(asks(&[], IpFamily::V4), (false, true));
    assert_eq!(
        asks(
            &[("service.beta.kubernetes.io/openstack-internal-load-balancer", "true")],
            IpFamily::V4
        ),
        (true, false)
    );
    assert_eq!(asks(&[], IpFamily::V6), (true, false));
}

#[test]
fn groups_of_ovn_admit_clients_and_others_the_subnet_of_members() {
    let settings = |driver| LoadBalancerSettings {
        manage_security_groups: true,
        driver,
        ..LoadBalancerSettings::default()
    };
    let group = |driver: Driver| {
        wanted_of(&service(&[]), &settings(driver), amphora())
            .security_group
            .unwrap()
    };
    let found = group(Driver::parse("amphora"));
    assert_eq!(
        (&*found.name, &*found.ports, found.clients),
        ("lb-sg-uid-1-ns-web", &[("tcp", 30080)][..], None)
    );
    assert_eq!(group(Driver::Ovn).clients, Some(vec!["0.0.0.0/0".parse().unwrap()]));
}

#[test]
fn what_has_no_effect_is_remarked() {
    let old = Features::new((2, 0), &Driver::parse(""));
    let asks = service(&[
        ("availability-zone", "az1"),
        ("connection-limit", "many"),
        ("conection-limit", "1"),
    ]);
    let found = reasons(&asks, &LoadBalancerSettings::default(), old);
    assert_eq!(
        found,
        [
            "LoadBalancerAvailabilityZonesIgnored",
            "AnnotationsWithoutEffect",
            "AnnotationNotUnderstood"
        ]
    );
    assert_eq!(
        wanted_of(&asks, &LoadBalancerSettings::default(), old)
            .create_settings
            .availability_zone,
        None
    );
    let dual = ServiceView {
        ip_families: [IpFamily::V4, IpFamily::V6].into(),
        ..service(&[])
    };
    assert_eq!(reasons(&dual, &LoadBalancerSettings::default(), old), ["LoadBalancerSingleFamily"]);
    assert_eq!(reasons(&dual, &LoadBalancerSettings::default(), amphora()), [""; 0]);
}

/// Upstream warns and serves. What it serves must go on after a change to this provider.
#[test]
fn source_ranges_that_nothing_enforces_are_rejected_only_for_new_services() {
    let restricted = ServiceView { source_ranges: ["10.0.0.0/8".into()].into(), ..service(&[]) };
    let served = ServiceView {
        status: ccm_core::k8s::LbStatus::of_addresses(["192.0.2.1".parse().unwrap()]),
        ..restricted.clone()
    };
    let ovn = |manage_security_groups, allow_unenforced_source_ranges| LoadBalancerSettings {
        driver: Driver::Ovn,
        manage_security_groups,
        allow_unenforced_source_ranges,
        ..LoadBalancerSettings::default()
    };
    let (old, new) = ((2, 11), (2, 12));
    let amphora = LoadBalancerSettings::default();
    let ignored = ["LoadBalancerSourceRangesIgnored"];
    // Service, settings, version, valid, notices.
    let cases: [(&ServiceView, LoadBalancerSettings, _, bool, &[&str]); 8] = [
        (&restricted, amphora.clone(), old, false, &[]),
        (&served, amphora.clone(), old, true, &ignored),
        (&restricted, amphora.clone(), new, true, &[]),
        (&restricted, ovn(false, false), new, false, &[]),
        (&served, ovn(false, false), new, true, &ignored),
        (&restricted, ovn(false, true), new, true, &ignored),
        (&restricted, ovn(true, false), new, true, &[]),
        (&service(&[]), ovn(false, false), new, true, &[]),
    ];
    for (number, (service, settings, version, is_valid, notices)) in cases.iter().enumerate() {
        let features = Features::new(*version, &settings.driver);
        let parsed = parse(service, settings, features, "c1");
        assert_eq!(parsed.desired.is_ok(), *is_valid, "{number}: {:?}", parsed.desired);
        assert_eq!(reasons(service, settings, features), *notices, "{number}");
        if let Err(errors) = parsed.desired {
            assert_eq!(&*errors[0].field, "spec.loadBalancerSourceRanges", "{number}");
            assert!(parsed.tolerant.is_some(), "{number}: members follow the nodes");
        }
    }
}

#[test]
fn tags_are_lists_and_never_those_of_services() {
    let asks = [
        ("load-balancer-tags", " team-a, cost=7,,team-a"),
        ("listener-tags", "l"),
        ("pool-tags", "p2,p1"),
    ];
    let found = wanted(&asks);
    assert_eq!(found.tags, ["cost=7".into(), "team-a".into()]);
    assert_eq!(found.listeners[0].tags, ["l".into()]);
    assert_eq!(found.listeners[0].pool.tags, ["p1".into(), "p2".into()]);
    for annotation in ["load-balancer-tags", "listener-tags", "pool-tags"] {
        for bad in ["a,kube_service_c1_ns_other", &"x".repeat(256)] {
            let errors =
                mistakes_of(&service(&[(annotation, bad)]), &LoadBalancerSettings::default());
            assert_eq!(errors.len(), 1, "{annotation}: {errors:?}");
            assert!(errors[0].contains(annotation), "{errors:?}");
        }
    }
    let old = Features::new((2, 4), &Driver::parse(""));
    let settings = LoadBalancerSettings::default();
    let untagged = wanted_of(&service(&asks), &settings, old);
    assert_eq!((untagged.tags.len(), untagged.listeners[0].pool.tags.len()), (0, 0));
    assert_eq!(reasons(&service(&asks), &settings, old), ["LoadBalancerTagsIgnored"]);
}

#[test]
fn a_service_may_request_another_provider() {
    let ovn = wanted(&[("lb-provider", "ovn"), ("lb-method", "SOURCE_IP_PORT")]);
    assert_eq!(
        (&*ovn.create_settings.driver, ovn.requested_driver, ovn.listeners[0].timeouts),
        ("ovn", Some(Driver::Ovn), None)
    );
    let settings = LoadBalancerSettings::default();
    assert_eq!(mistakes_of(&service(&[("lb-provider", "ovn"), XFF]), &settings).len(), 1);
    let settings = LoadBalancerSettings { driver: Driver::Ovn, ..LoadBalancerSettings::default() };
    let ovn = Features::new((2, 30), &Driver::Ovn);
    let amphora = wanted_of(&service(&[("lb-provider", "amphora"), XFF]), &settings, ovn);
    assert_eq!(&*amphora.create_settings.driver, "amphora");
    assert!(amphora.listeners[0].timeouts.is_some());
    assert_eq!(wanted_of(&service(&[("lb-provider", "")]), &settings, ovn).requested_driver, None);
}

#[test]
fn a_service_may_request_another_flavor_and_zone() {
    let settings = LoadBalancerSettings {
        flavor: "small".into(),
        availability_zone: "a".into(),
        ..LoadBalancerSettings::default()
    };
    let cases = [
        (service(&[]), Some("small"), Some("a")),
        (service(&[("flavor-id", "big"), ("availability-zone", "b")]), Some("big"), Some("b")),
        (service(&[("flavor-id", ""), ("availability-zone", "")]), None, None),
    ];
    for (service, flavor, zone) in cases {
        let wanted = wanted_of(&service, &settings, amphora()).create_settings;
        assert_eq!((wanted.flavor.as_deref(), wanted.availability_zone.as_deref()), (flavor, zone));
    }
}

#[test]
fn a_second_address_needs_tcp_and_octavia_2_26() {
    use IpFamily::{V4, V6};
    let internal = ("service.beta.kubernetes.io/openstack-internal-load-balancer", "true");
    type Case<'a> =
        (&'a [IpFamily], &'a [(&'a str, &'a str)], Protocol, (u16, u16), Option<IpFamily>);
    let cases: [Case<'_>; 8] = [
        (&[V4, V6], &[], Protocol::Tcp, (2, 26), Some(V6)),
        (&[V4, V6], &[], Protocol::Tcp, (2, 25), None),
        (&[V4], &[], Protocol::Tcp, (2, 26), None),
        (&[V4, V6], &[], Protocol::Udp, (2, 26), None),
        (&[V4, V6], &[("port-id", "p")], Protocol::Tcp, (2, 26), None),
        (&[V4, V6], &[("lb-provider", "ovn")], Protocol::Tcp, (2, 26), None),
        (&[V6, V4], &[], Protocol::Tcp, (2, 26), None),
        (&[V6, V4], &[internal], Protocol::Tcp, (2, 26), Some(V4)),
    ];
    for (families, annotations, protocol, version, expected) in cases {
        let service = ServiceView {
            ip_families: families.into(),
            ports: [port(protocol, 80)].into(),
            ..service(annotations)
        };
        let features = Features::new(version, &Driver::parse(""));
        let found = wanted_of(&service, &LoadBalancerSettings::default(), features);
        let second = found.create_settings.second_vip.map(|vip| vip.family);
        assert_eq!(second, expected, "{families:?} {annotations:?} {protocol:?} {version:?}");
        let allowed = found.listeners[0].allowed.as_ref().map_or(0, Vec::len);
        let ovn = annotations.contains(&("lb-provider", "ovn"));
        assert_eq!(
            allowed,
            if ovn {
                0
            } else {
                1 + usize::from(expected.is_some())
            }
        );
    }
    let named = ServiceView {
        ip_families: [V4, V6].into(),
        ..service(&[("additional-subnet-id", "six")])
    };
    let found = wanted_of(&named, &LoadBalancerSettings::default(), amphora());
    assert_eq!(found.create_settings.second_vip.unwrap().subnet.as_deref(), Some("six"));
}

#[test]
fn checks_of_udp_ports_have_the_delay_that_octavia_requires() {
    let settings = LoadBalancerSettings {
        monitor: true,
        checks: HealthMonitorSettings {
            delay: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            ..HealthMonitorSettings::default()
        },
        ..LoadBalancerSettings::default()
    };
    let both = ServiceView {
        ports: [port(Protocol::Tcp, 80), port(Protocol::Udp, 53)].into(),
        ..service(&[])
    };
    for (minimum, expected) in [(0, [1, 1]), (3, [1, 3])] {
        let features = Features { min_udp_monitor_delay: minimum, ..amphora() };
        let found = wanted_of(&both, &settings, features);
        let delays = [0, 1].map(|n: usize| found.listeners[n].pool.monitor.unwrap().delay);
        assert_eq!(delays, expected);
    }
}
