//! The narrow protobuf messages: only the fields that are read, everything else is skipped by the decoder.
//!
//! Field numbers are those of `generated.proto` in `k8s.io/api/core/v1`, `k8s.io/apimachinery/pkg/apis/meta/v1` and
//! `k8s.io/apimachinery/pkg/runtime` at v0.37. Nested messages and strings that are often not needed are `Bytes`: slices
//! of the answer, not copies.

use bytes::Bytes;
use prost::Message;

/// What every protobuf object of the API begins with.
const MAGIC: &[u8] = b"k8s\0";

/// Bytes that are not the protobuf envelope they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The first four bytes are others.
    #[error("not a Kubernetes protobuf object")]
    NoMagic,
    /// The envelope does not decode.
    #[error("malformed protobuf envelope")]
    Malformed(#[from] prost::DecodeError),
}

/// Takes the object out of its envelope (`runtime.Unknown` behind four magic bytes).
pub(crate) fn unwrap_unknown(mut data: Bytes) -> Result<Bytes, EnvelopeError> {
    if !data.starts_with(MAGIC) {
        return Err(EnvelopeError::NoMagic);
    }
    let unknown = Unknown::decode(data.split_off(MAGIC.len()))?;
    Ok(unknown.raw)
}

/// `runtime.Unknown`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Unknown {
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) raw: Bytes,
}

/// `meta/v1` WatchEvent.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WatchEventProto {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) object: Option<RawExtension>,
}

/// `runtime.RawExtension`: an object in its envelope.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) raw: Bytes,
}

/// Any list.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListProto {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ListMetaProto>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub(crate) items: Vec<Bytes>,
}

/// `meta/v1` ListMeta.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListMetaProto {
    #[prost(string, tag = "2")]
    pub(crate) resource_version: String,
    #[prost(string, tag = "3")]
    pub(crate) r#continue: String,
}

/// Any object, for its metadata alone.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ObjectProto {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ObjectMetaProto>,
}

/// `meta/v1` ObjectMeta.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ObjectMetaProto {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
    #[prost(string, tag = "5")]
    pub(crate) uid: String,
    #[prost(string, tag = "6")]
    pub(crate) resource_version: String,
    #[prost(message, optional, tag = "8")]
    pub(crate) creation_timestamp: Option<TimeProto>,
    #[prost(message, optional, tag = "9")]
    pub(crate) deletion_timestamp: Option<TimeProto>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) labels: Vec<EntryProto>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) annotations: Vec<EntryProto>,
}

/// One entry of a `map<string, string>`, which is a repeated message on the wire.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EntryProto {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

/// `meta/v1` Time.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct TimeProto {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// `meta/v1` Status.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusProto {
    #[prost(string, tag = "3")]
    pub(crate) message: String,
    #[prost(string, tag = "4")]
    pub(crate) reason: String,
    #[prost(message, optional, tag = "5")]
    pub(crate) details: Option<StatusDetailsProto>,
    #[prost(int32, tag = "6")]
    pub(crate) code: i32,
}

/// `meta/v1` StatusDetails.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusDetailsProto {
    #[prost(message, repeated, tag = "4")]
    pub(crate) causes: Vec<StatusCauseProto>,
    #[prost(int32, tag = "5")]
    pub(crate) retry_after_seconds: i32,
}

/// `meta/v1` StatusCause.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusCauseProto {
    #[prost(string, tag = "1")]
    pub(crate) reason: String,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(string, tag = "3")]
    pub(crate) field: String,
}

/// `core/v1` Node.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ObjectMetaProto>,
    #[prost(message, optional, tag = "2")]
    pub(crate) spec: Option<NodeSpecProto>,
    #[prost(message, optional, tag = "3")]
    pub(crate) status: Option<NodeStatusProto>,
}

/// `core/v1` NodeSpec.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeSpecProto {
    #[prost(string, tag = "1")]
    pub(crate) pod_cidr: String,
    #[prost(string, tag = "3")]
    pub(crate) provider_id: String,
    #[prost(bool, tag = "4")]
    pub(crate) unschedulable: bool,
    #[prost(message, repeated, tag = "5")]
    pub(crate) taints: Vec<TaintProto>,
    #[prost(string, repeated, tag = "7")]
    pub(crate) pod_cidrs: Vec<String>,
}

/// `core/v1` Taint.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaintProto {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
    #[prost(string, tag = "3")]
    pub(crate) effect: String,
}

/// `core/v1` NodeStatus.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeStatusProto {
    #[prost(message, repeated, tag = "4")]
    pub(crate) conditions: Vec<NodeConditionProto>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) addresses: Vec<NodeAddressProto>,
    #[prost(message, optional, tag = "7")]
    pub(crate) node_info: Option<NodeSystemInfoProto>,
}

/// `core/v1` NodeCondition.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeConditionProto {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "2")]
    pub(crate) status: String,
    #[prost(string, tag = "5")]
    pub(crate) reason: String,
}

/// `core/v1` NodeAddress.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeAddressProto {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(string, tag = "2")]
    pub(crate) address: String,
}

/// `core/v1` NodeSystemInfo.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeSystemInfoProto {
    #[prost(string, tag = "2")]
    pub(crate) system_uuid: String,
}
