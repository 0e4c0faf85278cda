//! Splits the body of a watch into events and decodes them.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use kube::client::Body;
use prost::Message;
use serde::{Deserialize, de::DeserializeOwned};

use crate::runtime::{
    api::status::{Status, StatusJson},
    encoding::{
        Encoding,
        decode::{
            self, CachedObject, DecodeError, Decoder, ObjectJson, UnreadableObject, key, proto_name,
        },
        proto::{self, EntryProto, ObjectProto, StatusProto, WatchEventProto},
    },
};

/// The maximum size of an event. etcd rejects objects of more than a few MiB, so a longer one is
/// not an event.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// Annotation of the bookmark that ends the initial events of a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The error of the stream of a watch.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    /// The connection failed.
    #[error("connection lost")]
    Lost(#[source] kube::Error),
    /// An event exceeds the maximum size.
    #[error("an event of {0} bytes")]
    TooLong(usize),
    /// An event cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Splits the body of a watch into events: lines in JSON, length-prefixed messages in protobuf.
pub(crate) struct WatchStream {
    body: Body,
    encoding: Encoding,
    buffer: BytesMut,
    /// The number of bytes at the start of the buffer that contain no line end.
    scanned: usize,
}

impl WatchStream {
    pub(crate) fn new(encoding: Encoding, body: Body) -> Self {
        Self { body, encoding, buffer: BytesMut::new(), scanned: 0 }
    }

    /// Returns the bytes of the next event. `None` at the end of the watch, where an incomplete
    /// last event is dropped.
    ///
    /// # Cancellation
    /// Safe: no bytes that were read are lost.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, StreamError> {
        loop {
            if let Some(frame) = self.next_frame()? {
                return Ok(Some(frame));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(StreamError::Lost(error)),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// Adds bytes that did not arrive through the body.
    #[cfg(feature = "fuzz")]
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    fn next_frame(&mut self) -> Result<Option<Bytes>, StreamError> {
        match self.encoding {
            Encoding::Json => self.take_line(),
            Encoding::Protobuf => self.take_prefixed(),
        }
    }

    fn take_line(&mut self) -> Result<Option<Bytes>, StreamError> {
        loop {
            let Some(end) = self.buffer[self.scanned..].iter().position(|b| *b == b'\n') else {
                self.scanned = self.buffer.len();
                return within_bounds(self.scanned).map(|()| None);
            };
            let line = self.buffer.split_to(self.scanned + end + 1).freeze();
            self.scanned = 0;
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    fn take_prefixed(&mut self) -> Result<Option<Bytes>, StreamError> {
        let Some(prefix) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        // A platform whose `usize` is too small for the length cannot hold the event either.
        let length = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
        within_bounds(length)?;
        if self.buffer.len() - 4 < length {
            return Ok(None);
        }
        self.buffer.advance(4);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    pub(crate) fn encoding(&self) -> Encoding {
        self.encoding
    }
}

fn within_bounds(length: usize) -> Result<(), StreamError> {
    if length > MAX_FRAME_BYTES {
        Err(StreamError::TooLong(length))
    } else {
        Ok(())
    }
}

/// One event of a watch.
#[derive(Debug)]
pub(crate) enum WatchEvent<T> {
    /// Added or modified.
    Applied(T),
    /// Deleted.
    Deleted(DeletedObject),
    /// Everything up to this resource version has been sent.
    Bookmark { resource_version: String, initial_events_end: bool },
    /// The server ends the watch.
    Failed(Status),
    /// An event with an object that cannot be decoded.
    Unreadable(UnreadableObject),
    /// An event of a type that this version does not know.
    Unknown(String),
}

/// An object that was deleted. Its last state is not needed, so it does not matter if that cannot
/// be decoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DeletedObject {
    pub(crate) key: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
}

impl<T: CachedObject> Decoder<T> {
    /// Decodes one event.
    ///
    /// # Errors
    /// Returns an error if the type of the event cannot be decoded, or a bookmark or an error. An
    /// object that cannot be decoded is no error but [`WatchEvent::Unreadable`].
    pub(crate) fn event(
        &self,
        encoding: Encoding,
        frame: &Bytes,
    ) -> Result<WatchEvent<T>, DecodeError> {
        match encoding {
            Encoding::Json => self.json_event(frame),
            Encoding::Protobuf => self.proto_event(frame),
        }
    }

    fn json_event(&self, frame: &Bytes) -> Result<WatchEvent<T>, DecodeError> {
        let EventKindJson { kind } = parse_json::<T, _>(frame)?;
        Ok(match kind.as_str() {
            "ADDED" | "MODIFIED" => {
                let object = parse_json::<T, EventObject<T::Json>>(frame)
                    .and_then(|event| T::from_json(event.object, self));
                match object {
                    Ok(object) => WatchEvent::Applied(object),
                    Err(error) => WatchEvent::Unreadable(unreadable::<T>(json_key(frame), error)),
                }
            }
            "DELETED" => match parse_json::<T, EventObject<ObjectJson>>(frame) {
                Ok(EventObject { object: ObjectJson { metadata } }) => {
                    let key = metadata.key();
                    deleted_event(
                        key,
                        metadata.uid.unwrap_or_default(),
                        metadata.resource_version.unwrap_or_default(),
                    )
                }
                Err(error) => WatchEvent::Unreadable(unreadable::<T>(None, error)),
            },
            "BOOKMARK" => {
                let event = parse_json::<T, EventObject<ObjectJson>>(frame)?;
                let metadata = event.object.metadata;
                let annotations = metadata.annotations.unwrap_or_default();
                bookmark(metadata.resource_version.unwrap_or_default(), &annotations)
            }
            "ERROR" => {
                let event = parse_json::<T, EventObject<StatusJson>>(frame)?;
                WatchEvent::Failed(event.object.into())
            }
            _ => WatchEvent::Unknown(kind),
        })
    }

    fn proto_event(&self, frame: &Bytes) -> Result<WatchEvent<T>, DecodeError> {
        let WatchEventProto { kind, object } = parse_proto::<T, _>(frame.clone())?;
        let raw = proto::unwrap_unknown(object.unwrap_or_default().raw)
            .map_err(|source| DecodeError::Envelope { what: event_of::<T>(), source })?;
        Ok(match kind.as_str() {
            "ADDED" | "MODIFIED" => match self.proto(&raw) {
                Ok(object) => WatchEvent::Applied(object),
                Err(error) => WatchEvent::Unreadable(unreadable::<T>(proto_name(&raw), error)),
            },
            "DELETED" => match parse_proto::<T, ObjectProto>(raw) {
                Ok(object) => {
                    let metadata = object.metadata.unwrap_or_default();
                    deleted_event(
                        key(&metadata.namespace, &metadata.name),
                        metadata.uid,
                        metadata.resource_version,
                    )
                }
                Err(error) => WatchEvent::Unreadable(unreadable::<T>(None, error)),
            },
            "BOOKMARK" => {
                let object: ObjectProto = parse_proto::<T, _>(raw)?;
                let metadata = object.metadata.unwrap_or_default();
                let mut annotations = BTreeMap::new();
                for EntryProto { key, value } in metadata.annotations {
                    annotations.insert(lossy_text(&key), lossy_text(&value));
                }
                bookmark(metadata.resource_version, &annotations)
            }
            "ERROR" => {
                let status: StatusProto = parse_proto::<T, _>(raw)?;
                WatchEvent::Failed(status.into())
            }
            _ => WatchEvent::Unknown(kind),
        })
    }
}

fn parse_json<T: CachedObject, J: DeserializeOwned>(frame: &[u8]) -> Result<J, DecodeError> {
    serde_json::from_slice(frame)
        .map_err(|source| DecodeError::Json { what: event_of::<T>(), source })
}

fn parse_proto<T: CachedObject, P: Message + Default>(raw: Bytes) -> Result<P, DecodeError> {
    P::decode(raw).map_err(|source| DecodeError::Proto { what: event_of::<T>(), source })
}

/// Names an event in errors.
fn event_of<T: CachedObject>() -> String {
    format!("an event of {}", T::RESOURCE)
}

fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn deleted_event<T: CachedObject>(
    key: Option<String>,
    uid: String,
    resource_version: String,
) -> WatchEvent<T> {
    match key {
        Some(key) => WatchEvent::Deleted(DeletedObject { key, uid, resource_version }),
        None => {
            let error = DecodeError::Field { what: T::RESOURCE.to_owned(), field: "name" };
            WatchEvent::Unreadable(UnreadableObject { key: None, error })
        }
    }
}

fn bookmark<T>(resource_version: String, annotations: &BTreeMap<String, String>) -> WatchEvent<T> {
    let initial_events_end = annotations
        .get(INITIAL_EVENTS_END)
        .is_some_and(|v| v == "true");
    WatchEvent::Bookmark { resource_version, initial_events_end }
}

fn unreadable<T: CachedObject>(key: Option<String>, error: DecodeError) -> UnreadableObject {
    let error = match (error, &key) {
        (DecodeError::Json { source, .. }, Some(key)) => {
            DecodeError::Json { what: decode::named::<T>(key), source }
        }
        (error, _) => error,
    };
    UnreadableObject { key, error }
}

fn json_key(frame: &[u8]) -> Option<String> {
    let event = serde_json::from_slice::<EventObject<ObjectJson>>(frame).ok()?;
    event.object.metadata.key()
}

#[derive(Deserialize)]
struct EventKindJson {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct EventObject<O> {
    object: O,
}
