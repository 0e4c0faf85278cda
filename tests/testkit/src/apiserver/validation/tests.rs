use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;
use crate::apiserver::defaulting::default;
use crate::apiserver::resources::{all, find};
use crate::apiserver::test_json::any_json;

fn def(plural: &str) -> &'static ResourceDef {
    all().iter().find(|d| d.plural == plural).unwrap()
}

/// `field: message` of each cause.
fn messages(causes: &[Cause]) -> Vec<String> {
    let mut messages: Vec<String> = causes
        .iter()
        .map(|c| format!("{}: {}", c.field, c.message))
        .collect();
    // Metadata is checked twice on updates, as on the real server.
    messages.dedup();
    messages
}

fn created(plural: &str, object: &Value) -> Vec<String> {
    messages(&validate_create(def(plural), object))
}

/// Causes of changing one object into another by an edit.
fn changed(plural: &str, old: &Value, edit: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut new = old.clone();
    edit(&mut new);
    messages(&validate_update(def(plural), old, &new))
}

fn meta(name: &str) -> Value {
    json!({"name": name, "resourceVersion": "1", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"})
}

fn namespaced(name: &str) -> Value {
    let mut meta = meta(name);
    meta["namespace"] = "default".into();
    meta
}

fn node(spec: &Value, status: &Value) -> Value {
    json!({"metadata": meta("n1"), "spec": spec, "status": status})
}

/// Returns a valid service with these spec fields, defaulted.
fn service(spec: &Value) -> Value {
    let mut service = json!({"metadata": namespaced("web"), "spec": {"ports": [{"port": 80}], "clusterIP": "10.96.0.9"}});
    for (field, value) in spec.as_object().unwrap() {
        service["spec"][field] = value.clone();
    }
    default(def("services"), &mut service);
    service
}

const NONE: [&str; 0] = [];

#[test]
fn metadata_is_checked_on_creation() {
    let config_map = |meta: Value| created("configmaps", &json!({"metadata": meta}));
    assert_eq!(config_map(namespaced("a")), NONE);
    assert_eq!(config_map(json!({"name": "a"})), ["metadata.namespace: Required value"]);
    assert_eq!(
        config_map(json!({"namespace": "default"})),
        ["metadata.name: Required value: name or generateName is required"]
    );
    assert_eq!(
        created("nodes", &json!({"metadata": {"name": "a", "namespace": "b"}})),
        ["metadata.namespace: Forbidden: not allowed on this type"]
    );
    let name = config_map(json!({"name": "A", "namespace": "default"}));
    assert!(
        name[0].starts_with(
            "metadata.name: Invalid value: \"A\": a lowercase RFC 1123 subdomain must"
        ),
        "{name:?}"
    );
    assert_eq!(
        config_map(json!({"name": "a-x", "generateName": "a-", "namespace": "default"})),
        NONE
    );
    let label = config_map(
        json!({"name": "a", "namespace": "default", "labels": {"x": "a b"}, "annotations": {"Example.com/X": "any text"}}),
    );
    assert_eq!(label.len(), 1);
    assert!(label[0].starts_with(
        "metadata.labels: Invalid value: \"a b\": a valid label must be an empty string or"
    ));
    let finalizers = config_map(
        json!({"name": "a", "namespace": "default", "finalizers": ["kubernetes", "example.com/x", "mine"]}),
    );
    assert_eq!(
        finalizers,
        [
            "metadata.finalizers[2]: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully qualified"
        ]
    );
    let owner = config_map(
        json!({"name": "a", "namespace": "default", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}),
    );
    assert_eq!(owner, ["metadata.ownerReferences.uid: Invalid value: \"\": must not be empty"]);
    let big = config_map(
        json!({"name": "a", "namespace": "default", "annotations": {"a": "x".repeat(262_145)}}),
    );
    assert_eq!(big, ["metadata.annotations: Too long: may not be more than 262144 bytes"]);
}

#[test]
fn metadata_that_identifies_an_object_cannot_change() {
    let old = json!({"metadata": namespaced("a")});
    let set = |field: &'static str, value: Value| {
        changed("configmaps", &old, |new| new["metadata"][field] = value)
    };
    assert_eq!(set("labels", json!({"a": "b"})), NONE);
    assert_eq!(
        set("uid", "other".into()),
        ["metadata.uid: Invalid value: \"other\": field is immutable"]
    );
    assert_eq!(
        set("creationTimestamp", Value::Null),
        ["metadata.creationTimestamp: Invalid value: null: field is immutable"]
    );
    assert_eq!(
        set("resourceVersion", "".into()),
        ["metadata.resourceVersion: Invalid value: \"\": must be specified for an update"]
    );
    assert_eq!(
        set("generation", (-1).into()),
        ["metadata.generation: Invalid value: -1: must not be decremented"]
    );
    assert_eq!(set("generation", 2.into()), NONE);
    let mut leaving = old.clone();
    leaving["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
    leaving["metadata"]["finalizers"] = json!(["example.com/a"]);
    let added = changed("configmaps", &leaving, |new| {
        new["metadata"]["finalizers"] = json!(["example.com/a", "example.com/b"]);
    });
    assert_eq!(
        added,
        [
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new \
          finalizers []string{\"example.com/b\"}"
        ]
    );
    assert_eq!(
        changed("configmaps", &leaving, |new| new["metadata"]["finalizers"] = json!([])),
        NONE
    );
}

#[test]
fn a_provider_id_and_pod_networks_are_written_once() {
    let fresh = node(&json!({}), &json!({}));
    let written = |new: &mut Value| {
        new["spec"] = json!({"providerID": "mock://a", "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]});
    };
    assert_eq!(changed("nodes", &fresh, written), NONE);
    let old = node(&json!({"providerID": "mock://a", "podCIDRs": ["10.1.0.0/24"]}), &json!({}));
    let id = "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid";
    assert_eq!(changed("nodes", &old, |new| new["spec"]["providerID"] = "mock://b".into()), [id]);
    assert_eq!(
        changed("nodes", &old, |new| drop(
            new["spec"].as_object_mut().unwrap().remove("providerID")
        )),
        [id]
    );
    let cidr =
        "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid";
    assert_eq!(
        changed("nodes", &old, |new| new["spec"]["podCIDRs"] = json!(["10.2.0.0/24"])),
        [cidr]
    );
    assert_eq!(changed("nodes", &old, |new| new["spec"]["podCIDRs"] = json!([])), [cidr]);
    assert_eq!(changed("nodes", &old, |new| new["spec"]["unschedulable"] = true.into()), NONE);
}

#[test]
fn taints_addresses_and_networks_of_nodes_are_checked() {
    let taints = |taints: Value| created("nodes", &node(&json!({"taints": taints}), &json!({})));
    assert_eq!(
        taints(
            json!([{"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}])
        ),
        NONE
    );
    assert_eq!(taints(json!([{"key": "a"}])), ["metadata.taints[0].effect: Required value"]);
    assert_eq!(
        taints(json!([{"key": "a", "effect": "Never"}])),
        [
            "metadata.taints[0].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\""
        ]
    );
    let twice = taints(
        json!([{"key": "a", "effect": "NoExecute"}, {"key": "a", "value": "x", "effect": "NoExecute"}]),
    );
    assert_eq!(twice.len(), 1);
    assert!(
        twice[0].starts_with("metadata.taints[1]: Duplicate value: {\"")
            && twice[0].contains("taints must be unique by key and effect pair"),
        "{twice:?}"
    );
    let cidrs = |cidrs: Value| created("nodes", &node(&json!({"podCIDRs": cidrs}), &json!({})));
    assert_eq!(cidrs(json!(["10.0.0.0/24", "fd00::/64"])), NONE);
    assert_eq!(
        cidrs(json!(["10.0.0.0/24", "10.0.1.0/24"])),
        [
            "spec.podCIDRs: Invalid value: [\"10.0.0.0/24\",\"10.0.1.0/24\"]: may specify no more than one CIDR for each IP family"
        ]
    );
    let address = json!({"type": "InternalIP", "address": "10.0.0.1"});
    let old = node(&json!({}), &json!({}));
    let twice =
        changed("nodes", &old, |new| new["status"]["addresses"] = json!([address, address]));
    assert_eq!(twice.len(), 1);
    assert!(twice[0].starts_with("status.addresses[1]: Duplicate value: {"), "{twice:?}");
    let capacity = changed("nodes", &old, |new| new["status"]["capacity"] = json!({"cpu": "-1"}));
    assert_eq!(
        capacity,
        ["status.capacity.cpu: Invalid value: \"-1\": must be greater than or equal to 0"]
    );
}

#[test]
fn a_service_needs_sound_ports() {
    let ports = |ports: Value| created("services", &service(&json!({"ports": ports})));
    assert_eq!(ports(json!([{"port": 80}])), NONE);
    assert_eq!(ports(json!([])), ["spec.ports: Required value"]);
    assert_eq!(
        ports(json!([{"port": 0, "targetPort": 80}])),
        ["spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"]
    );
    assert_eq!(
        ports(json!([{"port": 80, "protocol": "ICMP"}])),
        [
            "spec.ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\""
        ]
    );
    assert_eq!(
        ports(json!([{"port": 80}, {"port": 81, "name": "b"}])),
        ["spec.ports[0].name: Required value"]
    );
    let same = ports(json!([{"port": 80, "name": "a"}, {"port": 80, "name": "a"}]));
    assert_eq!(same.len(), 2);
    assert_eq!(same[0], "spec.ports[1].name: Duplicate value: \"a\"");
    assert!(same[1].starts_with("spec.ports[1]: Duplicate value: {"), "{same:?}");
    assert_eq!(
        ports(json!([{"port": 80, "nodePort": 30000}])),
        ["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"]
    );
    assert_eq!(ports(json!([{"port": 80, "targetPort": "HTTP"}])).len(), 2);
}

#[test]
fn service_types_bring_their_own_rules() {
    let spec = |spec: Value| created("services", &service(&spec));
    for kind in ["ClusterIP", "NodePort", "LoadBalancer"] {
        assert_eq!(spec(json!({"type": kind})), NONE, "{kind}");
    }
    assert_eq!(
        spec(json!({"type": "Magic", "internalTrafficPolicy": "Cluster"})),
        [
            "spec.type: Unsupported value: \"Magic\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\""
        ]
    );
    assert_eq!(
        spec(json!({"type": "LoadBalancer", "clusterIP": "None"})),
        [
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for LoadBalancer services"
        ]
    );
    assert_eq!(spec(json!({"clusterIP": "None", "ports": []})), NONE);
    let external = json!({"metadata": namespaced("db"), "spec": {"type": "ExternalName", "externalName": "db.example."}});
    let mut external_name = external.clone();
    default(def("services"), &mut external_name);
    assert_eq!(created("services", &external_name), NONE);
    external_name["spec"]["externalName"] = "".into();
    assert_eq!(created("services", &external_name), ["spec.externalName: Required value"]);
    assert_eq!(
        spec(json!({"loadBalancerClass": "example.com/x"})),
        ["spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'"]
    );
    assert_eq!(
        spec(json!({"externalTrafficPolicy": "Local"})),
        [
            "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services"
        ]
    );
    assert_eq!(
        spec(json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"})),
        ["spec.healthCheckNodePort: Required value"]
    );
    assert_eq!(
        spec(
            json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000})
        ),
        NONE
    );
    assert_eq!(
        spec(
            json!({"type": "LoadBalancer", "loadBalancerSourceRanges": [" 10.0.0.0/8", "nonsense"]})
        ),
        [
            "spec.LoadBalancerSourceRanges[1]: Invalid value: \"nonsense\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
        ]
    );
    assert_eq!(spec(json!({"sessionAffinity": "ClientIP"})), NONE);
    assert_eq!(
        spec(json!({"externalIPs": ["127.0.0.1"]})),
        [
            "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)"
        ]
    );
    assert_eq!(
        spec(json!({"clusterIP": "10.96.0.999"})),
        [
            "spec.clusterIPs[0]: Invalid value: \"10.96.0.999\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        ]
    );
}

#[test]
fn allocated_values_of_a_service_stay() {
    let old = service(
        &json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/a", "externalTrafficPolicy": "Local", "ipFamilies": ["IPv4"], "healthCheckNodePort": 32000}),
    );
    let set = |field: &'static str, value: Value| {
        changed("services", &old, |new| new["spec"][field] = value)
    };
    assert_eq!(changed("services", &old, |_| ()), NONE);
    let moved = changed("services", &old, |new| {
        new["spec"]["clusterIP"] = "10.96.0.10".into();
        new["spec"]["clusterIPs"] = json!(["10.96.0.10"]);
    });
    assert_eq!(
        moved,
        ["spec.clusterIPs[0]: Invalid value: [\"10.96.0.10\"]: may not change once set"]
    );
    assert_eq!(
        set("loadBalancerClass", "example.com/b".into()),
        ["spec.loadBalancerClass: Invalid value: \"example.com/b\": may not change once set"]
    );
    assert_eq!(
        set("healthCheckNodePort", 32001.into()),
        ["spec.healthCheckNodePort: Forbidden: field is immutable"]
    );
    assert_eq!(
        set("ipFamilies", json!(["IPv6"]))[0],
        "spec.ipFamilies[0]: Invalid value: [\"IPv6\"]: may not change once set"
    );
}

#[test]
fn addresses_are_checked_against_the_cluster_before_allocation() {
    let refused = |spec: Value, families: &[&str]| {
        messages(&validate_cluster_ips(
            None,
            &Map::from_iter([("spec".to_owned(), spec)]).into(),
            families,
        ))
    };
    let six = json!({"type": "ClusterIP", "ipFamilies": ["IPv6"]});
    assert_eq!(
        refused(six.clone(), &["IPv4"]),
        ["spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster"]
    );
    assert_eq!(refused(six, &["IPv4", "IPv6"]), NONE);
    let both = json!({"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack"});
    let single = "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services";
    assert_eq!(refused(both.clone(), &["IPv4"]), [single]);
    assert_eq!(refused(both, &["IPv4", "IPv6"]), NONE);
    let selectorless = json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]});
    assert_eq!(refused(selectorless, &["IPv4"]), NONE);
    let wrong = refused(
        json!({"clusterIP": "10.0.0", "clusterIPs": ["10.0.0"], "ipFamilies": ["IPv6"]}),
        &["IPv4"],
    );
    assert_eq!(wrong.len(), 1);
    assert_eq!(refused(json!({"type": "ExternalName", "ipFamilies": ["IPv6"]}), &["IPv4"]), NONE);
}

#[test]
fn load_balancer_status_is_checked_when_it_changes() {
    let old = service(&json!({"type": "LoadBalancer"}));
    let ingress = |of: &Value, entry: Value| {
        changed("services", of, |new| new["status"] = json!({"loadBalancer": {"ingress": [entry]}}))
    };
    assert_eq!(ingress(&old, json!({"ip": "192.0.2.1", "ipMode": "VIP"})), NONE);
    assert_eq!(ingress(&old, json!({"hostname": "lb.example"})), NONE);
    assert_eq!(
        ingress(&old, json!({"ip": "192.0.2.1"})),
        [
            "status.loadBalancer.ingress[0].ipMode: Required value: must be specified when `ip` is set"
        ]
    );
    assert_eq!(
        ingress(&old, json!({"hostname": "192.0.2.1"})),
        [
            "status.loadBalancer.ingress[0].hostname: Invalid value: \"192.0.2.1\": must be a DNS name, not an IP address"
        ]
    );
    assert_eq!(
        ingress(&service(&json!({})), json!({"hostname": "lb.example"})),
        [
            "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'"
        ]
    );
}

#[test]
fn events_must_be_in_the_namespace_of_their_object() {
    let event = |namespace: &str, about: &str| {
        created(
            "events",
            &json!({"metadata": {"name": "e", "namespace": namespace}, "involvedObject": {"namespace": about}}),
        )
    };
    assert_eq!(event("default", ""), NONE);
    assert_eq!(event("web", "web"), NONE);
    let wrong = |about: &str| {
        format!(
            "involvedObject.namespace: Invalid value: {about:?}: does not match event.namespace"
        )
    };
    assert_eq!(event("web", ""), [wrong("")]);
    assert_eq!(event("default", "web"), [wrong("web")]);
    let timed = json!({"metadata": {"name": "e", "namespace": "kube-system"}, "eventTime": "2026-01-01T00:00:00.000000Z"});
    assert_eq!(
        created("events", &timed)[..2],
        [
            "reportingComponent: Required value",
            "reportingComponent: Invalid value: \"\": name part must be non-empty"
        ]
    );
    let named = |name: &str| {
        created("events", &json!({"metadata": {"name": name, "namespace": "default"}}))
    };
    assert_eq!(named("A_b"), NONE);
    assert_eq!(named("a/b"), ["metadata.name: Invalid value: \"a/b\": may not contain '/'"]);
    assert_eq!(named(".."), ["metadata.name: Invalid value: \"..\": may not be '..'"]);
    let newer = find("events.k8s.io", "v1", "events").unwrap();
    let strict = messages(&validate_create(
        newer,
        &json!({"metadata": {"name": "e", "namespace": "default"}, "type": "Odd"}),
    ));
    assert_eq!(
        strict,
        ["eventTime: Required value", "type: Invalid value: \"\": has invalid value: Odd"]
    );
}

#[test]
fn small_kinds_are_checked_too() {
    let lease =
        |spec: Value| created("leases", &json!({"metadata": namespaced("l"), "spec": spec}));
    assert_eq!(lease(json!({"holderIdentity": "a", "leaseDurationSeconds": 15})), NONE);
    assert_eq!(
        lease(json!({"leaseDurationSeconds": 0, "leaseTransitions": -1})),
        [
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
            "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0"
        ]
    );
    let config =
        |data: Value| created("configmaps", &json!({"metadata": namespaced("c"), "data": data}));
    assert_eq!(config(json!({"a.b": ""})), NONE);
    assert!(
        config(json!({"a b": ""}))[0]
            .starts_with("data[a b]: Invalid value: \"a b\": a valid config key must")
    );
    let frozen = json!({"metadata": namespaced("c"), "data": {"a": "b"}, "immutable": true});
    assert_eq!(
        changed("configmaps", &frozen, |new| new["data"]["a"] = "c".into()),
        ["data: Forbidden: field is immutable when `immutable` is set"]
    );
    let secret = json!({"metadata": namespaced("s"), "type": "kubernetes.io/tls"});
    assert_eq!(
        created("secrets", &secret),
        ["data[tls.crt]: Required value", "data[tls.key]: Required value"]
    );
    let opaque = json!({"metadata": namespaced("s"), "type": "Opaque"});
    assert_eq!(
        changed("secrets", &opaque, |new| new["type"] = "x".into()),
        ["type: Invalid value: \"x\": field is immutable"]
    );
    let slice = json!({"metadata": namespaced("e"), "addressType": "IPv6", "endpoints": [{"addresses": ["10.0.0.1"]}]});
    assert_eq!(
        created("endpointslices", &slice),
        ["endpoints[0].addresses: Invalid value: \"10.0.0.1\": must be an IPv6 address"]
    );
    let endpoints = json!({"metadata": namespaced("e"), "subsets": [{"ports": [{"port": 1, "protocol": "TCP"}]}]});
    assert_eq!(
        created("endpoints", &endpoints),
        ["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"]
    );
    let namespace = json!({"metadata": meta("a"), "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
    assert_eq!(created("namespaces", &namespace), NONE);
    assert_eq!(
        changed("namespaces", &namespace, |new| new["status"]["phase"] = "Terminating".into()),
        [
            "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
        ]
    );
}

#[test]
fn the_message_of_the_answer_names_kind_object_and_causes() {
    let cause = |field: &str| Cause {
        reason: "FieldValueRequired",
        message: "Required value".to_owned(),
        field: field.to_owned(),
    };
    assert_eq!(
        invalid_message(def("services"), "web", &[cause("spec.ports")]),
        "Service \"web\" is invalid: spec.ports: Required value"
    );
    assert_eq!(
        invalid_message(def("leases"), "l", &[cause("a"), cause("b"), cause("a")]),
        "Lease.coordination.k8s.io \"l\" is invalid: [a: Required value, b: Required value]"
    );
}

proptest! {
    #[test]
    fn validation_takes_any_json(old in any_json(), new in any_json(), index in 0..all().len()) {
        let def = &all()[index];
        validate_create(def, &new);
        validate_update(def, &old, &new);
        validate_cluster_ips(Some(&old), &new, &["IPv4"]);
    }

    /// A defaulted object is not refused for lack of what defaulting fills in.
    #[test]
    fn an_unchanged_valid_service_stays_valid(kind in prop::sample::select(vec!["ClusterIP", "NodePort", "LoadBalancer"]), port in 1..=65_535) {
        let service = service(&json!({"type": kind, "ports": [{"port": port}]}));
        prop_assert_eq!(created("services", &service), Vec::<String>::new());
        prop_assert_eq!(changed("services", &service, |_| ()), Vec::<String>::new());
    }
}
