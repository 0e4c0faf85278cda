//! What the provider reads of the answers of OpenStack's services: only the fields that it uses.
//!
//! Releases, drivers and policies differ in what they show, so an answer is rejected only if the
//! provider cannot go on without what is missing. These rules hold for all types here:
//!
//! - A field is required only if the object cannot be identified or compared without it, such as an
//!   ID or the protocol of a listener. Any other has a default or is an `Option`.
//! - A null is as good as absent, also as an element of a list. [`from_json`] sees to that, so the
//!   types are parsed with it and not with `serde_json` alone.
//! - Unknown words (statuses, protocols, algorithms) are kept as they are.
//! - Other fields are ignored, whatever they contain.
//! - Serialized they are only in tests, which compare what was read with what was answered.
//!
//! The local cloud has types of its own. It may not use these, and the provider may not use those:
//! otherwise both would share what they believe about OpenStack.

pub mod keystone;
pub mod neutron;
pub mod nova;
pub mod octavia;
#[cfg(test)]
mod tests;
pub mod version;

use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;

/// Parses an object of an answer. A field that is null counts as absent, and an element that is null
/// as none: `"availability_zones": [null]` is what Neutron answers for a router on an agent without
/// a zone, where its reference promises a list of texts.
///
/// # Errors
/// A required field is missing, or a field that is used has another type.
pub fn from_json<T: DeserializeOwned>(mut object: Value) -> Result<T, serde_json::Error> {
    remove_nulls(&mut object);
    T::deserialize(object)
}

/// Removes all nulls inside a value.
pub fn remove_nulls(value: &mut Value) {
    match value {
        Value::Array(elements) => {
            elements.retain(|element| !element.is_null());
            elements.iter_mut().for_each(remove_nulls);
        }
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        _ => {}
    }
}

/// A reference to an object by its ID. What else an answer shows of the object is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct IdRef {
    /// ID of the object.
    pub id: String,
}

impl<T: Into<String>> From<T> for IdRef {
    fn from(id: T) -> Self {
        Self { id: id.into() }
    }
}

/// Deserializes a text. A number or a boolean becomes its text.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => text,
        other => other.to_string(),
    })
}

/// Like [`text`], for a field that may be absent.
fn optional_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    text(deserializer).map(Some)
}

/// Deserializes a list without the elements that cannot be read. Only for a list whose elements are
/// chosen from, where a missing one is an error for the one who needs it.
fn readable<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    let elements = Vec::<Value>::deserialize(deserializer)?;
    Ok(elements
        .into_iter()
        .filter_map(|element| T::deserialize(element).ok())
        .collect())
}
