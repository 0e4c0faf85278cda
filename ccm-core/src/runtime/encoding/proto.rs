//! Protobuf messages with only the fields that are read. The decoder skips all others.
//!
//! Field numbers, here and in the files of each kind, are those of `generated.proto` in
//! `k8s.io/api/{core,discovery}/v1`, `k8s.io/apimachinery/pkg/apis/meta/v1`,
//! `k8s.io/apimachinery/pkg/util/intstr` and `k8s.io/apimachinery/pkg/runtime` at v0.37. Nested
//! messages and strings that are often not needed are `Bytes`: slices of the answer, not copies.
//! Messages that are also decoded from JSON accept `null` for absent, as the API does.

use std::fmt;

use bytes::Bytes;
use jiff::Timestamp;
use prost::Message;
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};

/// Magic bytes at the start of every protobuf object of the API.
const MAGIC: &[u8] = b"k8s\0";

/// The error of decoding the protobuf envelope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The first four bytes are not the magic bytes.
    #[error("not a Kubernetes protobuf object")]
    NoMagic,
    /// The envelope does not decode.
    #[error("malformed protobuf envelope")]
    Malformed(#[from] prost::DecodeError),
}

/// Returns the object without its envelope (`runtime.Unknown` after four magic bytes).
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
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ObjectMetaProto {
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) namespace: String,
    #[prost(string, tag = "5")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) uid: String,
    #[prost(string, tag = "6")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) resource_version: String,
    #[prost(int64, tag = "7")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) generation: i64,
    #[prost(message, optional, tag = "8")]
    pub(crate) creation_timestamp: Option<TimeProto>,
    #[prost(message, optional, tag = "9")]
    pub(crate) deletion_timestamp: Option<TimeProto>,
    #[prost(message, repeated, tag = "11")]
    #[serde(deserialize_with = "entries")]
    pub(crate) labels: Vec<EntryProto>,
    #[prost(message, repeated, tag = "12")]
    #[serde(deserialize_with = "entries")]
    pub(crate) annotations: Vec<EntryProto>,
    #[prost(string, repeated, tag = "14")]
    #[serde(deserialize_with = "nullable")]
    pub(crate) finalizers: Vec<String>,
}

impl ObjectMetaProto {
    /// Returns the creation time. The Unix epoch if there is none.
    pub(crate) fn created(&self) -> Result<Timestamp, ()> {
        let seconds = self
            .creation_timestamp
            .and_then(|time| time.seconds)
            .unwrap_or_default();
        Timestamp::from_second(seconds).map_err(drop)
    }

    /// Returns true if the object is being deleted. A zero deletion timestamp counts as absent, as
    /// for upstream's `IsZero`.
    pub(crate) fn deleting(&self) -> bool {
        self.deletion_timestamp
            .is_some_and(|time| time.seconds.is_some())
    }

    /// Returns the time at which the deletion was requested. `None` if it was not, or if the time
    /// is out of range: a deletion must not be blocked by that.
    pub(crate) fn deletion_requested(&self) -> Option<Timestamp> {
        let seconds = self.deletion_timestamp.and_then(|time| time.seconds)?;
        Timestamp::from_second(seconds).ok()
    }
}

/// One entry of a `map<string, string>`, which is encoded as a repeated message.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EntryProto {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

/// Returns the key and value of an entry as text. `None` if they are not UTF-8.
pub(crate) fn text_of(entry: &EntryProto) -> Option<(&str, &str)> {
    std::str::from_utf8(&entry.key)
        .ok()
        .zip(std::str::from_utf8(&entry.value).ok())
}

/// `meta/v1` Time; text in JSON. Fractions of a second are ignored, as in apimachinery.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct TimeProto {
    /// None for the zero time, which is an empty message.
    #[prost(int64, optional, tag = "1")]
    pub(crate) seconds: Option<i64>,
}

impl<'de> Deserialize<'de> for TimeProto {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let time = Timestamp::deserialize(deserializer)?;
        Ok(Self { seconds: Some(time.as_second()) })
    }
}

/// `intstr.IntOrString`; a number or a string in JSON.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct IntOrStringProto {
    /// 0 for a number, 1 for text.
    #[prost(int64, tag = "1")]
    pub(crate) kind: i64,
    #[prost(int32, tag = "2")]
    pub(crate) number: i32,
    #[prost(string, tag = "3")]
    pub(crate) text: String,
}

impl IntOrStringProto {
    /// Returns the number or the string as a string. `None` for zero and for the empty string,
    /// which the API treats as unset.
    pub(crate) fn into_text(self) -> Option<String> {
        match self.kind {
            0 if self.number == 0 => None,
            0 => Some(self.number.to_string()),
            _ => Some(self.text).filter(|text| !text.is_empty()),
        }
    }
}

impl<'de> Deserialize<'de> for IntOrStringProto {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(i32),
            Text(String),
        }
        Ok(match Either::deserialize(deserializer)? {
            Either::Number(number) => Self { kind: 0, number, text: String::new() },
            Either::Text(text) => Self { kind: 1, number: 0, text },
        })
    }
}

/// Deserializes a value. `null` gives the default.
pub(crate) fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Deserializes a map of strings.
fn entries<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<EntryProto>, D::Error> {
    struct Entries;
    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<EntryProto>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of strings")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut entries = Vec::with_capacity(map.size_hint().unwrap_or_default());
            while let Some((key, value)) = map.next_entry::<String, String>()? {
                entries.push(EntryProto { key: key.into(), value: value.into() });
            }
            Ok(entries)
        }

        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }
    }
    deserializer.deserialize_any(Entries)
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
