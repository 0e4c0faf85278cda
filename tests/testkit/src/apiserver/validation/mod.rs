//! Whether an object may be stored, in the words of kube-apiserver 1.36.
//!
//! Clients act on these messages (a controller that sets `spec.providerID` twice reads why it may
//! not), so their text, field and cause type are those of the real server's
//! `pkg/apis/*/validation`. Values of the wrong JSON type are the decoder's business
//! ([`super::schema::check`]) and count as absent here.

mod causes;
mod formats;
mod meta;
mod node;
mod other;
mod service;
#[cfg(test)]
mod tests;

use serde_json::Value;

use super::resources::ResourceDef;
use causes::Causes;
pub use causes::{Cause, invalid_message};

/// Returns the errors of creating `obj`; it may be stored if there are none.
///
/// Call it after defaulting and, for services, after allocation, as the real server does: a service
/// of type `LoadBalancer` with local traffic policy must have its health check port by then.
pub fn validate_create(def: &ResourceDef, obj: &Value) -> Vec<Cause> {
    let mut causes = Causes::default();
    meta::create(def, obj, &mut causes);
    match (def.group, def.kind) {
        ("", "Node") => node::create(obj, &mut causes),
        ("", "Service") => service::create(obj, &mut causes),
        _ => other::object(def, obj, &mut causes),
    }
    causes.done()
}

/// Returns the errors of replacing `old` by `new`, on the resource itself or on its status. Parts
/// that the path may not write must already be those of `old`.
pub fn validate_update(def: &ResourceDef, old: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = Causes::default();
    meta::update(def, old, new, &mut causes);
    match (def.group, def.kind) {
        ("", "Node") => node::update(old, new, &mut causes),
        ("", "Service") => service::update(old, new, &mut causes),
        _ => {
            other::update(def, old, new, &mut causes);
            other::object(def, new, &mut causes);
        }
    }
    causes.done()
}

/// What speaks against a service's cluster IPs and families, on a cluster that has these
/// `configured` families. The real server looks at this before it allocates, and at everything else
/// after.
pub fn validate_cluster_ips(old: Option<&Value>, new: &Value, configured: &[&str]) -> Vec<Cause> {
    let mut causes = Causes::default();
    service::before_allocation(old, new, configured, &mut causes);
    causes.done()
}

/// Returns the text at a JSON pointer, empty if there is none.
fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Returns the integer at a JSON pointer, zero if there is none.
fn integer(object: &Value, pointer: &str) -> i64 {
    object
        .pointer(pointer)
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

/// Returns true if something other than null is at a JSON pointer.
fn is_set(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).is_some_and(|v| !v.is_null())
}

/// Returns entries of a map of texts.
fn entries<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let map = object.pointer(pointer).and_then(Value::as_object);
    map.into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
}
