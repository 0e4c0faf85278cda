//! Decodes request bodies. Errors name the invalid key.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cloud::FieldError;

/// Decodes a JSON object whose keys are all optional.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FieldError> {
    decode_object(parse_json(bytes)?)
}

/// Decodes a JSON list of objects whose keys are all optional. Errors name the index and the key.
pub(super) fn decode_list<T: DeserializeOwned>(bytes: &[u8]) -> Result<Vec<T>, FieldError> {
    let Value::Array(entries) = parse_json(bytes)? else {
        return Err(FieldError::new("", "the body must be a JSON list"));
    };
    let mut objects = Vec::with_capacity(entries.len());
    for (index, entry) in entries.into_iter().enumerate() {
        let object =
            decode_object(entry).map_err(|error| error.nested_in(&format!("[{index}]")))?;
        objects.push(object);
    }
    Ok(objects)
}

fn parse_json(bytes: &[u8]) -> Result<Value, FieldError> {
    serde_json::from_slice(bytes)
        .map_err(|error| FieldError::new("", format!("the body is not JSON: {error}")))
}

fn decode_object<T: DeserializeOwned>(value: Value) -> Result<T, FieldError> {
    let Value::Object(map) = &value else {
        return Err(FieldError::new("", "must be a JSON object"));
    };
    // The decoder does not report the invalid key. Since no key is required, decode each key alone.
    for (key, value) in map {
        let only_this_key = [(key.clone(), value.clone())].into_iter().collect();
        if let Err(error) = serde_json::from_value::<T>(Value::Object(only_this_key)) {
            return Err(FieldError::new(key, error.to_string()));
        }
    }
    serde_json::from_value(value).map_err(|error| FieldError::new("", error.to_string()))
}
