//! Objects in protobuf: the framework's narrow reading of them beside the embedded API server's
//! whole one.

use bytes::Bytes;
use ccm_core::{
    fuzz::page,
    k8s::{EndpointSliceView, NodeFields, NodeView, ServiceFields, ServiceView},
    runtime::encoding::{CachedObject, Decoder, Encoding},
};
use ccm_testkit::apiserver::parts::decode_protobuf;

/// Pieces of messages.
pub const WORDS: &[&str] = &[
    "k8s\u{0}",
    "\u{a}",
    "\u{12}",
    "\u{1a}",
    "\u{2}v1",
    "Node",
    "Service",
    "EndpointSlice",
    "discovery.k8s.io/v1",
    "n",
];

/// Reads the bytes as an object of each kind, with and without the envelope.
pub fn run(data: &[u8]) {
    let _ = decode_protobuf(data);
    let node = NodeFields { system_uuid: true, all_labels: true, ..NodeFields::default() };
    alike(&Decoder::<NodeView>::new(node), "v1", "Node", data);
    alike(&Decoder::<ServiceView>::new(ServiceFields::default()), "v1", "Service", data);
    alike(&Decoder::<EndpointSliceView>::new(()), "discovery.k8s.io/v1", "EndpointSlice", data);
}

/// Where both can read a message, they read the same.
fn alike<T: CachedObject + PartialEq + std::fmt::Debug>(
    decoder: &Decoder<T>,
    version: &str,
    kind: &str,
    message: &[u8],
) {
    let body = envelope(version, kind, message);
    let narrow = decoder.object(Encoding::Protobuf, &body);
    let _ = page(decoder, Encoding::Protobuf, &body);
    let _ = decoder.object(Encoding::Protobuf, &Bytes::copy_from_slice(message));
    let (Ok(narrow), Ok(whole)) = (narrow, decode_protobuf(&body)) else {
        return;
    };
    // The whole reading may hold what the narrow one, in JSON, refuses: a port beyond its bounds,
    // say.
    if let Ok(other) = decoder.object(Encoding::Json, &whole.to_string().into()) {
        assert_eq!(narrow, other, "{whole}");
    }
}

/// Puts a message into the envelope of the API.
fn envelope(version: &str, kind: &str, message: &[u8]) -> Bytes {
    let meta = [field(1, version.as_bytes()), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &meta), field(2, message)]
        .concat()
        .into()
}

/// A field whose value has a length.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let (mut out, mut length) = (vec![number << 3 | 2], value.len());
    while length >= 0x80 {
        out.push(u8::try_from(length & 0x7f).unwrap_or_default() | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap_or_default());
    out.extend_from_slice(value);
    out
}
