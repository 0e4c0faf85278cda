//! Parts of the server for separate tests, and as reference implementations: patches, selectors, and
//! bodies in protobuf. Without storage, admission or validation.

use serde_json::Value;

use super::object::Object;
use super::resources::ResourceDef;
use super::{json_op, patch, protobuf, selectors};

/// Applies a patch in one of the three forms, chosen by media type, to an object.
///
/// # Errors
/// What the server would answer.
pub fn apply_patch(
    def: &ResourceDef,
    current: &Value,
    media: &str,
    body: &[u8],
) -> Result<Value, String> {
    let patch = patch::Patch::parse(media, body).map_err(|error| error.to_value().to_string())?;
    patch
        .apply(def, current)
        .map_err(|error| error.to_value().to_string())
}

/// Applies one operation of a JSON Patch; `None` if it does not apply.
pub fn apply_operation(document: &Value, operation: &Value) -> Option<Value> {
    let mut patched = document.clone();
    json_op::apply(&mut patched, operation)
        .ok()
        .map(|()| patched)
}

/// Reads a body in protobuf into the object it stands for, `apiVersion` and `kind` included.
///
/// # Errors
/// It is none.
pub fn decode_protobuf(body: &[u8]) -> Result<Value, String> {
    protobuf::decode(body).map_err(|error| error.to_string())
}

/// A label and field selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector(selectors::Selector);

impl Selector {
    /// Reads the two query parameters for objects of `def`.
    ///
    /// # Errors
    /// What the server would answer.
    pub fn parse(def: &ResourceDef, labels: &str, fields: &str) -> Result<Self, String> {
        let parsed = selectors::Selector::parse(def, Some(labels), Some(fields));
        parsed
            .map(Self)
            .map_err(|error| error.to_value().to_string())
    }

    /// Returns the two query parameters that say this.
    pub fn texts(&self) -> (String, String) {
        self.0.texts()
    }

    /// Returns true if an object of `def` is selected.
    pub fn matches(&self, def: &ResourceDef, object: &Value) -> bool {
        self.0.matches(&Object::unwritten(def, object.clone()))
    }
}
