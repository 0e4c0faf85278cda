//! JSON and protobuf must give the same object, and nothing that comes over the wire may panic.

use bytes::Bytes;
use kube::client::Body;
use proptest::prelude::*;
use prost::Message;
use serde_json::{Value, json};

use super::proto;
use crate::{
    error::chain,
    k8s::{AddressType, NodeFields, NodeView, well_known},
    runtime::{
        encoding::{CachedObject, Decoder, Encoding},
        reflector::watch_stream::{WatchEvent, WatchStream},
    },
};

fn decoder() -> Decoder<NodeView> {
    let fields = NodeFields { system_uuid: true, ..NodeFields::default() };
    Decoder::new(fields)
}

fn from_json(node: &Value) -> NodeView {
    decoder()
        .object(Encoding::Json, &node.to_string().into())
        .unwrap()
}

fn from_proto(node: &Value) -> NodeView {
    decoder()
        .object(Encoding::Protobuf, &proto::envelope(node).into())
        .unwrap()
}

fn node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": "a", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"kubernetes.io/hostname": "a", "team": "x"},
            "annotations": {"alpha.kubernetes.io/provided-node-ip": "10.0.0.1", "other": "y"},
        },
        "spec": {"podCIDR": "10.1.0.0/24", "providerID": "mock://a", "unschedulable": true,
                 "taints": [{"key": "k", "effect": "NoExecute"}]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Carrier", "address": "pigeon"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"systemUUID": "s"},
        },
    })
}

#[test]
fn everything_that_is_kept_is_read() {
    let view = from_json(&node());
    assert_eq!((&*view.name, &*view.uid, &*view.resource_version), ("a", "u", "7"));
    assert_eq!(view.created.to_string(), "2026-01-02T03:04:05Z");
    assert_eq!(view.labels.iter().collect::<Vec<_>>(), [("kubernetes.io/hostname", "a")]);
    assert_eq!(
        view.annotations.iter().collect::<Vec<_>>(),
        [(well_known::ANNOTATION_PROVIDED_NODE_IP, "10.0.0.1")]
    );
    assert_eq!(view.pod_cidrs.iter().map(|c| &**c).collect::<Vec<_>>(), ["10.1.0.0/24"]);
    assert_eq!(
        view.addresses.iter().map(|a| a.kind).collect::<Vec<_>>(),
        [AddressType::InternalIp]
    );
    assert_eq!(
        (view.provider_id.as_deref(), view.system_uuid.as_deref()),
        (Some("mock://a"), Some("s"))
    );
    assert!(view.is_ready() && view.unschedulable && view.has_labels && !view.deleting);
    assert_eq!(view, from_proto(&node()));
}

#[test]
fn all_labels_stay_while_the_node_is_uninitialized() {
    let mut node = node();
    node["spec"]["taints"] =
        json!([{"key": well_known::TAINT_UNINITIALIZED, "value": "true", "effect": "NoSchedule"}]);
    for view in [from_json(&node), from_proto(&node)] {
        assert_eq!(view.labels.get("team"), Some("x"));
    }
}

#[test]
fn labels_that_are_not_kept_still_count_as_labels() {
    let mut node = node();
    node["metadata"]["labels"] = json!({"team": "x"});
    for view in [from_json(&node), from_proto(&node)] {
        assert!(view.has_labels && view.labels.is_empty());
    }
}

#[test]
fn absent_and_null_fields_are_the_same() {
    let bare = json!({"metadata": {"name": "a"}});
    let null = json!({
        "metadata": {"name": "a", "labels": null, "annotations": null, "creationTimestamp": null, "deletionTimestamp": null},
        "spec": {"taints": null, "podCIDRs": null, "providerID": null, "unschedulable": null},
        "status": {"addresses": null, "conditions": null, "nodeInfo": null},
    });
    assert_eq!(from_json(&bare), NodeView::named("a"));
    assert_eq!(from_json(&null), NodeView::named("a"));
    assert_eq!(from_proto(&bare), NodeView::named("a"));
}

#[test]
fn what_cannot_be_read_is_named() {
    let mut broken = node();
    broken["spec"]["taints"] = json!("none");
    let error = decoder()
        .object(Encoding::Json, &broken.to_string().into())
        .unwrap_err();
    assert!(
        chain(&error).starts_with("malformed JSON of nodes \"a\": invalid type: string \"none\""),
        "{}",
        chain(&error)
    );

    // A node whose spec (field 2) is cut short, behind good metadata.
    let mut raw = proto::node(&json!({"metadata": {"name": "a"}}))
        .metadata
        .unwrap()
        .encode_to_vec();
    raw = [&[0x0a, u8::try_from(raw.len()).unwrap()], &raw[..], &[0x12, 0x05, 0x2a]].concat();
    let error = decoder().proto(&raw.into()).unwrap_err();
    assert!(chain(&error).starts_with("malformed protobuf of nodes"), "{}", chain(&error));

    let mut broken = node();
    broken["metadata"]["creationTimestamp"] = json!("yesterday");
    let error = decoder()
        .object(Encoding::Json, &broken.to_string().into())
        .unwrap_err();
    assert_eq!(error.to_string(), "nodes \"a\" has an invalid creationTimestamp");
}

#[test]
fn one_unreadable_item_does_not_spoil_a_page() {
    let mut broken = node();
    broken["spec"]["taints"] = json!("none");
    broken["metadata"]["name"] = json!("b");
    let list = json!({"kind": "NodeList", "metadata": {"resourceVersion": "9"}, "items": [node(), broken]});
    let page = decoder()
        .page(Encoding::Json, &list.to_string().into())
        .unwrap();
    assert_eq!((page.items.len(), page.resource_version.as_str()), (1, "9"));
    assert_eq!(page.malformed[0].key.as_deref(), Some("b"));
}

pub(super) fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z./-]{1,12}", any::<String>()]
}

fn map() -> impl Strategy<Value = Value> {
    let keys = prop_oneof![
        Just(well_known::LABEL_ZONE.to_owned()),
        Just(well_known::LABEL_HOSTNAME.to_owned()),
        Just(well_known::ANNOTATION_PROVIDED_NODE_IP.to_owned()),
        text(),
    ];
    prop::collection::btree_map(keys, text(), 0..5).prop_map(|m| json!(m))
}

fn list(
    kinds: &'static [&'static str],
    item: fn(&str, String, String) -> Value,
) -> impl Strategy<Value = Value> {
    let kind = prop_oneof![prop::sample::select(kinds).prop_map(str::to_owned), text()];
    prop::collection::vec((kind, text(), text()).prop_map(move |(k, a, b)| item(&k, a, b)), 0..5)
        .prop_map(|v| json!(v))
}

prop_compose! {
    fn any_node()(
        name in "[a-z0-9.-]{1,20}", uid in text(), rv in text(), provider_id in text(), uuid in text(),
        labels in map(), annotations in map(), seconds in 0..4_000_000_000_i64,
        deleting in any::<bool>(), unschedulable in any::<bool>(),
        cidrs in prop::collection::vec("[0-9./]{1,18}", 0..3),
        taints in list(&[well_known::TAINT_UNINITIALIZED, well_known::TAINT_SHUTDOWN], |k, v, e| json!({"key": k, "value": v, "effect": e})),
        addresses in list(&["InternalIP", "Hostname"], |t, a, _| json!({"type": t, "address": a})),
        conditions in list(&["Ready", "NetworkUnavailable"], |t, s, r| json!({"type": t, "status": s, "reason": r})),
    ) -> Value {
        let created = jiff::Timestamp::from_second(seconds).unwrap().to_string();
        let deleted = if deleting { json!(created) } else { Value::Null };
        json!({
            "metadata": {"name": name, "uid": uid, "resourceVersion": rv, "labels": labels, "annotations": annotations,
                         "creationTimestamp": created, "deletionTimestamp": deleted},
            "spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs, "providerID": provider_id,
                     "unschedulable": unschedulable, "taints": taints},
            "status": {"addresses": addresses, "conditions": conditions, "nodeInfo": {"systemUUID": uuid}},
        })
    }
}

/// Feeds bytes to every reader that sees bytes of the network.
pub(super) fn read_everything<T: CachedObject>(decoder: &Decoder<T>, bytes: &[u8]) {
    let body = Bytes::copy_from_slice(bytes);
    let enveloped: Bytes = [b"k8s\0", bytes].concat().into();
    for (encoding, body) in
        [(Encoding::Json, &body), (Encoding::Protobuf, &body), (Encoding::Protobuf, &enveloped)]
    {
        let _ = decoder.object(encoding, body);
        let _ = decoder.page(encoding, body);
        let _ = decoder.event(encoding, body);
    }
    let _ = decoder.proto(&body);
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let mut frames = WatchStream::new(encoding, Body::from(bytes.to_vec()));
        let read = async { while let Ok(Some(_)) = frames.next().await {} };
        futures::executor::block_on(read);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn both_encodings_give_the_same_node(node in any_node()) {
        prop_assert_eq!(from_json(&node), from_proto(&node));
    }

    #[test]
    fn events_survive_both_encodings_and_any_chunking(node in any_node()) {
        for encoding in [Encoding::Json, Encoding::Protobuf] {
            let one = match encoding {
                Encoding::Json => format!("{}\n", json!({"type": "ADDED", "object": node})).into_bytes(),
                Encoding::Protobuf => proto::event("ADDED", &node),
            };
            let mut frames = WatchStream::new(encoding, Body::from([&one[..], &one[..]].concat()));
            let mut seen = 0;
            while let Some(frame) = futures::executor::block_on(frames.next()).unwrap() {
                let WatchEvent::Applied(view) = decoder().event(encoding, &frame).unwrap() else {
                    return Err(TestCaseError::fail("another event"));
                };
                prop_assert_eq!(&view, &from_json(&node));
                seen += 1;
            }
            prop_assert_eq!(seen, 2);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_everything(&decoder(), &bytes);
    }

    #[test]
    fn damaged_nodes_never_panic(node in any_node(), at in any::<prop::sample::Index>(), byte in any::<u8>(), json in any::<bool>()) {
        let mut bytes = if json { node.to_string().into_bytes() } else { proto::node(&node).encode_to_vec() };
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        read_everything(&decoder(), &bytes);
    }
}
