//! Plans and interpretations in tables; the behaviour against the cloud is in `cloud_tests.rs`.

use std::{num::NonZeroU16, sync::Arc};

use ccm_core::{
    k8s::{IpFamily, Protocol, ServicePort, SessionAffinity, TrafficPolicy, well_known},
    provider::{BackendKind, Backends, CloudProvider, EventType, LabelRequirement},
};

use super::{
    super::Settings,
    annotations::{
        ACTIVATION_DELAY, BACKENDS, IP_MODE, LOAD_BALANCER_ID, NODE_SELECTOR, PREFIX, SCHEME,
    },
    plan::plan,
    *,
};
use crate::{
    CloudConfig, MockCloud,
    cloud::{Family, LoadBalancerSettings, Members, Transport},
};

pub(super) const UID: &str = "0a1b2c3d-0000-1111-2222-333344445555";

pub(super) fn port(name: &str, protocol: Protocol, number: u16, node_port: u16) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol,
        port: NonZeroU16::new(number).unwrap(),
        node_port: NonZeroU16::new(node_port),
        target_port: "8080".into(),
        app_protocol: None,
    }
}

pub(super) fn service() -> ServiceView {
    ServiceView {
        uid: UID.into(),
        ports: [port("", Protocol::Tcp, 80, 30080)].into(),
        ip_families: [IpFamily::V4].into(),
        ..ServiceView::named("default", "web")
    }
}

pub(super) fn annotated(pairs: &[(&str, &str)]) -> ServiceView {
    let annotations = pairs
        .iter()
        .map(|(key, value)| (Arc::from(*key), Arc::from(*value)))
        .collect();
    ServiceView { annotations, ..service() }
}

pub(super) fn provider(config: &str) -> MockProvider {
    let config = CloudConfig::parse("test", config).unwrap();
    MockProvider::new_in_process(MockCloud::new(&config).unwrap()).with_config(&config)
}

fn spec(service: ServiceView, nodes: &[&str]) -> LoadBalancerSpec {
    let sources = SourceRanges::of(&service).unwrap();
    let nodes = nodes
        .iter()
        .map(|name| Arc::new(ccm_core::k8s::NodeView::named(name)))
        .collect();
    let backends = Backends::Nodes(nodes);
    let want = LbSpec {
        cluster: "c".into(),
        service: Arc::new(service),
        sources,
        backends,
    };
    desired::spec(&want, &Settings::default()).unwrap()
}

/// The balancer that a description makes.
fn made(spec: &LoadBalancerSpec, state: LoadBalancerState) -> LoadBalancer {
    let address = "192.0.2.1".parse().unwrap();
    LoadBalancer {
        id: "lb-1".to_owned(),
        name: spec.key.name.clone(),
        cluster: spec.key.cluster.clone(),
        uid: spec.key.uid.clone(),
        service: spec.key.service.clone(),
        retained: false,
        state,
        ports: Vec::new(),
        nodes: spec.members.node_names().into(),
        address,
        addresses: vec![address],
        settings: spec.settings.clone(),
        members: spec.members.clone(),
        generation: 1,
    }
}

#[test]
fn a_plan_holds_what_differs_and_nothing_else() {
    let changed = |change: fn(&mut ServiceView)| {
        let mut service = service();
        change(&mut service);
        service
    };
    let cases: [(&str, ServiceView, &[&str], Option<&str>); 9] = [
        ("nothing", service(), &["b", "a", "a"], None),
        (
            "labels and status",
            changed(|s| s.labels = [("a".into(), "b".into())].into()),
            &["a", "b"],
            None,
        ),
        (
            "another port",
            changed(|s| s.ports[0].port = NonZeroU16::MAX),
            &["a", "b"],
            Some("listeners"),
        ),
        (
            "source ranges",
            changed(|s| s.source_ranges = ["10.0.0.0/8".into()].into()),
            &["a", "b"],
            Some("source ranges"),
        ),
        (
            "health check",
            changed(|s| s.health_check_node_port = NonZeroU16::new(31000)),
            &["a", "b"],
            Some("health check"),
        ),
        (
            "affinity",
            changed(|s| s.session_affinity = SessionAffinity::ClientIp(Duration::from_secs(60))),
            &["a", "b"],
            Some("affinity"),
        ),
        (
            "families",
            changed(|s| s.ip_families = [IpFamily::V4, IpFamily::V6].into()),
            &["a", "b"],
            Some("families"),
        ),
        (
            "address",
            changed(|s| s.load_balancer_ip = Some("192.0.2.9".into())),
            &["a", "b"],
            Some("requested address"),
        ),
        ("scheme", annotated(&[(SCHEME, "internal")]), &["a", "b"], Some("scheme")),
    ];
    let seen = made(&spec(service(), &["a", "b"]), LoadBalancerState::Active);
    for (case, service, nodes, differs) in cases {
        let want = spec(service, nodes);
        let modify = differs
            .map(|what| Action::Modify(Box::new(want.settings.clone()), format!("{what} differ")));
        assert_eq!(
            plan(Some(&seen), &want),
            modify.clone().into_iter().collect::<Vec<_>>(),
            "{case}"
        );
        let mut fewer = want.clone();
        fewer.members = Members::nodes(["a"]);
        let update = Action::SetMembers(fewer.members.clone(), "2 nodes become 1 nodes".to_owned());
        assert_eq!(
            plan(Some(&seen), &fewer),
            modify.into_iter().chain([update]).collect::<Vec<_>>(),
            "{case}"
        );
        assert_eq!(plan(None, &want), [Action::Create], "{case}");
        for state in [LoadBalancerState::Active, LoadBalancerState::Provisioning] {
            assert_eq!(
                plan(Some(&made(&want, state)), &want),
                [],
                "{case}: its own result needs no change"
            );
        }
        assert_eq!(
            plan(Some(&made(&fewer, LoadBalancerState::Deleting)), &want),
            [],
            "{case}: the name is not free"
        );
    }
}

#[test]
fn a_node_that_was_replaced_under_its_name_is_another_member() {
    let node = |id: &str| {
        Arc::new(ccm_core::k8s::NodeView {
            provider_id: Some(id.into()),
            ..ccm_core::k8s::NodeView::named("a")
        })
    };
    let spec = |id: &str| {
        let backends = Backends::Nodes(vec![node(id)]);
        let sources = SourceRanges::Unset;
        let want = LbSpec {
            cluster: "c".into(),
            service: Arc::new(service()),
            sources,
            backends,
        };
        desired::spec(&want, &Settings::default()).unwrap()
    };
    let seen = made(&spec("mock://r/1"), LoadBalancerState::Active);
    assert!(matches!(&*plan(Some(&seen), &spec("mock://r/2")), [Action::SetMembers(..)]));
}

/// A name and a change of the Service; in the digest's tables.
type Change = (&'static str, fn(&mut ServiceView));

#[test]
fn the_digest_changes_with_what_the_cloud_gets_and_with_nothing_else() {
    let provider = provider("features: {endpoints: true}");
    let digest = |service: &ServiceView| match provider.interpret(service) {
        ServiceInterpretation::Valid { digest, .. } => digest,
        other => panic!("{other:?}"),
    };
    fn annotate(service: &mut ServiceView, key: &str, value: &str) {
        service.annotations.insert(key.into(), value.into());
    }
    let same: [Change; 14] = [
        ("status", |s| s.status = LbStatus { ingress: vec![LbIngress::default()] }),
        ("labels", |s| s.labels = [("a".into(), "b".into())].into()),
        ("resource version", |s| s.resource_version = "9".into()),
        ("finalizers", |s| s.finalizers = ["x/y".into()].into()),
        ("foreign annotation", |s| annotate(s, "example.com/x", "y")),
        ("unknown annotation", |s| annotate(s, &format!("{PREFIX}typo"), "y")),
        ("own annotation", |s| annotate(s, LOAD_BALANCER_ID, "lb-1")),
        ("backends", |s| annotate(s, BACKENDS, "endpoints")),
        ("delay", |s| annotate(s, ACTIVATION_DELAY, "5s")),
        ("default scheme", |s| annotate(s, SCHEME, "internet-facing")),
        ("internal policy", |s| s.internal_traffic_policy = TrafficPolicy::Local),
        ("external IPs", |s| s.external_ips = ["192.0.2.1".into()].into()),
        ("target port", |s| s.ports[0].target_port = "http".into()),
        ("port name", |s| s.ports[0].name = "http".into()),
    ];
    let other: [Change; 12] = [
        ("UID", |s| s.uid = "other".into()),
        ("port", |s| s.ports[0].port = NonZeroU16::MAX),
        ("node port", |s| s.ports[0].node_port = None),
        ("protocol", |s| s.ports[0].protocol = Protocol::Udp),
        ("source ranges", |s| s.source_ranges = ["10.0.0.0/8".into()].into()),
        ("annotated ranges", |s| annotate(s, well_known::ANNOTATION_SOURCE_RANGES, "10.0.0.0/8")),
        ("health check", |s| s.health_check_node_port = NonZeroU16::new(31000)),
        ("affinity", |s| s.session_affinity = SessionAffinity::ClientIp(Duration::from_secs(60))),
        ("families", |s| s.ip_families = [IpFamily::V4, IpFamily::V6].into()),
        ("requested address", |s| s.load_balancer_ip = Some("192.0.2.1".into())),
        ("scheme", |s| annotate(s, SCHEME, "internal")),
        ("mode", |s| annotate(s, IP_MODE, "Proxy")),
    ];
    let before = digest(&service());
    for (changes, equal) in [(&same[..], true), (&other[..], false)] {
        for (what, change) in changes {
            let mut service = service();
            change(&mut service);
            assert_eq!(digest(&service) == before, equal, "{what}");
        }
    }
}

#[test]
fn annotations_say_which_backends() {
    let provider =
        provider("{features: {endpoints: true}, nodeSelectorLabels: [pool, example.com/gpu]}");
    let exists = |key: &str| LabelRequirement::Exists(key.into());
    let equals = |key: &str, value: &str| LabelRequirement::Equals(key.into(), value.into());
    let zone = format!("{}=z1", well_known::LABEL_ZONE);
    let cases: [(&[(&str, &str)], BackendKind); 6] = [
        (&[], BackendKind::Nodes(Vec::new())),
        (&[(BACKENDS, "nodes")], BackendKind::Nodes(Vec::new())),
        (&[(BACKENDS, " endpoints ")], BackendKind::Endpoints),
        (
            &[(NODE_SELECTOR, &zone)],
            BackendKind::Nodes(vec![equals(well_known::LABEL_ZONE, "z1")]),
        ),
        (
            &[(NODE_SELECTOR, "pool = edge, example.com/gpu,pool=edge")],
            BackendKind::Nodes(vec![equals("pool", "edge"), exists("example.com/gpu")]),
        ),
        (&[(NODE_SELECTOR, "pool=")], BackendKind::Nodes(vec![equals("pool", "")])),
    ];
    for (pairs, want) in cases {
        let ServiceInterpretation::Valid { backends, .. } = provider.interpret(&annotated(pairs))
        else {
            panic!("{pairs:?}")
        };
        assert_eq!(backends, want, "{pairs:?}");
    }
    assert!(provider.supports_endpoint_backends());
    let labels: Vec<_> = provider.node_fields().labels.into_iter().collect();
    assert_eq!(labels, ["example.com/gpu", "pool"], "the caches keep what selectors may name");
}

#[test]
fn every_mistake_is_named_with_key_and_value() {
    let provider = provider("nodeSelectorLabels: [pool]");
    let cases: [(&str, &str, &str); 13] = [
        (BACKENDS, "pods", "must be nodes or endpoints"),
        (BACKENDS, "endpoints", "does not support endpoints"),
        (SCHEME, "secret", "must be internet-facing or internal"),
        (SCHEME, "", "must be internet-facing or internal"),
        (IP_MODE, "proxy", "must be VIP, Proxy or unset"),
        (ACTIVATION_DELAY, "soon", "number with a unit"),
        (ACTIVATION_DELAY, "-1s", "negative"),
        (NODE_SELECTOR, "", "form label or label=value"),
        (NODE_SELECTOR, "pool,,", "form label or label=value"),
        (NODE_SELECTOR, "=x", "form label or label=value"),
        (NODE_SELECTOR, "a b", "form label or label=value"),
        (NODE_SELECTOR, "colour=red", "nodeSelectorLabels"),
        (well_known::ANNOTATION_SOURCE_RANGES, "10.0.0.0/8, x", "\"x\""),
    ];
    for (key, value, words) in cases {
        let ServiceInterpretation::Invalid(mistakes) =
            provider.interpret(&annotated(&[(key, value)]))
        else {
            panic!("{key}={value}")
        };
        assert_eq!((mistakes.len(), &*mistakes[0].field), (1, key), "{mistakes:?}");
        let shown = key == well_known::ANNOTATION_SOURCE_RANGES
            || mistakes[0].message.contains(&format!("{value:?}"));
        assert!(mistakes[0].message.contains(words) && shown, "{mistakes:?}");
    }
    let all = ServiceView {
        ports: [].into(),
        load_balancer_ip: Some("localhost".into()),
        source_ranges: ["10.0.0.0/99".into(), "y".into()].into(),
        ..annotated(&[
            (BACKENDS, "pods"),
            (SCHEME, "x"),
            (ACTIVATION_DELAY, "x"),
            (NODE_SELECTOR, "x"),
        ])
    };
    let ServiceInterpretation::Invalid(mistakes) = provider.interpret(&all) else {
        panic!("served")
    };
    let mut fields: Vec<_> = mistakes.iter().map(|mistake| &*mistake.field).collect();
    fields.sort_unstable();
    let ranges = "spec.loadBalancerSourceRanges";
    let mut want = [
        ACTIVATION_DELAY,
        BACKENDS,
        NODE_SELECTOR,
        SCHEME,
        "spec.loadBalancerIP",
        ranges,
        ranges,
        "spec.ports",
    ];
    want.sort_unstable();
    assert_eq!(fields, want);
    let wrong_family = ServiceView { load_balancer_ip: Some("2001:db8::1".into()), ..service() };
    let ServiceInterpretation::Invalid(mistakes) = provider.interpret(&wrong_family) else {
        panic!("served")
    };
    assert!(mistakes[0].message.contains("does not belong to a family"), "{mistakes:?}");
}

#[test]
fn an_unknown_annotation_is_remarked_upon() {
    let provider = provider("");
    let typo = format!("{PREFIX}schema");
    let service = annotated(&[
        (&typo, "internal"),
        (SCHEME, "internal"),
        (LOAD_BALANCER_ID, "x"),
        ("a.example/b", "c"),
    ]);
    assert!(
        matches!(provider.interpret(&service), ServiceInterpretation::Valid { .. }),
        "it is served all the same"
    );
    let remarks = provider.notices(&service);
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    assert_eq!((remarks[0].kind, remarks[0].reason), (EventType::Warning, "UnknownAnnotation"));
    assert!(remarks[0].note.contains(&typo), "{remarks:?}");
}

#[test]
fn a_service_becomes_what_the_cloud_calls_it() {
    let asked = ServiceView {
        ports: [port("dns", Protocol::Udp, 53, 0), port("sctp", Protocol::Sctp, 90, 30090)].into(),
        ip_families: [IpFamily::V6, IpFamily::V4].into(),
        load_balancer_ip: Some("2001:2::9".into()),
        health_check_node_port: NonZeroU16::new(31000),
        session_affinity: SessionAffinity::ClientIp(Duration::from_secs(10800)),
        ..annotated(&[
            (SCHEME, "internal"),
            (ACTIVATION_DELAY, "1m30s"),
            (well_known::ANNOTATION_SOURCE_RANGES, "10.1.2.3/8"),
        ])
    };
    let seen = spec(asked, &["n2", "n1"]);
    let listener = |protocol, port, node_port| crate::cloud::Listener { protocol, port, node_port };
    let settings = LoadBalancerSettings {
        listeners: vec![
            listener(Transport::Udp, 53, None),
            listener(Transport::Sctp, 90, Some(30090)),
        ],
        source_ranges: vec!["10.0.0.0/8".parse().unwrap()],
        health_check_node_port: Some(31000),
        affinity_seconds: Some(10800),
        families: vec![Family::V6, Family::V4],
        requested_address: Some("2001:2::9".parse().unwrap()),
        internal: true,
    };
    assert_eq!((seen.settings, seen.activation), (settings, Some(Duration::from_secs(90))));
    assert_eq!(seen.members.node_names(), ["n1", "n2"]);
    assert_eq!(
        (&*seen.key.name, &*seen.key.service),
        ("a0a1b2c3d00001111222233334444555", "default/web")
    );
}

#[test]
fn what_is_turned_off_is_not_supported() {
    let on = provider("").supports();
    let all = LbSupport {
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
    assert_eq!(on, all);
    let off = provider(
        "{features: {sourceRanges: false, udp: false, sctp: false, mixedProtocols: false, ipv6: false, dualStack: false, \
         noNodePorts: false, loadBalancerIP: false, clientIPAffinity: false, retain: false}, loadBalancerClasses: [a.example/b]}",
    );
    assert_eq!(off.supports(), LbSupport::default());
    assert!(!off.supports_endpoint_backends());
    assert_eq!(off.classes(), ["a.example/b".into()]);
    assert!(provider("").classes().is_empty());
    assert!(
        provider("nodeSelectorLabels: ['*']")
            .node_fields()
            .all_labels
    );
}
