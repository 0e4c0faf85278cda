//! Encodes objects to protobuf from their JSON, through the narrow messages.

use prost::Message;
use serde::Deserialize;
use serde_json::Value;

use crate::runtime::encoding::{
    endpoint_slice::EndpointSliceWire,
    proto::{
        EntryProto, ListMetaProto, ListProto, NodeAddressProto, NodeConditionProto, NodeProto,
        NodeSpecProto, NodeStatusProto, NodeSystemInfoProto, ObjectMetaProto, RawExtension,
        StatusProto, TaintProto, TimeProto, Unknown, WatchEventProto,
    },
    service::ServiceWire,
};

/// An object, list or Status in its envelope.
pub(crate) fn envelope(object: &Value) -> Vec<u8> {
    let raw = match object["kind"].as_str() {
        Some("Status") => status(object).encode_to_vec(),
        Some(kind) if kind.ends_with("List") => list(object).encode_to_vec(),
        _ => bare(object),
    };
    enveloped(raw)
}

/// The bytes in an envelope.
pub(crate) fn enveloped(raw: Vec<u8>) -> Vec<u8> {
    let mut bytes = b"k8s\0".to_vec();
    bytes.extend(Unknown { raw: raw.into() }.encode_to_vec());
    bytes
}

/// An object outside its envelope; a Node unless it says otherwise.
pub(crate) fn bare(object: &Value) -> Vec<u8> {
    match object["kind"].as_str() {
        Some("Service") => ServiceWire::deserialize(object).unwrap().encode_to_vec(),
        Some("EndpointSlice") => EndpointSliceWire::deserialize(object)
            .unwrap()
            .encode_to_vec(),
        _ => node(object).encode_to_vec(),
    }
}

/// A length-prefixed watch event.
pub(crate) fn event(kind: &str, object: &Value) -> Vec<u8> {
    let raw = envelope(object).into();
    let event = WatchEventProto { kind: kind.to_owned(), object: Some(RawExtension { raw }) }
        .encode_to_vec();
    let mut bytes = u32::try_from(event.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(event);
    bytes
}

pub(crate) fn node(object: &Value) -> NodeProto {
    let (meta, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    NodeProto {
        metadata: Some(ObjectMetaProto {
            name: text(&meta["name"]),
            namespace: String::new(),
            uid: text(&meta["uid"]),
            resource_version: text(&meta["resourceVersion"]),
            generation: 0,
            creation_timestamp: time(&meta["creationTimestamp"]),
            deletion_timestamp: time(&meta["deletionTimestamp"]),
            labels: entries(&meta["labels"]),
            annotations: entries(&meta["annotations"]),
            finalizers: each(&meta["finalizers"], text),
        }),
        spec: Some(NodeSpecProto {
            pod_cidr: text(&spec["podCIDR"]),
            provider_id: text(&spec["providerID"]),
            unschedulable: spec["unschedulable"].as_bool().unwrap_or_default(),
            taints: each(&spec["taints"], |t| TaintProto {
                key: text(&t["key"]),
                value: text(&t["value"]),
                effect: text(&t["effect"]),
            }),
            pod_cidrs: each(&spec["podCIDRs"], text),
        }),
        status: Some(NodeStatusProto {
            conditions: each(&status["conditions"], |c| NodeConditionProto {
                kind: text(&c["type"]),
                status: text(&c["status"]),
                reason: text(&c["reason"]),
            }),
            addresses: each(&status["addresses"], |a| NodeAddressProto {
                kind: text(&a["type"]),
                address: text(&a["address"]),
            }),
            node_info: Some(NodeSystemInfoProto {
                system_uuid: text(&status["nodeInfo"]["systemUUID"]),
            }),
        }),
    }
}

fn list(object: &Value) -> ListProto {
    ListProto {
        metadata: Some(ListMetaProto {
            resource_version: text(&object["metadata"]["resourceVersion"]),
            r#continue: text(&object["metadata"]["continue"]),
        }),
        items: each(&object["items"], |item| bare(item).into()),
    }
}

fn status(object: &Value) -> StatusProto {
    StatusProto {
        message: text(&object["message"]),
        reason: text(&object["reason"]),
        details: None,
        code: i32::try_from(object["code"].as_i64().unwrap_or_default()).unwrap(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn each<T>(list: &Value, read: impl Fn(&Value) -> T) -> Vec<T> {
    list.as_array().into_iter().flatten().map(read).collect()
}

fn entries(map: &Value) -> Vec<EntryProto> {
    let entry =
        |(k, v): (&String, &Value)| EntryProto { key: k.clone().into(), value: text(v).into() };
    map.as_object().into_iter().flatten().map(entry).collect()
}

fn time(value: &Value) -> Option<TimeProto> {
    let time: jiff::Timestamp = value.as_str()?.parse().unwrap();
    Some(TimeProto { seconds: Some(time.as_second()) })
}
