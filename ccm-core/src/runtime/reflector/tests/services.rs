//! Services: both encodings give the same, and what cannot be read is never served more openly than
//! was asked.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16, sync::Arc, time::Duration};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    decoding::{read_everything, text},
    proto,
};
use crate::{
    error::chain,
    k8s::{
        ConditionStatus, IpFamily, LbIngress, LbPortStatus, LbStatus, OwnCondition, Protocol,
        ServiceFields, ServicePort, ServiceView, SessionAffinity, TrafficPolicy, well_known,
    },
    runtime::encoding::{CachedObject, Decoder, Encoding, decode::DecodeError},
};

pub(super) fn decoder() -> Decoder<ServiceView> {
    Decoder::new(ServiceFields {
        classes: vec!["example.com/lb".into()],
        ..ServiceFields::default()
    })
}

/// Reads a Service in both encodings, which must give the same.
fn read(service: &Value) -> Result<ServiceView, DecodeError> {
    let json = decoder().object(Encoding::Json, &service.to_string().into());
    let proto = decoder().object(Encoding::Protobuf, &proto::envelope(service).into());
    match (&json, &proto) {
        (Ok(a), Ok(b)) => assert_eq!(a, b, "encodings differ"),
        (Err(a), Err(b)) => assert_eq!(chain(a), chain(b), "encodings differ"),
        _ => panic!("encodings differ: {json:?} {proto:?}"),
    }
    json
}

/// A Service with this spec, and the identity that [`view`] has.
pub(super) fn service(spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"}, "spec": spec})
}

/// A load balancer with changes.
fn balancer(change: impl FnOnce(&mut Value)) -> Value {
    let mut service = service(&json!({"type": "LoadBalancer", "ports": [{"port": 80}]}));
    change(&mut service);
    service
}

fn view() -> ServiceView {
    ServiceView {
        ports: Box::new([port("", Protocol::Tcp, 80, 0, "80")]),
        ..ServiceView::named("shop", "web")
    }
}

fn port(name: &str, protocol: Protocol, number: u16, node: u16, target: &str) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol,
        port: NonZeroU16::new(number).unwrap(),
        node_port: NonZeroU16::new(node),
        target_port: target.into(),
        app_protocol: None,
    }
}

fn map(entries: &[(&str, &str)]) -> BTreeMap<Arc<str>, Arc<str>> {
    entries
        .iter()
        .map(|(k, v)| (Arc::from(*k), Arc::from(*v)))
        .collect()
}

/// What Go's `k8s.io/api` v0.36.3 makes of one object: the same in JSON and in protobuf, parts
/// included that are not read. It is the proof that the numbers of the fields are right; everywhere
/// else they are used against themselves.
pub(super) fn golden<T: CachedObject>(decoder: &Decoder<T>, json: &str, hex: &str) -> [T; 2] {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
    [
        decoder
            .object(Encoding::Json, &json.to_owned().into())
            .unwrap(),
        decoder
            .object(Encoding::Protobuf, &proto::enveloped(bytes).into())
            .unwrap(),
    ]
}

#[test]
fn what_upstream_writes_is_read_in_both_encodings() {
    let want = ServiceView {
        uid: "u-1".into(),
        resource_version: "77".into(),
        created: "2026-01-02T03:04:05Z".parse().unwrap(),
        deleting: true,
        deletion_requested: Some("2026-02-02T03:04:05Z".parse().unwrap()),
        labels: map(&[("app", "web"), ("kubernetes.io/service-name", "web")]),
        annotations: map(&[("example.com/a", "b")]),
        finalizers: ["x/y", well_known::FINALIZER_LOAD_BALANCER]
            .map(Arc::from)
            .into(),
        class: Some("example.com/lb".into()),
        is_load_balancer: true,
        ports: Box::new([
            ServicePort {
                app_protocol: Some("kubernetes.io/h2c".into()),
                ..port("http", Protocol::Tcp, 80, 30080, "web")
            },
            port("dns", Protocol::Udp, 53, 30053, "5353"),
        ]),
        load_balancer_ip: Some("192.0.2.1".into()),
        external_ips: Box::new(["192.0.2.9".into()]),
        session_affinity: SessionAffinity::ClientIp(Duration::from_secs(600)),
        external_traffic_policy: TrafficPolicy::Local,
        internal_traffic_policy: TrafficPolicy::Local,
        health_check_node_port: NonZeroU16::new(31000),
        allocate_node_ports: false,
        ip_families: Box::new([IpFamily::V6, IpFamily::V4]),
        ip_family_policy: Some("PreferDualStack".into()),
        source_ranges: Box::new(["10.0.0.0/8".into(), "192.168.0.0/16".into()]),
        status: LbStatus {
            ingress: vec![LbIngress {
                ip: Some(IpAddr::from([198, 51, 100, 7])),
                hostname: Some("lb.example.com".into()),
                ip_mode: Some("Proxy".into()),
                ports: vec![LbPortStatus {
                    port: NonZeroU16::new(80).unwrap(),
                    protocol: Protocol::Tcp,
                    error: Some("Busy".into()),
                }],
            }],
        },
        generation: 3,
        ..ServiceView::named("shop", "web")
    };
    let [json, proto] =
        golden(&decoder(), include_str!("golden/service.json"), include_str!("golden/service.hex"));
    assert_eq!(json, want);
    assert_eq!(proto, want);
}

#[test]
fn what_is_absent_has_the_defaults_of_the_api() {
    let affine = |config: Value| {
        balancer(|s| {
            s["spec"]["sessionAffinity"] = json!("ClientIP");
            s["spec"]["sessionAffinityConfig"] = config;
        })
    };
    let three_hours = ServiceView {
        session_affinity: SessionAffinity::ClientIp(Duration::from_secs(10_800)),
        ..view()
    };
    let null = json!({
        "type": "LoadBalancer", "loadBalancerClass": null, "externalIPs": null, "sessionAffinity": null,
        "loadBalancerIP": null, "loadBalancerSourceRanges": null, "externalTrafficPolicy": null, "ipFamilies": null,
        "healthCheckNodePort": null, "sessionAffinityConfig": null, "ipFamilyPolicy": null, "internalTrafficPolicy": null,
        "allocateLoadBalancerNodePorts": null,
        "ports": [{"port": 80, "name": null, "protocol": null, "targetPort": null, "nodePort": null, "appProtocol": null}],
    });
    let all_null = json!({"kind": "Service", "spec": null, "status": null, "metadata": {
        "namespace": "shop", "name": "web", "uid": null, "resourceVersion": null, "labels": null, "annotations": null,
        "creationTimestamp": null, "deletionTimestamp": null, "finalizers": [well_known::FINALIZER_LOAD_BALANCER]}});
    let cleanup = ServiceView {
        is_load_balancer: false,
        finalizers: Box::new([well_known::FINALIZER_LOAD_BALANCER.into()]),
        ..ServiceView::named("shop", "web")
    };
    let cases = [
        ("nothing", balancer(|_| {}), view()),
        ("null", service(&null), view()),
        ("no spec, no status", all_null, cleanup),
        ("affinity without a configuration", affine(Value::Null), three_hours.clone()),
        (
            "affinity without a time",
            affine(json!({"clientIP": {"timeoutSeconds": null}})),
            three_hours.clone(),
        ),
        ("affinity of no time", affine(json!({"clientIP": {"timeoutSeconds": -1}})), three_hours),
        ("target port 0", balancer(|s| s["spec"]["ports"][0]["targetPort"] = json!(0)), view()),
        (
            "target port of no name",
            balancer(|s| s["spec"]["ports"][0]["targetPort"] = json!("")),
            view(),
        ),
        ("node port 0", balancer(|s| s["spec"]["ports"][0]["nodePort"] = json!(0)), view()),
        ("health check port 0", balancer(|s| s["spec"]["healthCheckNodePort"] = json!(0)), view()),
    ];
    for (name, service, want) in cases {
        assert_eq!(read(&service).unwrap(), want, "{name}");
    }
}

#[test]
fn only_the_copy_of_the_object_is_no_annotation() {
    let annotations =
        json!({"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "1", "b": ""});
    let view = read(&balancer(|s| s["metadata"]["annotations"] = annotations)).unwrap();
    assert_eq!(view.annotations, map(&[("a", "1"), ("b", "")]));
}

#[test]
fn what_would_be_served_otherwise_than_asked_is_an_error_that_names_it() {
    let set =
        |path: &'static str, value: Value| balancer(|s| *s.pointer_mut(path).unwrap() = value);
    let add = |field: &str, value: Value| balancer(|s| s["spec"]["ports"][0][field] = value);
    let cases = [
        (add("protocol", json!("QUIC")), "spec.ports.protocol \"QUIC\""),
        (set("/spec/ports/0/port", json!(0)), "spec.ports.port \"0\""),
        (set("/spec/ports/0/port", json!(65536)), "spec.ports.port \"65536\""),
        (set("/spec/ports/0/port", json!(-1)), "spec.ports.port \"-1\""),
        (add("nodePort", json!(70_000)), "spec.ports.nodePort \"70000\""),
        (
            balancer(|s| s["spec"]["healthCheckNodePort"] = json!(-5)),
            "spec.healthCheckNodePort \"-5\"",
        ),
        (
            balancer(|s| s["spec"]["externalTrafficPolicy"] = json!("Near")),
            "spec.externalTrafficPolicy \"Near\"",
        ),
    ];
    for (service, what) in cases {
        let want = format!("services \"shop/web\" has an unusable {what}");
        assert_eq!(read(&service).unwrap_err().to_string(), want);

        // Nothing of it is in the way of taking the balancer down, or of leaving it to whose it is.
        let mut deleting = service.clone();
        deleting["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(read(&deleting).unwrap().deleting, "{what}");
        let mut retyped = service.clone();
        retyped["spec"]["type"] = json!("ClusterIP");
        retyped["metadata"]["finalizers"] = json!([well_known::FINALIZER_LOAD_BALANCER]);
        assert!(!read(&retyped).unwrap().is_load_balancer, "{what}");
        let mut foreign = service;
        foreign["spec"]["loadBalancerClass"] = json!("another");
        assert!(read(&foreign).unwrap().ports.is_empty(), "{what}");
    }
}

#[test]
fn what_says_nothing_about_access_is_left_out() {
    let strange = balancer(|s| {
        s["spec"]["sessionAffinity"] = json!("Cookie");
        s["spec"]["internalTrafficPolicy"] = json!("Near");
        s["spec"]["ipFamilies"] = json!(["IPv4", "IPv9"]);
        s["spec"]["loadBalancerSourceRanges"] = json!(["not a network", "10.0.0.0/8"]);
        s["status"] = json!({"loadBalancer": {"ingress": [
            {"ip": "10.0.0.999", "hostname": "h"},
            {"ip": "2001:db8::1", "ports": [{"port": 0}, {"port": 80, "protocol": "QUIC"}, {"port": 80}]},
        ]}});
    });
    let want = ServiceView {
        ip_families: Box::new([IpFamily::V4]),
        // Text stays text: whoever opens a balancer must see it.
        source_ranges: Box::new(["not a network".into(), "10.0.0.0/8".into()]),
        status: LbStatus {
            ingress: vec![
                LbIngress { hostname: Some("h".into()), ..LbIngress::default() },
                LbIngress {
                    ip: Some("2001:db8::1".parse().unwrap()),
                    ports: vec![LbPortStatus {
                        port: NonZeroU16::new(80).unwrap(),
                        protocol: Protocol::Tcp,
                        error: None,
                    }],
                    ..LbIngress::default()
                },
            ],
        },
        ..view()
    };
    assert_eq!(read(&strange).unwrap(), want);
}

#[test]
fn our_condition_is_read_only_where_it_is_asked_for() {
    let object = balancer(|s| {
        s["metadata"]["generation"] = json!(3);
        s["status"] = json!({"conditions": [
            {"type": "Other", "status": "False", "reason": "No"},
            {"type": well_known::CONDITION_LOAD_BALANCER_READY, "status": "True",
             "reason": "LoadBalancerServed", "observedGeneration": 2},
        ]});
    });
    assert_eq!(read(&object).unwrap().own_condition, None);
    let fields = ServiceFields { own_condition: true, ..decoder().fields };
    let decoder = Decoder::<ServiceView>::new(fields);
    let expected = OwnCondition {
        index: 1,
        status: ConditionStatus::True,
        reason: "LoadBalancerServed".into(),
        observed_generation: 2,
    };
    for (encoding, bytes) in [
        (Encoding::Json, object.to_string().into_bytes()),
        (Encoding::Protobuf, proto::envelope(&object)),
    ] {
        let read = decoder.object(encoding, &bytes.into()).unwrap();
        assert_eq!((read.own_condition, read.generation), (Some(expected.clone().into()), 3));
    }
    // A Service that is no load balancer any more is kept until the condition is removed.
    let mut other = object.clone();
    other["spec"]["type"] = json!("ClusterIP");
    other["metadata"]["finalizers"] = json!([]);
    let bytes = other.to_string();
    assert!(
        decoder
            .object(Encoding::Json, &bytes.into())
            .unwrap()
            .is_relevant()
    );
    assert!(!read(&other).unwrap().is_relevant());
}

#[test]
fn what_has_no_key_is_an_error() {
    for (metadata, field) in
        [(json!({"namespace": "shop"}), "name"), (json!({"name": "web"}), "namespace")]
    {
        let error = read(&balancer(|s| s["metadata"] = metadata)).unwrap_err();
        assert_eq!(error.to_string(), format!("services has an invalid {field}"));
    }
}

#[test]
fn an_item_that_cannot_be_converted_is_not_missing_from_its_page() {
    let broken = balancer(|s| s["spec"]["ports"][0]["port"] = json!(0));
    let good = balancer(|s| s["metadata"]["name"] = json!("good"));
    let list = json!({"kind": "ServiceList", "metadata": {"resourceVersion": "9"}, "items": [good, broken]});
    for (encoding, body) in [
        (Encoding::Json, list.to_string().into_bytes()),
        (Encoding::Protobuf, proto::envelope(&list)),
    ] {
        let page = decoder().page(encoding, &body.into()).unwrap();
        assert_eq!((page.items.len(), page.resource_version.as_str()), (1, "9"));
        assert_eq!(page.malformed[0].key.as_deref(), Some("shop/web"), "{encoding:?}");
    }
}

#[test]
fn services_of_others_share_nothing_and_keep_little() {
    let decoder = decoder();
    let mut other = balancer(|s| s["metadata"]["labels"] = json!({"a": "b"}));
    other["spec"]["type"] = json!("ClusterIP");
    let read = |service: &Value| {
        decoder
            .object(Encoding::Json, &service.to_string().into())
            .unwrap()
    };
    let view = read(&other);
    assert!(!view.is_relevant() && view.labels.is_empty() && view.ports.is_empty());
    assert!(decoder.interner.is_empty(), "a string of an object that is not kept would be kept");

    for class in ["another", ""] {
        other["spec"] =
            json!({"type": "LoadBalancer", "loadBalancerClass": class, "ports": [{"port": 80}]});
        other["metadata"]["finalizers"] = json!(["x"]);
        let want = ServiceView {
            class: Some(class.into()),
            finalizers: Box::new(["x".into()]),
            ..ServiceView::named("shop", "web")
        };
        assert_eq!(read(&other), want);
    }
}

fn numbers() -> impl Strategy<Value = i32> {
    prop_oneof![0..=3_i32, 65_534..=65_537_i32, any::<i32>(), 1..=65_535_i32]
}

fn choice(values: &'static [&'static str]) -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => prop::sample::select(values).prop_map(|v| json!(v)),
        1 => text().prop_map(Value::from),
        1 => Just(Value::Null),
    ]
}

fn strings() -> impl Strategy<Value = Value> {
    prop_oneof![Just(Value::Null), prop::collection::vec(text(), 0..3).prop_map(|v| json!(v))]
}

prop_compose! {
    fn any_port()(
        name in text(), protocol in choice(&["TCP", "UDP", "SCTP"]), port in 1..=65_535_i32, odd in numbers(),
        node in numbers(), target in prop_oneof![numbers().prop_map(Value::from), text().prop_map(Value::from)],
        is_odd in prop::bool::weighted(0.1),
    ) -> Value {
        json!({"name": name, "protocol": protocol, "port": if is_odd { odd } else { port }, "targetPort": target,
               "nodePort": if is_odd { node } else { node.rem_euclid(65_536) }, "appProtocol": name})
    }
}

prop_compose! {
    fn any_spec()(
        kind in choice(&["LoadBalancer", "ClusterIP"]), class in choice(&["example.com/lb", "another"]),
        ports in prop::collection::vec(any_port(), 0..4), ips in strings(), ranges in strings(), families in strings(),
        affinity in choice(&["ClientIP", "None"]), seconds in numbers(), health in 0..=65_536_i32,
        external in choice(&["Local", "Cluster"]), internal in choice(&["Local", "Cluster"]), policy in text(),
        allocate in any::<Option<bool>>(),
    ) -> Value {
        json!({"type": kind, "loadBalancerClass": class, "ports": ports, "externalIPs": ips, "ipFamilies": families,
               "loadBalancerSourceRanges": ranges, "sessionAffinity": affinity, "loadBalancerIP": policy,
               "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}, "healthCheckNodePort": health,
               "externalTrafficPolicy": external, "internalTrafficPolicy": internal, "ipFamilyPolicy": policy,
               "allocateLoadBalancerNodePorts": allocate})
    }
}

prop_compose! {
    fn any_service()(
        name in "[a-z0-9.-]{1,20}", uid in text(), spec in any_spec(), deleting in any::<bool>(),
        labels in prop::collection::btree_map(text(), text(), 0..3), finalized in any::<bool>(),
        ip in prop_oneof!["[0-9.]{0,15}", "[0-9a-f:]{0,20}"], host in text(), port in any_port(),
    ) -> Value {
        let deleted = if deleting { json!("2026-01-02T03:04:05.000000006Z") } else { Value::Null };
        let finalizers = if finalized { json!([uid, well_known::FINALIZER_LOAD_BALANCER]) } else { Value::Null };
        json!({
            "kind": "Service", "spec": spec,
            "metadata": {"namespace": "ns", "name": name, "uid": uid, "labels": labels, "annotations": labels,
                         "deletionTimestamp": deleted, "creationTimestamp": deleted, "finalizers": finalizers},
            "status": {"loadBalancer": {"ingress": [
                {"ip": ip, "hostname": host, "ipMode": host, "ports": [{"port": port["port"], "protocol": port["protocol"], "error": host}]},
            ]}},
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn both_encodings_give_the_same_service(service in any_service()) {
        let _ = read(&service);
    }

    #[test]
    fn a_service_that_is_to_be_served_has_all_its_ports(service in any_service()) {
        let asked = service["spec"]["ports"].as_array().map_or(0, Vec::len);
        if let Ok(view) = read(&service)
            && view.is_load_balancer && !view.deleting && decoder().fields.claims_class(view.class.as_deref())
        {
            prop_assert_eq!(view.ports.len(), asked);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_everything(&decoder(), &bytes);
    }

    #[test]
    fn damaged_services_never_panic(
        service in any_service(), at in any::<prop::sample::Index>(), byte in any::<u8>(), json in any::<bool>(),
    ) {
        let mut bytes = if json { service.to_string().into_bytes() } else { proto::bare(&service) };
        let at = at.index(bytes.len());
        bytes[at] = byte;
        read_everything(&decoder(), &bytes);
    }
}
