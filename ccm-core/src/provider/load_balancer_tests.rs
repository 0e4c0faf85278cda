//! What a Service asks for, read from its fields.

use std::num::NonZeroU16;

use super::*;
use crate::k8s::ServicePort;

const EVERYTHING: LbSupport = LbSupport {
    source_ranges: true,
    udp: true,
    sctp: true,
    mixed_protocols: true,
    ipv6: true,
    dual_stack: true,
    no_node_ports: true,
    load_balancer_ip: true,
    client_ip_affinity: true,
    retain: true,
};

fn ports(protocols: &[Protocol]) -> Box<[ServicePort]> {
    let port = |protocol| ServicePort {
        name: Arc::from(""),
        protocol,
        port: NonZeroU16::MIN,
        node_port: None,
        target_port: Arc::from("1"),
        app_protocol: None,
    };
    protocols.iter().copied().map(port).collect()
}

fn service() -> ServiceView {
    ServiceView {
        ports: ports(&[Protocol::Tcp]),
        ..ServiceView::named("shop", "web")
    }
}

fn annotated(text: &str) -> ServiceView {
    let mut service = service();
    service
        .annotations
        .insert(Arc::from(well_known::ANNOTATION_SOURCE_RANGES), Arc::from(text));
    service
}

fn only(networks: &[&str]) -> SourceRanges {
    SourceRanges::Only(networks.iter().map(|n| n.parse().unwrap()).collect())
}

#[test]
fn source_ranges_are_read_from_the_spec_or_else_from_the_annotation() {
    let cases: [(&str, SourceRanges); 6] = [
        ("", SourceRanges::Unset),
        ("  ", SourceRanges::Unset),
        ("10.0.0.0/8", only(&["10.0.0.0/8"])),
        ("10.0.0.1/32,10.0.0.1/32", only(&["10.0.0.1/32"])),
        (" 10.0.0.2/32 , 10.0.0.1/32 ", only(&["10.0.0.1/32", "10.0.0.2/32"])),
        ("192.168.0.0/0", only(&["0.0.0.0/0"])),
    ];
    for (text, want) in cases {
        assert_eq!(SourceRanges::of(&annotated(text)), Ok(want), "{text:?}");
    }
    let both = ServiceView {
        source_ranges: Box::new([" 10.0.0.0/8 ".into()]),
        ..annotated("172.16.0.0/12")
    };
    assert_eq!(SourceRanges::of(&both), Ok(only(&["10.0.0.0/8"])));
}

#[test]
fn a_range_that_is_no_network_is_named_and_never_left_out() {
    for (text, mistakes) in [
        ("10.0.0.1/33", 1),
        ("foo.bar", 1),
        ("10.0.0.1/33,*", 2),
        ("10.0.0.1/32,", 1),
        ("10.0.0.1/32, ", 1),
        ("10.0.0.1", 1),
    ] {
        let invalid = SourceRanges::of(&annotated(text)).unwrap_err();
        assert_eq!(invalid.len(), mistakes, "{text:?}");
        assert_eq!(&*invalid[0].field, well_known::ANNOTATION_SOURCE_RANGES);
        assert_eq!(EVERYTHING.validate(&annotated(text)), invalid, "no support serves it");
    }
}

#[test]
fn only_a_range_that_keeps_somebody_out_is_a_restriction() {
    use IpFamily::{V4, V6};
    let cases: [(&[&str], &[IpFamily], bool); 6] = [
        (&["0.0.0.0/0"], &[V4], false),
        (&["0.0.0.0/0", "10.0.0.0/8"], &[V4], false),
        (&["10.0.0.0/8"], &[V4], true),
        (&["0.0.0.0/0"], &[V4, V6], true),
        (&["0.0.0.0/0", "fd00::/8"], &[], true),
        (&["0.0.0.0/0", "::/0"], &[V6, V4], false),
    ];
    for (networks, families, want) in cases {
        assert_eq!(only(networks).restricts(families), want, "{networks:?} {families:?}");
    }
    assert!(!SourceRanges::Unset.restricts(&[V4, V6]));
    assert!(SourceRanges::Only(Vec::new()).restricts(&[V4]), "nobody may connect");
}

#[test]
fn every_wish_beyond_the_support_is_refused_by_its_field() {
    let ranges: Box<[Box<str>]> = Box::new(["10.0.0.0/8".into()]);
    let cases = [
        ("spec.ports", ServiceView { ports: ports(&[Protocol::Udp]), ..service() }),
        ("spec.ports", ServiceView { ports: ports(&[Protocol::Sctp]), ..service() }),
        ("spec.ipFamilies", ServiceView { ip_families: Box::new([IpFamily::V6]), ..service() }),
        (
            "spec.ipFamilies",
            ServiceView {
                ip_families: Box::new([IpFamily::V4, IpFamily::V6]),
                ..service()
            },
        ),
        (
            "spec.allocateLoadBalancerNodePorts",
            ServiceView { allocate_node_ports: false, ..service() },
        ),
        (
            "spec.loadBalancerIP",
            ServiceView { load_balancer_ip: Some("192.0.2.1".into()), ..service() },
        ),
        (
            "spec.sessionAffinity",
            ServiceView {
                session_affinity: SessionAffinity::ClientIp(Duration::from_secs(1)),
                ..service()
            },
        ),
        ("spec.loadBalancerSourceRanges", ServiceView { source_ranges: ranges, ..service() }),
    ];
    assert!(LbSupport::default().validate(&service()).is_empty());
    for (field, service) in cases {
        let refused = LbSupport::default().validate(&service);
        assert_eq!(refused.iter().map(|r| &*r.field).collect::<Vec<_>>(), [field]);
        assert!(EVERYTHING.validate(&service).is_empty(), "{field}");
    }
    let open = ServiceView {
        source_ranges: Box::new(["0.0.0.0/0".into()]),
        ip_families: Box::new([IpFamily::V4]),
        ..service()
    };
    assert!(LbSupport::default().validate(&open).is_empty(), "open to everybody is no restriction");
    let mixed = ServiceView { ports: ports(&[Protocol::Tcp, Protocol::Udp]), ..service() };
    assert_eq!(
        LbSupport { mixed_protocols: false, ..EVERYTHING }
            .validate(&mixed)
            .len(),
        1
    );
}

#[test]
fn a_service_that_says_nothing_admits_everybody_of_its_families() {
    let networks = |sources: SourceRanges, families: &[IpFamily]| {
        sources
            .or_any_source(families)
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(networks(SourceRanges::Unset, &[]), ["0.0.0.0/0"]);
    assert_eq!(networks(SourceRanges::Unset, &[IpFamily::V6, IpFamily::V4]), ["::/0", "0.0.0.0/0"]);
    assert_eq!(
        networks(SourceRanges::Only(Vec::new()), &[IpFamily::V4]),
        Vec::<String>::new(),
        "nobody is not everybody"
    );
    let only = SourceRanges::Only(vec!["10.0.0.0/8".parse().unwrap()]);
    assert_eq!(networks(only, &[IpFamily::V6]), ["10.0.0.0/8"]);
}

#[test]
fn mistakes_become_one_error_that_names_each() {
    let error =
        CloudError::from(vec![FieldError::new("a", "is wrong"), FieldError::new("b", "too")]);
    assert_eq!(
        (error.kind(), &*error.to_string()),
        (ErrorKind::InvalidInput, "a: is wrong; b: too")
    );
}

#[test]
fn what_is_unclear_or_not_supported_is_refused() {
    const KEEP: &str = well_known::ANNOTATION_RETAIN;
    const ADOPT: &str = well_known::ANNOTATION_ADOPT;
    let unclear = Some("\"yes\" is neither true nor false");
    let unable = Some("the provider cannot adopt load balancers");
    for (key, value, supported, unsupported) in [
        (KEEP, "false", None, None),
        (KEEP, "true", None, Some("the provider cannot keep load balancers")),
        (KEEP, "yes", unclear, unclear),
        (ADOPT, "lb-1", None, unable),
        (ADOPT, " ", Some("names no load balancer"), unable),
    ] {
        for (retain, message) in [(true, supported), (false, unsupported)] {
            let mut service = service();
            service.annotations.insert(key.into(), value.into());
            let expected: Vec<_> = message
                .map(|message| FieldError::new(key, message))
                .into_iter()
                .collect();
            let found = LbSupport { retain, ..EVERYTHING }.validate(&service);
            assert_eq!(found, expected, "{key}: {value:?}, {retain}");
        }
    }
}
