//! Request bodies in protobuf, which Go's typed clients send: kubectl's `create namespace` and
//! `auth can-i`, leader election, event recorders. Answers are always JSON, which all of them
//! accept.
//!
//! The form is apimachinery's: four magic bytes, then an envelope (`runtime.Unknown`) with type and
//! message. Go writes fields that are not pointers even when they are zero, so empty texts and zero
//! numbers count as absent here, as they would be in JSON.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::schema::{self, Field, Ty, Type};

/// Content type of such bodies.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

const MAGIC: &[u8] = b"k8s\0";

/// Reason why a body could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    )]
    NoMagic,
    #[error("protobuf message is cut short or malformed")]
    Malformed,
    #[error("no kind \"{kind}\" is registered for version \"{version}\"")]
    UnknownKind { version: String, kind: String },
}

/// Reads a body into the object it stands for, `apiVersion` and `kind` included.
///
/// # Errors
/// Not such a body, or of a kind that is not served.
pub(crate) fn decode(body: &[u8]) -> Result<Value, DecodeError> {
    let envelope = body.strip_prefix(MAGIC).ok_or(DecodeError::NoMagic)?;
    let (mut version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in fields(envelope) {
        match field? {
            (1, Wire::Bytes(meta)) => {
                for field in fields(meta) {
                    match field? {
                        (1, Wire::Bytes(bytes)) => version = text(bytes)?,
                        (2, Wire::Bytes(bytes)) => kind = text(bytes)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let (group, number) = version.split_once('/').unwrap_or(("", &version));
    let Some(ty) = schema::find(group, number, &kind) else {
        return Err(DecodeError::UnknownKind { version, kind });
    };
    let mut object = message(ty, raw)?;
    object.insert("apiVersion".to_owned(), version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

/// A value as it is on the wire.
enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Fixed-width numbers, which no type of ours has.
    Skipped,
}

/// Returns the fields of a message, up to the first error.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = Result<(u32, Wire<'_>), DecodeError>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = next_field(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field.ok_or(DecodeError::Malformed))
    })
}

fn next_field<'a>(rest: &mut &'a [u8]) -> Option<(u32, Wire<'a>)> {
    let key = varint(rest)?;
    let wire = match key & 7 {
        0 => Wire::Varint(varint(rest)?),
        1 => take(rest, 8).map(|_| Wire::Skipped)?,
        2 => {
            let length = usize::try_from(varint(rest)?).ok()?;
            Wire::Bytes(take(rest, length)?)
        }
        5 => take(rest, 4).map(|_| Wire::Skipped)?,
        _ => return None,
    };
    Some((u32::try_from(key >> 3).ok()?, wire))
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(length)?;
    *rest = left;
    Some(taken)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, left) = rest.split_first()?;
        *rest = left;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn text(bytes: &[u8]) -> Result<String, DecodeError> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| DecodeError::Malformed)
}

/// Maximum nesting of messages. No type of ours comes near.
const MAX_DEPTH: usize = 32;

fn message(ty: &'static Type, bytes: &[u8]) -> Result<Map<String, Value>, DecodeError> {
    nested(ty, bytes, MAX_DEPTH)
}

fn nested(
    ty: &'static Type,
    bytes: &[u8],
    depth: usize,
) -> Result<Map<String, Value>, DecodeError> {
    let depth = depth.checked_sub(1).ok_or(DecodeError::Malformed)?;
    let mut object = Map::new();
    // A message given more than once is one message: its parts, one after another.
    let mut parts: BTreeMap<&str, (&'static Field, Vec<u8>)> = BTreeMap::new();
    for field in fields(bytes) {
        let (number, wire) = field?;
        let Some(field) = ty.numbered(number) else {
            continue;
        };
        match &field.ty {
            Ty::List(of, _) => {
                if let Some(item) = value(of, &wire, depth)?
                    && let Value::Array(items) =
                        object.entry(field.name).or_insert_with(|| json!([]))
                {
                    items.push(item);
                }
            }
            Ty::Map(of) => {
                let (key, entry) = map_entry(of, &wire, depth)?;
                if let Value::Object(entries) =
                    object.entry(field.name).or_insert_with(|| json!({}))
                {
                    entries.insert(key, entry);
                }
            }
            Ty::Text | Ty::Bytes | Ty::Int32 | Ty::Int64 | Ty::Bool => {
                set(&mut object, field, &wire, depth)?;
            }
            _ => {
                let Wire::Bytes(part) = wire else {
                    return Err(DecodeError::Malformed);
                };
                parts
                    .entry(field.name)
                    .or_insert_with(|| (field, Vec::new()))
                    .1
                    .extend_from_slice(part);
            }
        }
    }
    for (field, whole) in parts.into_values() {
        set(&mut object, field, &Wire::Bytes(&whole), depth)?;
    }
    Ok(object)
}

/// Puts a field's value in place of the one before.
fn set(
    object: &mut Map<String, Value>,
    field: &'static Field,
    wire: &Wire<'_>,
    depth: usize,
) -> Result<(), DecodeError> {
    match value(&field.ty, wire, depth)?.filter(|v| field.required || !is_zero(v)) {
        Some(value) => object.insert(field.name.to_owned(), value),
        None => object.remove(field.name),
    };
    Ok(())
}

/// Returns true if Go would leave the value out of JSON. `false` stays: where it is meant, the
/// field is a pointer.
fn is_zero(value: &Value) -> bool {
    value == "" || value.as_i64() == Some(0)
}

fn map_entry(
    of: &'static Ty,
    wire: &Wire<'_>,
    depth: usize,
) -> Result<(String, Value), DecodeError> {
    let Wire::Bytes(bytes) = wire else {
        return Err(DecodeError::Malformed);
    };
    let (mut key, mut entry) = (String::new(), None);
    for field in fields(bytes) {
        match field? {
            (1, Wire::Bytes(bytes)) => key = text(bytes)?,
            (2, wire) => entry = value(of, &wire, depth)?,
            _ => {}
        }
    }
    Ok((key, entry.unwrap_or_else(|| "".into())))
}

/// Returns one value; none for a time that is not set.
fn value(ty: &'static Ty, wire: &Wire<'_>, depth: usize) -> Result<Option<Value>, DecodeError> {
    Ok(Some(match (ty, wire) {
        (Ty::Text, Wire::Bytes(bytes)) => text(bytes)?.into(),
        (Ty::Bytes, Wire::Bytes(bytes)) => STANDARD.encode(bytes).into(),
        (Ty::Int32 | Ty::Int64, Wire::Varint(number)) => number.cast_signed().into(),
        (Ty::Bool, Wire::Varint(number)) => (*number != 0).into(),
        (Ty::Time, Wire::Bytes(bytes)) => return time(bytes, 0),
        (Ty::MicroTime, Wire::Bytes(bytes)) => return time(bytes, 6),
        (Ty::Quantity, Wire::Bytes(bytes)) => wrapped_text(bytes, 1)?.into(),
        (Ty::IntOrString, Wire::Bytes(bytes)) => int_or_string(bytes)?,
        (Ty::Any, Wire::Bytes(bytes)) => free_form(bytes)?,
        (Ty::Object(ty), Wire::Bytes(bytes)) => nested(ty, bytes, depth)?.into(),
        // A list inside a map is a message with the list as its first field.
        (Ty::List(of, _), Wire::Bytes(bytes)) => {
            let mut items = Vec::new();
            for field in fields(bytes) {
                items.extend(value(of, &field?.1, depth)?);
            }
            items.into()
        }
        _ => return Err(DecodeError::Malformed),
    }))
}

/// Returns a time, none if it has no seconds. Those that are whole in JSON are read as whole, as Go
/// reads them.
fn time(bytes: &[u8], digits: usize) -> Result<Option<Value>, DecodeError> {
    let (mut seconds, mut nanos) = (None, 0);
    for field in fields(bytes) {
        match field? {
            (1, Wire::Varint(number)) => seconds = Some(number.cast_signed()),
            (2, Wire::Varint(number)) if digits > 0 => {
                nanos = i32::try_from(number.cast_signed()).unwrap_or_default();
            }
            _ => {}
        }
    }
    let Some(seconds) = seconds else {
        return Ok(None);
    };
    let time = Timestamp::new(seconds, nanos).map_err(|_| DecodeError::Malformed)?;
    Ok(Some(format!("{time:.digits$}").into()))
}

/// Returns the text in one field of a message, the last if there is more than one.
fn wrapped_text(bytes: &[u8], number: u32) -> Result<String, DecodeError> {
    let mut last = String::new();
    for field in fields(bytes) {
        if let (found, Wire::Bytes(bytes)) = field?
            && found == number
        {
            last = text(bytes)?;
        }
    }
    Ok(last)
}

fn int_or_string(bytes: &[u8]) -> Result<Value, DecodeError> {
    let (mut kind, mut number) = (0, 0);
    for field in fields(bytes) {
        match field? {
            (1, Wire::Varint(value)) => kind = value,
            (2, Wire::Varint(value)) => number = value.cast_signed(),
            _ => {}
        }
    }
    match kind {
        0 => Ok(number.into()),
        1 => Ok(wrapped_text(bytes, 3)?.into()),
        _ => Err(DecodeError::Malformed),
    }
}

/// Decodes free-form JSON in a message's first field, as in managed fields, and drops anything
/// else.
fn free_form(bytes: &[u8]) -> Result<Value, DecodeError> {
    Ok(serde_json::from_str(&wrapped_text(bytes, 1)?).unwrap_or_else(|_| json!({})))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn varint(mut number: u64) -> Vec<u8> {
        let mut out = Vec::new();
        while number >= 0x80 {
            out.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
            number >>= 7;
        }
        out.push(u8::try_from(number).unwrap());
        out
    }

    fn bytes(number: u64, content: &[u8]) -> Vec<u8> {
        [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
    }

    fn number(field: u64, value: i64) -> Vec<u8> {
        [varint(field << 3), varint(value.cast_unsigned())].concat()
    }

    fn body(version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
        let meta = [bytes(1, version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &meta), bytes(2, message), bytes(3, b""), bytes(4, b"")].concat()
    }

    #[test]
    fn a_service_is_read_with_what_go_always_writes_left_out() {
        let metadata = [
            bytes(1, b"web"),
            bytes(2, b""),
            bytes(3, b"default"),
            number(7, 0),
            bytes(8, b""),
            bytes(11, &[bytes(1, b"app"), bytes(2, b"web")].concat()),
            bytes(11, &[bytes(1, b"empty"), bytes(2, b"")].concat()),
            bytes(14, b"example.com/x"),
        ]
        .concat();
        let target = |kind: i64, int: i64, name: &[u8]| {
            [number(1, kind), number(2, int), bytes(3, name)].concat()
        };
        let port = |name: &[u8], target: &[u8]| {
            [bytes(1, name), bytes(2, b"TCP"), number(3, 80), bytes(4, target), number(5, 0)]
                .concat()
        };
        let spec = [
            bytes(1, &port(b"a", &target(0, 8080, b""))),
            bytes(1, &port(b"b", &target(1, 0, b"http"))),
            bytes(4, b"LoadBalancer"),
            number(20, 0),
        ]
        .concat();
        let status = bytes(1, b"");
        let message = [bytes(1, &metadata), bytes(2, &spec), bytes(3, &status)].concat();
        let want = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "default", "labels": {"app": "web", "empty": ""}, "finalizers": ["example.com/x"]},
            "spec": {
                "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false,
                "ports": [
                    {"name": "a", "protocol": "TCP", "port": 80, "targetPort": 8080},
                    {"name": "b", "protocol": "TCP", "port": 80, "targetPort": "http"},
                ],
            },
            "status": {"loadBalancer": {}},
        });
        assert_eq!(decode(&body("v1", "Service", &message)), Ok(want));
    }

    #[test]
    fn times_amounts_bytes_and_nested_lists_are_read() {
        let time = [number(1, 1_767_225_600), number(2, 123_456_000)].concat();
        let spec = [bytes(1, b"me"), number(2, 15), bytes(3, &time), number(5, -1)].concat();
        let lease = decode(&body("coordination.k8s.io/v1", "Lease", &bytes(2, &spec))).unwrap();
        assert_eq!(
            lease["spec"],
            json!({"holderIdentity": "me", "leaseDurationSeconds": 15, "acquireTime": "2026-01-01T00:00:00.123456Z", "leaseTransitions": -1})
        );
        let meta = bytes(8, &number(1, 1_767_225_600));
        let capacity = bytes(1, &[bytes(1, b"cpu"), bytes(2, &bytes(1, b"4"))].concat());
        let node =
            decode(&body("v1", "Node", &[bytes(1, &meta), bytes(3, &capacity)].concat())).unwrap();
        assert_eq!(node["metadata"]["creationTimestamp"], "2026-01-01T00:00:00Z");
        assert_eq!(node["status"]["capacity"], json!({"cpu": "4"}));
        let data = bytes(2, &[bytes(1, b"k"), bytes(2, b"\x00\xff")].concat());
        assert_eq!(decode(&body("v1", "Secret", &data)).unwrap()["data"], json!({"k": "AP8="}));
        let extra = bytes(
            5,
            &[bytes(1, b"scopes"), bytes(2, &[bytes(1, b"a"), bytes(1, b"b")].concat())].concat(),
        );
        let review =
            decode(&body("authorization.k8s.io/v1", "SubjectAccessReview", &bytes(2, &extra)))
                .unwrap();
        assert_eq!(review["spec"]["extra"], json!({"scopes": ["a", "b"]}));
        let options =
            decode(&body("policy/v1", "DeleteOptions", &bytes(2, &bytes(1, b"u")))).unwrap();
        assert_eq!(options["preconditions"], json!({"uid": "u"}));
    }

    // As generated code in Go has it, which calls the same reader again for each part.
    #[test]
    fn what_is_given_again_counts_and_messages_come_together() {
        let first =
            bytes(1, &[bytes(1, b"web"), bytes(5, b"uid-1"), bytes(14, b"example.com/x")].concat());
        let spec = bytes(2, &[bytes(4, b"LoadBalancer"), bytes(8, b"192.0.2.1")].concat());
        let again = bytes(1, &[bytes(1, b"other"), bytes(14, b"example.com/y")].concat());
        let more = bytes(2, &[bytes(1, &number(3, 80)), bytes(8, b"")].concat());
        let read = decode(&body("v1", "Service", &[first, spec, again, more].concat())).unwrap();
        let metadata = json!({"name": "other", "uid": "uid-1", "finalizers": ["example.com/x", "example.com/y"]});
        assert_eq!(read["metadata"], metadata);
        assert_eq!(read["spec"], json!({"type": "LoadBalancer", "ports": [{"port": 80}]}));
        let half = |seconds: &[u8]| {
            bytes(1, &bytes(8, &[seconds.to_vec(), number(2, 500_000_000)].concat()))
        };
        let created = |meta: &[u8]| decode(&body("v1", "Node", meta)).unwrap()["metadata"].clone();
        assert_eq!(
            created(&half(&number(1, 1))),
            json!({"creationTimestamp": "1970-01-01T00:00:01Z"})
        );
        assert_eq!(created(&half(b"")), json!({}));
    }

    #[test]
    fn what_is_no_such_body_is_refused() {
        assert_eq!(decode(b"{}"), Err(DecodeError::NoMagic));
        let unknown = decode(&body("apps/v1", "Deployment", b""));
        assert_eq!(
            unknown,
            Err(DecodeError::UnknownKind { version: "apps/v1".into(), kind: "Deployment".into() })
        );
        let whole = body("v1", "ConfigMap", &bytes(1, &bytes(1, b"name")));
        assert_eq!(decode(&whole[..whole.len() - 8]), Err(DecodeError::Malformed));
        // A name that is a number on the wire.
        assert_eq!(
            decode(&body("v1", "ConfigMap", &bytes(1, &number(1, 5)))),
            Err(DecodeError::Malformed)
        );
    }

    #[test]
    fn field_numbers_are_given_once_per_type() {
        for ty in schema::types::TYPES {
            let mut numbers: Vec<u32> = ty
                .fields
                .iter()
                .map(|f| f.number)
                .filter(|n| *n != 0)
                .collect();
            numbers.sort_unstable();
            assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{}", ty.name);
            for field in ty.fields.iter().filter(|f| f.number == 0) {
                assert!(
                    ["apiVersion", "kind"].contains(&field.name),
                    "{}.{} has no number",
                    ty.name,
                    field.name
                );
            }
        }
    }

    proptest! {
        #[test]
        fn decoding_takes_any_bytes(message in prop::collection::vec(any::<u8>(), 0..200), kind in prop::sample::select(vec!["Node", "Service", "Event", "Secret"])) {
            let _ = decode(&message);
            let _ = decode(&body("v1", kind, &message));
        }
    }
}
