//! Events of `events.k8s.io` are the core events under other names.
//!
//! The pairs are those of `pkg/apis/events/v1/conversion.go` 1.36.

use serde_json::Value;

use super::resources::{self, ResourceDef};

/// Name in core/v1, name in events.k8s.io/v1.
const FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("reportingComponent", "reportingController"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

/// Returns the definition under which objects of `def` are stored.
pub(crate) fn storage(def: &'static ResourceDef) -> &'static ResourceDef {
    let (group, plural) = def.storage_key();
    if group == def.group {
        def
    } else {
        resources::find(group, "v1", plural).unwrap_or(def)
    }
}

/// Returns true if objects of `def` are stored under other names.
pub(crate) fn is_converted(def: &ResourceDef) -> bool {
    def.storage_key().0 != def.group
}

/// Converts an object from the stored form to the form of `def`.
pub(crate) fn outgoing(def: &ResourceDef, object: Value) -> Value {
    if !is_converted(def) {
        return object;
    }
    let mut shown = rename(def, object, |(core, new)| (core, new));
    if let Some(map) = shown.as_object_mut() {
        // Shown empty in the core group, left out here.
        map.retain(|key, value| !(key.starts_with("reporting") && *value == ""));
    }
    shown
}

/// Converts an object from the form of `def` to the stored form.
pub(crate) fn incoming(def: &'static ResourceDef, object: Value) -> Value {
    if is_converted(def) {
        rename(storage(def), object, |(core, new)| (new, core))
    } else {
        object
    }
}

fn rename(
    to: &ResourceDef,
    mut object: Value,
    direction: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) -> Value {
    if let Some(map) = object.as_object_mut() {
        for (from, into) in FIELDS.map(direction) {
            if let Some(value) = map.remove(from) {
                map.insert(into.into(), value);
            }
        }
        map.insert("apiVersion".into(), Value::String(to.api_version()));
    }
    object
}
