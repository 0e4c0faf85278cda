//! Patches of objects.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// A patch of an object. It leaves fields that it does not name unchanged.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    /// A JSON Patch (RFC 6902). All operations apply in order, or none does.
    Json(Vec<PatchOp>),
    /// A JSON merge patch (RFC 7396).
    Merge(Value),
    /// A strategic merge patch, in which lists merge by the keys that the API declares.
    Strategic(Value),
}

impl Patch {
    /// Returns the media type of this kind of patch.
    pub fn content_type(&self) -> &'static str {
        match self {
            Self::Json(_) => "application/json-patch+json",
            Self::Merge(_) => "application/merge-patch+json",
            Self::Strategic(_) => "application/strategic-merge-patch+json",
        }
    }

    /// Returns the patch as JSON.
    pub(crate) fn body(&self) -> serde_json::Result<Vec<u8>> {
        match self {
            Self::Json(ops) => serde_json::to_vec(ops),
            Self::Merge(value) | Self::Strategic(value) => serde_json::to_vec(value),
        }
    }
}

/// One operation of a JSON Patch. Paths are JSON Pointers (RFC 6901), see [`escape_pointer`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum PatchOp {
    /// Fails the whole patch unless the value at the path equals this one.
    Test {
        /// The path of the value.
        path: String,
        /// The expected value.
        value: Value,
    },
    /// Sets a key of a map, replacing an existing value, or inserts into a list.
    Add {
        /// The path of the key or list position.
        path: String,
        /// The new value.
        value: Value,
    },
    /// Replaces a value, which must exist.
    Replace {
        /// The path of the value.
        path: String,
        /// The new value.
        value: Value,
    },
    /// Removes a value, which must exist.
    Remove {
        /// The path of the value.
        path: String,
    },
}

impl PatchOp {
    /// Returns a test that the value at the path is this string.
    pub fn test(path: impl Into<String>, value: &str) -> Self {
        Self::Test { path: path.into(), value: Value::from(value) }
    }
}

/// The metadata of an object after a patch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patched {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub resource_version: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.finalizers`.
    pub finalizers: Vec<String>,
    /// True if `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

/// Escapes one segment of a JSON Pointer. Label and annotation keys contain `/`.
pub fn escape_pointer(segment: &str) -> String {
    segment.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn operations_are_spelt_as_in_the_rfc() {
        let ops = vec![
            PatchOp::Test { path: "/a".into(), value: json!(1) },
            PatchOp::Add { path: "/b".into(), value: json!({}) },
            PatchOp::Replace { path: "/c".into(), value: json!("x") },
            PatchOp::Remove { path: "/d".into() },
        ];
        let want = json!([
            {"op": "test", "path": "/a", "value": 1},
            {"op": "add", "path": "/b", "value": {}},
            {"op": "replace", "path": "/c", "value": "x"},
            {"op": "remove", "path": "/d"},
        ]);
        assert_eq!(serde_json::to_value(&ops).unwrap(), want);
    }

    #[test]
    fn pointers_are_escaped_tilde_first() {
        assert_eq!(escape_pointer("a.b/c~1"), "a.b~1c~01");
    }
}
