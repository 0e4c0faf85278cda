//! The patches that controllers write: applied to the object that they were made from, they make it
//! what was meant, and touch nothing else.

use std::collections::BTreeMap;

use ccm_core::{
    fuzz::{
        Initialization, finalizer, initialization, pod_networks, release, shutdown_taint,
        status_patch,
    },
    k8s::{
        AddressType, LbIngress, LbStatus, NodeAddress, NodeFields, NodeView, ServiceFields,
        ServiceView, well_known,
    },
    provider::InstanceMetadata,
    runtime::{
        api::Patch,
        encoding::{CachedObject, Decoder, Encoding},
    },
};
use ccm_testkit::apiserver::{parts::apply_patch, resources};
use serde_json::{Map, Value, json};

use crate::input::Input;

/// Words of objects.
pub const WORDS: &[&str] = WORDS_OF_OBJECTS;

const WORDS_OF_OBJECTS: &[&str] = &[
    "a",
    "b",
    "",
    "team",
    "example.com/x~y",
    "10.0.0.1",
    "fd00::1",
    "z-1",
    "not a label",
    "é",
];
const KEYS: &[&str] = &[
    "team",
    "example.com/x~y",
    "a/b/c",
    well_known::LABEL_ZONE,
    well_known::LABEL_REGION,
    well_known::LABEL_INSTANCE_TYPE,
    well_known::LABEL_ZONE_BETA,
    "kubernetes.io/reserved",
];

/// Draws a Node and a Service from the bytes, and what is to be written to them.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let node = node(&mut input);
    initialize(&node, &metadata(&mut input));
    shut_down(&node);
    networks(&mut input, &node);
    let service = service(&mut input);
    add_finalizer(&service);
    publish(&mut input, &service);
    take_off(&mut input, &service);
}

fn read<T: CachedObject>(fields: T::Fields, object: &Value) -> T {
    let read = Decoder::<T>::new(fields).object(Encoding::Json, &object.to_string().into());
    read.unwrap_or_else(|error| panic!("{object}: {error}"))
}

fn node_view(object: &Value) -> NodeView {
    read(NodeFields { all_labels: true, ..NodeFields::default() }, object)
}

fn service_view(object: &Value) -> ServiceView {
    read(ServiceFields::default(), object)
}

/// Applies a patch as the server would, and gives the object a new version; `None` when it does not
/// apply.
fn applied(plural: &str, object: &Value, patch: &Patch) -> Option<Value> {
    let def = resources::find("", "v1", plural)?;
    let body = match patch {
        Patch::Json(operations) => json!(operations),
        Patch::Merge(body) | Patch::Strategic(body) => body.clone(),
    };
    let mut patched =
        apply_patch(def, object, patch.content_type(), body.to_string().as_bytes()).ok()?;
    if let Patch::Json(_) = patch {
        let mut by_rfc = object.clone();
        let parsed: json_patch::Patch = serde_json::from_value(body).expect("it is a JSON Patch");
        json_patch::patch(&mut by_rfc, &parsed).expect("the server applied it");
        assert_eq!(by_rfc, patched, "{patch:?}");
    }
    assert_eq!(patched["metadata"]["uid"], object["metadata"]["uid"]);
    patched["metadata"]["resourceVersion"] = json!("8");
    Some(patched)
}

fn must(plural: &str, object: &Value, patch: &Patch) -> Value {
    applied(plural, object, patch).unwrap_or_else(|| panic!("{patch:?} does not apply to {object}"))
}

/// Everything but what a write is about.
fn without(object: &Value, pointers: &[&str]) -> Value {
    let mut object = object.clone();
    for pointer in pointers.iter().chain(&["/metadata/resourceVersion"]) {
        let (parent, name) = pointer.rsplit_once('/').unwrap_or_default();
        if let Some(Value::Object(parent)) = object.pointer_mut(parent) {
            parent.remove(name);
        }
    }
    object
}

/// Every patch names the object that it was made from: it does not apply to a namesake, nor, where
/// it may not overwrite, to a newer version.
fn refuses_namesakes(plural: &str, object: &Value, patch: &Patch) {
    let mut namesake = object.clone();
    namesake["metadata"]["uid"] = json!("another");
    match patch {
        Patch::Json(_) => assert_eq!(applied(plural, &namesake, patch), None, "{patch:?}"),
        // The server compares the UID that it would write.
        Patch::Merge(body) | Patch::Strategic(body) => {
            assert_eq!(body["metadata"]["uid"], object["metadata"]["uid"]);
        }
    }
}

fn map(input: &mut Input<'_>, most: usize) -> Map<String, Value> {
    input
        .list(most, |input| (input.word(KEYS), json!(input.word(WORDS_OF_OBJECTS))))
        .into_iter()
        .collect()
}

fn node(input: &mut Input<'_>) -> Value {
    let taint = |input: &mut Input<'_>| {
        let key =
            input.word(&[well_known::TAINT_UNINITIALIZED, well_known::TAINT_SHUTDOWN, "other"]);
        json!({"key": key, "value": input.word(&["", "true"]), "effect": input.pick(&["NoSchedule", "NoExecute"])})
    };
    let address = |input: &mut Input<'_>| json!({"type": input.pick(&["InternalIP", "ExternalIP", "Hostname"]), "address": input.word(&["10.0.0.1", "10.0.0.2", "n"])});
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "uid": "u-1", "resourceVersion": "7", "annotations": {"somebody": "else's"}},
        "spec": {"foreign": {"kept": true}},
        "status": {"capacity": {"cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    let labels = map(input, 3);
    // Absent, null and empty are three things on the wire.
    match input.up_to(3) {
        0 => {}
        1 => node["metadata"]["labels"] = json!({}),
        _ => node["metadata"]["labels"] = Value::Object(labels),
    }
    let taints = input.list(4, taint);
    if !taints.is_empty() {
        node["spec"]["taints"] = json!(taints);
    }
    if input.one_in(3) {
        node["spec"]["providerID"] = json!("mock://r/n");
    }
    let addresses = input.list(3, address);
    if !addresses.is_empty() || input.one_in(2) {
        node["status"]["addresses"] = json!(addresses);
    }
    node
}

fn metadata(input: &mut Input<'_>) -> InstanceMetadata {
    let some = |input: &mut Input<'_>| input.one_in(2).then(|| input.word(WORDS_OF_OBJECTS).into());
    let kinds = [AddressType::InternalIp, AddressType::ExternalIp, AddressType::Hostname];
    InstanceMetadata {
        provider_id: (!input.one_in(8)).then(|| "mock://r/n".into()),
        instance_type: some(input),
        zone: some(input),
        region: some(input),
        addresses: input.list(4, |input| {
            NodeAddress::new(
                kinds[input.up_to(2)],
                input.word(&["10.0.0.1", "10.0.0.2", "fd00::1", "n"]),
            )
        }),
        additional_labels: input
            .list(3, |input| (input.word(KEYS).into(), input.word(WORDS_OF_OBJECTS).into()))
            .into_iter()
            .collect(),
    }
}

fn initialize(node: &Value, meta: &InstanceMetadata) {
    let Ok(plan) = initialization(&node_view(node), meta) else {
        return;
    };
    let mut now = node.clone();
    if let Some(patch) = &plan.addresses {
        refuses_namesakes("nodes", node, patch);
        now = must("nodes", node, patch);
        assert_eq!(
            without(&now, &["/status/addresses"]),
            without(node, &["/status/addresses"]),
            "{patch:?}"
        );
        assert!(
            initialization(&node_view(&now), meta).is_ok_and(|plan| plan.addresses.is_none()),
            "{now}"
        );
    }
    let rest = initialization(&node_view(&now), meta).expect("it could be planned before");
    refuses_namesakes("nodes", &now, &rest.rest);
    let done = must("nodes", &now, &rest.rest);
    check_initialized(&now, &done, &rest);
    let view = node_view(&done);
    assert!(!view.is_uninitialized() && view.provider_id.is_some(), "{done}");
    let again = initialization(&view, meta).expect("it could be planned before");
    assert!(again.is_empty, "{again:?} on {done}");
}

/// All that changed is what was planned.
fn check_initialized(before: &Value, after: &Value, plan: &Initialization) {
    let about = ["/metadata/labels", "/spec/taints", "/spec/providerID"];
    assert_eq!(without(after, &about), without(before, &about));
    let empty = Map::new();
    let labels = |node: &'_ Value| {
        node["metadata"]["labels"]
            .as_object()
            .unwrap_or(&empty)
            .clone()
    };
    let mut expected = labels(before);
    expected.extend(
        plan.labels
            .iter()
            .map(|(key, value)| (key.clone(), json!(value))),
    );
    assert_eq!(labels(after), expected);
    let others = |node: &Value| {
        let taints = node["spec"]["taints"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        taints
            .into_iter()
            .filter(|taint| taint["key"] != well_known::TAINT_UNINITIALIZED)
            .collect::<Vec<_>>()
    };
    assert_eq!(others(after), others(before));
    assert_eq!(after["spec"]["taints"].as_array().map_or(0, Vec::len), others(after).len());
    let known = before["spec"]["providerID"]
        .as_str()
        .filter(|id| !id.is_empty());
    assert!(known.is_none_or(|known| after["spec"]["providerID"] == known), "{after}");
}

fn shut_down(node: &Value) {
    let view = node_view(node);
    let wanted = !view.has_shutdown_taint();
    let patch = shutdown_taint(&view, wanted);
    refuses_namesakes("nodes", node, &patch);
    let after = must("nodes", node, &patch);
    assert_eq!(node_view(&after).has_shutdown_taint(), wanted, "{after}");
    assert_eq!(without(&after, &["/spec/taints"]), without(node, &["/spec/taints"]));
    let ours = |taint: &Value| {
        taint["key"] == well_known::TAINT_SHUTDOWN && taint["effect"] == "NoSchedule"
    };
    let others = |node: &Value| {
        let taints = node["spec"]["taints"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        taints
            .into_iter()
            .filter(|taint| !ours(taint))
            .collect::<Vec<_>>()
    };
    assert_eq!(others(&after), others(node));
}

fn networks(input: &mut Input<'_>, node: &Value) {
    let all = ["10.1.0.0/24", "fd00:1::/64"].map(|net| net.parse().expect("it is a network"));
    let networks = &all[..=input.up_to(1)];
    let patch = pod_networks(&node_view(node), networks);
    refuses_namesakes("nodes", node, &patch);
    let after = must("nodes", node, &patch);
    let given: Vec<String> = node_view(&after)
        .pod_cidrs
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(given, networks.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(after["spec"]["podCIDR"], given[0]);
    assert_eq!(without(&after, &["/spec/podCIDR", "/spec/podCIDRs"]), without(node, &[]));
    // Somebody else's write in between: it must not be overwritten.
    let mut newer = node.clone();
    newer["metadata"]["resourceVersion"] = json!("9");
    assert_eq!(applied("nodes", &newer, &patch), None);
}

fn service(input: &mut Input<'_>) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "ns", "uid": "u-1", "resourceVersion": "7"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}], "foreign": true},
        "status": {"loadBalancer": {}, "conditions": [{"type": "x", "status": "True"}]},
    });
    let finalizers = input.list(3, |input| {
        json!(input.word(&[well_known::FINALIZER_LOAD_BALANCER, "example.com/other", "x"]))
    });
    if !finalizers.is_empty() {
        service["metadata"]["finalizers"] = json!(finalizers);
    }
    let annotations = map(input, 4);
    if !annotations.is_empty() {
        service["metadata"]["annotations"] = Value::Object(annotations);
    }
    if input.one_in(2) {
        service["status"]["loadBalancer"] =
            json!({"ingress": [{"ip": input.pick(&["10.0.0.1", "10.0.0.2"]), "ipMode": "VIP"}]});
    }
    if input.one_in(4) {
        service["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    service
}

fn add_finalizer(service: &Value) {
    let view = service_view(service);
    let patch = finalizer(&view);
    refuses_namesakes("services", service, &patch);
    let after = must("services", service, &patch);
    assert!(service_view(&after).has_finalizer());
    assert_eq!(
        without(&after, &["/metadata/finalizers"]),
        without(service, &["/metadata/finalizers"])
    );
    assert_eq!(foreign(&after), foreign(service));
    assert_eq!(
        without(&must("services", &after, &patch), &[]),
        without(&after, &[]),
        "a second time"
    );
}

/// Finalizers of others, each once: the server merges them as a set.
fn foreign(service: &Value) -> std::collections::BTreeSet<String> {
    let finalizers = service["metadata"]["finalizers"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let others = finalizers
        .iter()
        .filter_map(Value::as_str)
        .filter(|name| *name != well_known::FINALIZER_LOAD_BALANCER);
    others.map(str::to_owned).collect()
}

fn publish(input: &mut Input<'_>, service: &Value) {
    let view = service_view(service);
    let status = (!input.one_in(4)).then(|| LbStatus {
        ingress: input.list(2, |input| LbIngress {
            ip: input
                .pick(&["10.0.0.1", "10.0.0.2", "fd00::1"])
                .parse()
                .ok(),
            ..LbIngress::default()
        }),
    });
    let wanted: BTreeMap<Box<str>, Option<Box<str>>> = input
        .list(3, |input| {
            let value = (!input.one_in(3)).then(|| input.word(WORDS_OF_OBJECTS).into());
            (input.word(KEYS).into(), value)
        })
        .into_iter()
        .collect();
    let after = match status_patch(&view, status.as_ref(), &wanted) {
        Some(patch) => {
            refuses_namesakes("services", service, &patch);
            must("services", service, &patch)
        }
        None => service.clone(),
    };
    let now = service_view(&after);
    for (key, value) in &wanted {
        assert_eq!(now.annotations.get(&**key).map(|value| &**value), value.as_deref(), "{key}");
    }
    let addresses = |status: &LbStatus| {
        status
            .ingress
            .iter()
            .map(|ingress| ingress.ip)
            .collect::<Vec<_>>()
    };
    if let Some(status) = &status {
        assert_eq!(addresses(&now.status), addresses(status));
    }
    let about = ["/metadata/annotations", "/status/loadBalancer"];
    assert_eq!(without(&after, &about), without(service, &about));
    let mut others = view.annotations.clone();
    others.retain(|key, _| !wanted.contains_key(&**key));
    assert!(
        others
            .iter()
            .all(|(key, value)| now.annotations.get(key) == Some(value))
    );
}

fn take_off(input: &mut Input<'_>, service: &Value) {
    let view = service_view(service);
    let stale: Vec<Box<str>> = input.list(2, |input| input.word(KEYS).into());
    let Some(patch) = release(&view, &stale) else {
        assert!(!view.has_finalizer());
        return;
    };
    refuses_namesakes("services", service, &patch);
    // A finalizer that stands twice goes in two rounds; the API server keeps no two alike.
    let finalizers = service["metadata"]["finalizers"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let twice = finalizers
        .iter()
        .filter(|name| **name == well_known::FINALIZER_LOAD_BALANCER)
        .count()
        > 1;
    let after = must("services", service, &patch);
    let now = service_view(&after);
    assert!(twice || !now.has_finalizer());
    assert_eq!(foreign(&after), foreign(service));
    let about = ["/metadata/annotations", "/metadata/finalizers", "/status/loadBalancer"];
    assert_eq!(without(&after, &about), without(service, &about));
    let kept = view
        .annotations
        .iter()
        .filter(|(key, _)| view.deleting || !stale.iter().any(|gone| **gone == ***key));
    assert!(
        kept.clone()
            .all(|(key, value)| now.annotations.get(key) == Some(value))
    );
    assert!(view.deleting || now.annotations.len() == kept.count());
    assert!(twice || release(&now, &stale).is_none(), "{now:?}");
}
