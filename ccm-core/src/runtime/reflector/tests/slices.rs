//! EndpointSlices: both encodings give the same, and no endpoint gets more traffic than the slice
//! says.

use std::{net::IpAddr, num::NonZeroU16};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    decoding::{read_everything, text},
    proto,
    services::golden,
};
use crate::{
    k8s::{EndpointSliceView, EndpointView, Protocol, SlicePort},
    runtime::encoding::{CachedObject, Decoder, Encoding},
};

fn decoder() -> Decoder<EndpointSliceView> {
    Decoder::new(())
}

/// Reads a slice in both encodings, which must give the same.
fn read(slice: &Value) -> EndpointSliceView {
    let json = decoder()
        .object(Encoding::Json, &slice.to_string().into())
        .unwrap();
    let proto = decoder()
        .object(Encoding::Protobuf, &proto::envelope(slice).into())
        .unwrap();
    assert_eq!(json, proto);
    json
}

fn slice(rest: &Value) -> Value {
    let mut slice = json!({"kind": "EndpointSlice", "addressType": "IPv4",
                           "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}}});
    slice
        .as_object_mut()
        .unwrap()
        .extend(rest.as_object().unwrap().clone());
    slice
}

fn endpoint(addresses: &[[u8; 4]]) -> EndpointView {
    EndpointView {
        addresses: addresses.iter().copied().map(IpAddr::from).collect(),
        node: None,
        zone: None,
        ready: true,
        serving: true,
        terminating: false,
    }
}

fn port(name: &str, port: Option<u16>) -> SlicePort {
    SlicePort {
        name: name.into(),
        protocol: Protocol::Tcp,
        port: port.and_then(NonZeroU16::new),
    }
}

#[test]
fn what_upstream_writes_is_read_in_both_encodings() {
    let want = EndpointSliceView {
        uid: "u-1".into(),
        resource_version: "77".into(),
        ports: Box::new([port("http", Some(8080)), port("any", None)]),
        endpoints: Box::new([
            EndpointView {
                node: Some("node-1".into()),
                zone: Some("z1".into()),
                ready: false,
                terminating: true,
                ..endpoint(&[[10, 1, 0, 7]])
            },
            endpoint(&[[10, 1, 0, 8]]),
        ]),
        ..EndpointSliceView::named("shop", "web-abc", "web")
    };
    let (json, hex) =
        (include_str!("golden/endpointslice.json"), include_str!("golden/endpointslice.hex"));
    assert_eq!(golden(&decoder(), json, hex), [want.clone(), want]);
}

#[test]
fn conditions_that_are_not_set_count_as_the_api_says() {
    let cases = [
        (Value::Null, (true, true, false)),
        (json!({"ready": null, "serving": null, "terminating": null}), (true, true, false)),
        (json!({"ready": false}), (false, false, false)),
        (json!({"ready": false, "serving": true, "terminating": true}), (false, true, true)),
        (json!({"serving": false}), (true, false, false)),
    ];
    for (conditions, want) in cases {
        let view = read(&slice(
            &json!({"endpoints": [{"addresses": ["10.0.0.1"], "conditions": conditions}]}),
        ));
        let EndpointView { ready, serving, terminating, .. } = view.endpoints[0];
        assert_eq!((ready, serving, terminating), want, "{conditions}");
    }
}

#[test]
fn what_cannot_be_used_is_left_out_and_stands_for_nothing_else() {
    let view = read(&slice(&json!({
        "ports": [{"name": "a", "port": 0}, {"name": "b", "port": 65_536}, {"name": "c", "port": 80, "protocol": "QUIC"},
                  {"name": null, "port": null, "protocol": null}],
        "endpoints": [{"addresses": ["10.0.0.1", "pod-7", ""], "nodeName": "", "zone": null}, {"addresses": null}],
    })));
    assert_eq!(*view.ports, [port("", None)]);
    assert_eq!(*view.endpoints, [endpoint(&[[10, 0, 0, 1]]), endpoint(&[])]);
}

#[test]
fn names_are_no_addresses() {
    let view = read(&slice(
        &json!({"addressType": "FQDN", "endpoints": [{"addresses": ["a.example.com"]}]}),
    ));
    assert!(view.is_relevant() && view.endpoints.is_empty());
}

#[test]
fn a_slice_of_no_service_is_not_relevant() {
    for labels in
        [Value::Null, json!({}), json!({"kubernetes.io/service-name": ""}), json!({"a": "b"})]
    {
        let mut slice = slice(&json!({"endpoints": [{"addresses": ["10.0.0.1"]}]}));
        slice["metadata"]["labels"] = labels.clone();
        let view = read(&slice);
        assert!(!view.is_relevant() && view.endpoints.is_empty(), "{labels}");
        assert_eq!(&*view.key(), "shop/web-1");
    }
}

prop_compose! {
    fn any_slice()(
        name in "[a-z0-9.-]{1,20}", uid in text(), service in text(), kind in prop_oneof![Just("IPv4".to_owned()), Just("FQDN".to_owned()), text()],
        ports in prop::collection::vec((text(), prop_oneof![Just("UDP".to_owned()), text()], any::<Option<i32>>()), 0..4),
        endpoints in prop::collection::vec((prop::collection::vec("[0-9.:a-f]{0,12}", 0..3), any::<[Option<bool>; 3]>(), text()), 0..4),
    ) -> Value {
        let port = |(name, protocol, port): &(String, String, Option<i32>)| json!({"name": name, "protocol": protocol, "port": port});
        let endpoint = |(addresses, [ready, serving, terminating], node): &(Vec<String>, [Option<bool>; 3], String)| {
            json!({"addresses": addresses, "nodeName": node, "zone": node,
                   "conditions": {"ready": ready, "serving": serving, "terminating": terminating}})
        };
        json!({
            "kind": "EndpointSlice", "addressType": kind,
            "metadata": {"namespace": "ns", "name": name, "uid": uid, "labels": {"kubernetes.io/service-name": service}},
            "ports": ports.iter().map(port).collect::<Vec<_>>(), "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn both_encodings_give_the_same_slice(slice in any_slice()) {
        read(&slice);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read_everything(&decoder(), &bytes);
    }

    #[test]
    fn damaged_slices_never_panic(
        slice in any_slice(), at in any::<prop::sample::Index>(), byte in any::<u8>(), json in any::<bool>(),
    ) {
        let mut bytes = if json { slice.to_string().into_bytes() } else { proto::bare(&slice) };
        let at = at.index(bytes.len());
        bytes[at] = byte;
        read_everything(&decoder(), &bytes);
    }
}
