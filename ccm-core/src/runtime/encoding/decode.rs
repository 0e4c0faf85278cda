//! Decodes objects and lists from JSON and protobuf.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    Encoding,
    proto::{self, EnvelopeError, ListProto, ObjectMetaProto},
};
use crate::k8s::Interner;

/// A kind of object that is cached: its path, and how it is decoded from both encodings.
pub trait CachedObject: Sized + Send + Sync + 'static {
    /// The path of the collection in all namespaces: `/api/v1/nodes`.
    const PATH: &'static str;
    /// Resource, as in RBAC rules and metric labels: `nodes`.
    const RESOURCE: &'static str;
    /// Selects the optional fields of an object that are kept.
    type Fields: Send + Sync + 'static;
    /// JSON form with only the fields that are read.
    type Json: DeserializeOwned;
    /// Protobuf form with only the fields that are read.
    type Proto: Message + Default;

    /// Converts from the JSON form.
    fn from_json(json: Self::Json, decoder: &Decoder<Self>) -> Result<Self, DecodeError>;
    /// Converts from the protobuf form. Must return the same as [`CachedObject::from_json`] for the
    /// same object.
    fn from_proto(proto: Self::Proto, decoder: &Decoder<Self>) -> Result<Self, DecodeError>;
    /// Returns the key in the cache: `name`, or `namespace/name`.
    fn key(&self) -> Arc<str>;
    /// Returns the UID.
    fn uid(&self) -> &str;
    /// Returns the resource version of this state of the object.
    fn resource_version(&self) -> &str;
    /// Returns true if the object is to be kept. An object that is not does not exist for a cache
    /// and its readers.
    ///
    /// Key, UID and resource version of such an object must be correct nevertheless.
    fn is_relevant(&self) -> bool {
        true
    }
}

/// The error of decoding an object, list or event from the API server.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The JSON is not as expected.
    #[error("malformed JSON of {what}")]
    Json {
        /// The object.
        what: String,
        /// The problem.
        source: serde_json::Error,
    },
    /// The protobuf is not as expected.
    #[error("malformed protobuf of {what}")]
    Proto {
        /// The object.
        what: String,
        /// The problem.
        source: prost::DecodeError,
    },
    /// The protobuf envelope is missing or malformed.
    #[error("malformed protobuf of {what}")]
    Envelope {
        /// The object.
        what: String,
        /// The problem.
        source: EnvelopeError,
    },
    /// A required field is missing, or a field has an invalid value.
    #[error("{what} has an invalid {field}")]
    Field {
        /// The object.
        what: String,
        /// The field.
        field: &'static str,
    },
    /// A field has a value that this version does not know and that cannot be ignored.
    #[error("{what} has an unusable {field} {value:?}")]
    Value {
        /// The object.
        what: String,
        /// The field.
        field: &'static str,
        /// The value.
        value: String,
    },
}

/// One page of a list.
#[derive(Debug)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    /// Items that could not be decoded.
    pub(crate) malformed: Vec<UnreadableObject>,
    pub(crate) resource_version: String,
    /// Token for the next page; empty on the last.
    pub(crate) r#continue: String,
}

/// An object that could not be decoded. It has a key if at least its metadata could be decoded.
#[derive(Debug)]
pub(crate) struct UnreadableObject {
    pub(crate) key: Option<String>,
    pub(crate) error: DecodeError,
}

/// The maximum number of distinct unknown values that are logged. A cluster that has more has
/// another problem.
const REPORTED_AT_MOST: usize = 32;

/// Decodes the API server's bytes into objects. A cache owns its decoder, because its objects share
/// the decoder's interned strings.
#[derive(Debug)]
pub struct Decoder<T: CachedObject> {
    /// Selects the fields that are kept.
    pub fields: T::Fields,
    /// Strings that objects share.
    pub interner: Interner,
    reported: Mutex<BTreeSet<String>>,
}

impl<T: CachedObject> Decoder<T> {
    /// Creates a decoder with an empty string table.
    pub fn new(fields: T::Fields) -> Self {
        Self {
            fields,
            interner: Interner::default(),
            reported: Mutex::default(),
        }
    }

    /// Decodes one object.
    ///
    /// # Errors
    /// The error names the object if its metadata can be decoded.
    pub fn object(&self, encoding: Encoding, body: &Bytes) -> Result<T, DecodeError> {
        match encoding {
            Encoding::Json => self.json(body),
            Encoding::Protobuf => {
                let raw = proto::unwrap_unknown(body.clone()).map_err(|source| {
                    DecodeError::Envelope { what: T::RESOURCE.to_owned(), source }
                })?;
                self.proto(&raw)
            }
        }
    }

    /// Decodes one page of a list. Items that cannot be decoded do not make the page fail.
    pub(crate) fn page(&self, encoding: Encoding, body: &Bytes) -> Result<Page<T>, DecodeError> {
        match encoding {
            Encoding::Json => self.json_page(body),
            Encoding::Protobuf => self.proto_page(body),
        }
    }

    /// Logs, once for each value, that an object has a value that this version does not know.
    pub(crate) fn log_unknown_field(&self, object: &str, field: &'static str, value: &str) {
        let mut reported = self.reported.lock();
        if reported.len() < REPORTED_AT_MOST && reported.insert(format!("{field}={value}")) {
            tracing::warn!(
                resource = T::RESOURCE,
                object,
                field,
                value,
                "ignoring an unknown value; further ones like it are not logged"
            );
        }
    }

    fn json(&self, body: &[u8]) -> Result<T, DecodeError> {
        let json = serde_json::from_slice::<T::Json>(body).map_err(|source| {
            let what = json_name(body).map_or_else(|| T::RESOURCE.to_owned(), |n| named::<T>(&n));
            DecodeError::Json { what, source }
        })?;
        T::from_json(json, self)
    }

    /// Decodes one object without its envelope.
    pub(crate) fn proto(&self, raw: &Bytes) -> Result<T, DecodeError> {
        let proto = T::Proto::decode(raw.clone()).map_err(|source| {
            let what = proto_name(raw).map_or_else(|| T::RESOURCE.to_owned(), |n| named::<T>(&n));
            DecodeError::Proto { what, source }
        })?;
        T::from_proto(proto, self)
    }

    fn json_page(&self, body: &Bytes) -> Result<Page<T>, DecodeError> {
        if let Some(page) = self.json_page_at_once(body) {
            return Ok(page);
        }
        // At least one item cannot be decoded. Decode the items one by one to find out which.
        let page = serde_json::from_slice::<ListJson<serde_json::Value>>(body)
            .map_err(|source| DecodeError::Json { what: list_of::<T>(), source })?;
        let mut results = Vec::new();
        for item in page.items.unwrap_or_default() {
            let body = item.to_string();
            results.push((json_name(body.as_bytes()), self.json(body.as_bytes())));
        }
        Ok(collect_json_page(results, page.metadata))
    }

    /// Decodes a page; `None` if an item or the page itself cannot be decoded.
    fn json_page_at_once(&self, body: &Bytes) -> Option<Page<T>> {
        let page: ListJson<T::Json> = serde_json::from_slice(body).ok()?;
        let mut results = Vec::new();
        for json in page.items.unwrap_or_default() {
            results.push((None, Ok(T::from_json(json, self).ok()?)));
        }
        Some(collect_json_page(results, page.metadata))
    }

    fn proto_page(&self, body: &Bytes) -> Result<Page<T>, DecodeError> {
        let raw = proto::unwrap_unknown(body.clone())
            .map_err(|source| DecodeError::Envelope { what: list_of::<T>(), source })?;
        let page = ListProto::decode(raw)
            .map_err(|source| DecodeError::Proto { what: list_of::<T>(), source })?;
        let mut results = Vec::with_capacity(page.items.len());
        for raw in &page.items {
            match self.proto(raw) {
                Ok(object) => results.push((None, Ok(object))),
                Err(error) => results.push((proto_name(raw), Err(error))),
            }
        }
        let metadata = page.metadata.unwrap_or_default();
        Ok(Page::collect(results, metadata.resource_version, metadata.r#continue))
    }
}

/// Names a list in errors.
fn list_of<T: CachedObject>() -> String {
    format!("the list of {}", T::RESOURCE)
}

fn collect_json_page<T>(
    results: Vec<(Option<String>, Result<T, DecodeError>)>,
    metadata: Option<ListMetaJson>,
) -> Page<T> {
    let metadata = metadata.unwrap_or_default();
    Page::collect(
        results,
        metadata.resource_version.unwrap_or_default(),
        metadata.r#continue.unwrap_or_default(),
    )
}

impl ObjectMetaProto {
    /// Returns the key of a namespaced object.
    pub(crate) fn key<T: CachedObject>(&self) -> Result<String, DecodeError> {
        let field = match (&*self.namespace, &*self.name) {
            (_, "") => "name",
            ("", _) => "namespace",
            (namespace, name) => return Ok(format!("{namespace}/{name}")),
        };
        Err(DecodeError::Field { what: T::RESOURCE.to_owned(), field })
    }
}

impl<T> Page<T> {
    fn collect(
        results: Vec<(Option<String>, Result<T, DecodeError>)>,
        resource_version: String,
        r#continue: String,
    ) -> Self {
        let mut page = Self {
            items: Vec::with_capacity(results.len()),
            malformed: Vec::new(),
            resource_version,
            r#continue,
        };
        for (key, result) in results {
            match result {
                Ok(item) => page.items.push(item),
                Err(error) => page.malformed.push(UnreadableObject { key, error }),
            }
        }
        page
    }
}

pub(crate) fn named<T: CachedObject>(name: &str) -> String {
    format!("{} {name:?}", T::RESOURCE)
}

#[derive(Deserialize)]
struct ListJson<I> {
    metadata: Option<ListMetaJson>,
    items: Option<Vec<I>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMetaJson {
    resource_version: Option<String>,
    r#continue: Option<String>,
}

/// Any object, for its metadata alone: its name, or the content of a bookmark.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ObjectJson {
    pub(crate) metadata: NameJson,
}

/// See [`ObjectJson`].
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct NameJson {
    pub(crate) name: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) annotations: Option<std::collections::BTreeMap<String, String>>,
}

fn json_name(body: &[u8]) -> Option<String> {
    serde_json::from_slice::<ObjectJson>(body)
        .ok()?
        .metadata
        .key()
}

impl NameJson {
    pub(crate) fn key(&self) -> Option<String> {
        key(self.namespace.as_deref().unwrap_or_default(), self.name.as_deref().unwrap_or_default())
    }
}

pub(crate) fn proto_name(raw: &Bytes) -> Option<String> {
    let metadata = proto::ObjectProto::decode(raw.clone()).ok()?.metadata?;
    key(&metadata.namespace, &metadata.name)
}

/// Creates the key of an object of any kind. `None` when it has no name.
pub(crate) fn key(namespace: &str, name: &str) -> Option<String> {
    match (namespace, name) {
        (_, "") => None,
        ("", name) => Some(name.to_owned()),
        (namespace, name) => Some(format!("{namespace}/{name}")),
    }
}
