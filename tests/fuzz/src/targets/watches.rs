//! Lists and watches as they come from an API server, in both encodings.

use bytes::Bytes;
use ccm_core::{
    fuzz::{event, frames, page},
    k8s::{EndpointSliceView, NodeFields, NodeView, ServiceFields, ServiceView},
    runtime::encoding::{CachedObject, Decoder, Encoding},
};

/// Pieces of lists and events.
pub const WORDS: &[&str] = &[
    "{\"type\":\"ADDED\",\"object\":",
    "{\"type\":\"DELETED\",\"object\":",
    "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"9\"}}}\n",
    "{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410}}\n",
    "{\"metadata\":{\"name\":\"n\",\"uid\":\"u\",\"resourceVersion\":\"7\"}}",
    "\"namespace\":\"ns\",",
    "\"items\":[",
    "]",
    "null",
    "}\n",
    "\n",
    ",",
    "\"spec\":{\"taints\":[{\"key\":\"a\"}]},",
    "k8s\u{0}",
    "\u{0}\u{0}\u{0}\u{4}",
];

/// Reads the bytes as list and as watch of each kind.
pub fn run(data: &[u8]) {
    each(&Decoder::<NodeView>::new(NodeFields::default()), data);
    each(&Decoder::<ServiceView>::new(ServiceFields::default()), data);
    each(&Decoder::<EndpointSliceView>::new(()), data);
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let whole = frames(encoding, [data]);
        // How it arrives does not matter, but for the length in the words of an error.
        let size = data.first().map_or(1, |byte| usize::from(byte % 7) + 1);
        assert_eq!(frames(encoding, data.chunks(size)).0, whole.0, "in pieces of {size}");
        let bytes: usize = whole.0.iter().map(Bytes::len).sum();
        assert!(bytes <= data.len(), "{bytes} bytes of {}", data.len());
    }
}

fn each<T: CachedObject + PartialEq + std::fmt::Debug>(decoder: &Decoder<T>, data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        let _ = event(decoder, encoding, &body);
        let _ = page(decoder, encoding, &body);
    }
    // An object that can be read can be read in a list and in an event.
    if let Ok(object) = decoder.object(Encoding::Json, &body) {
        let text = String::from_utf8_lossy(data);
        let list = format!("{{\"items\":[{text}]}}");
        let listed =
            page(decoder, Encoding::Json, &list.into()).expect("a list of one that can be read");
        assert_eq!((&listed.items[..], listed.malformed), (&[object][..], 0));
        let added = event(
            decoder,
            Encoding::Json,
            &format!("{{\"type\":\"ADDED\",\"object\":{text}}}").into(),
        );
        assert!(added.is_ok_and(|event| event.starts_with("Applied(")), "{text}");
    }
}
