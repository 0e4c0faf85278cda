//! Reading what the API server sends: JSON or protobuf, as narrow types.

pub(crate) mod decode;
pub(in crate::runtime) mod endpoint_slice;
pub(in crate::runtime) mod node;
pub(crate) mod proto;
pub(in crate::runtime) mod service;

use http::HeaderValue;

pub(crate) use decode::Page;
pub use decode::{CachedObject, DecodeError, Decoder};

/// Body encoding of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// JSON.
    Json,
    /// Kubernetes' protobuf envelope.
    Protobuf,
}

impl Encoding {
    pub(crate) fn of(content_type: Option<&HeaderValue>) -> Self {
        let protobuf = content_type.is_some_and(|v| {
            v.as_bytes()
                .starts_with(b"application/vnd.kubernetes.protobuf")
        });
        if protobuf { Self::Protobuf } else { Self::Json }
    }
}
