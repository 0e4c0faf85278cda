//! Defaults that the server fills in before it validates and stores an object.
//!
//! The rules are those of kube-apiserver 1.36 (`pkg/apis/*/v1/defaults.go` and the registries'
//! strategies). Allocation (cluster IPs, node ports) is not defaulting and happens elsewhere.
//! Anything of the wrong type is left as it is, for validation to name.

mod service;
#[cfg(test)]
mod tests;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::resources::ResourceDef;
pub use service::drop_type_dependent_fields;

type Fields = Map<String, Value>;

/// Fills in the defaults of `obj`; doing it twice is the same as doing it once.
pub fn default(def: &ResourceDef, obj: &mut Value) {
    let Value::Object(fields) = obj else { return };
    match (def.group, def.kind) {
        ("", "Service") => service::default(fields),
        ("", "Node") => node(fields),
        ("", "Namespace") => namespace(fields),
        ("", "Secret") => secret(fields),
        ("", "Event") => core_event(fields),
        ("events.k8s.io", "Event") => event(fields),
        ("", "Endpoints") => endpoints(fields),
        ("discovery.k8s.io", "EndpointSlice") => endpoint_slice(fields),
        ("coordination.k8s.io", "Lease") => lease(fields),
        _ => {}
    }
}

/// Returns true if a field counts as not given: absent, null or the empty string.
fn is_unset(fields: &Fields, name: &str) -> bool {
    match fields.get(name) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    }
}

fn set_if_unset(fields: &mut Fields, name: &str, value: impl Into<Value>) {
    if is_unset(fields, name) {
        fields.insert(name.to_owned(), value.into());
    }
}

/// Returns the object in a field, made if it is absent or null; none if something else is there.
fn object<'a>(fields: &'a mut Fields, name: &str) -> Option<&'a mut Fields> {
    let value = fields.entry(name).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut()
}

/// Returns the objects of a list field; other items are passed over.
fn items<'a>(fields: &'a mut Fields, name: &str) -> impl Iterator<Item = &'a mut Fields> {
    fields
        .get_mut(name)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

/// Fields that Go writes even when they are empty, and that typed clients therefore expect.
const NODE_INFO: [&str; 10] = [
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
];

fn node(fields: &mut Fields) {
    object(fields, "spec");
    let Some(status) = object(fields, "status") else {
        return;
    };
    if is_unset(status, "allocatable")
        && let Some(capacity) = status.get("capacity").filter(|c| c.is_object()).cloned()
    {
        status.insert("allocatable".to_owned(), capacity);
    }
    if let Some(info) = object(status, "nodeInfo") {
        for name in NODE_INFO {
            set_if_unset(info, name, "");
        }
    }
    if let Some(endpoints) = object(status, "daemonEndpoints")
        && let Some(kubelet) = object(endpoints, "kubeletEndpoint")
    {
        set_if_unset(kubelet, "Port", 0);
    }
}

fn namespace(fields: &mut Fields) {
    let Some(metadata) = object(fields, "metadata") else {
        return;
    };
    let leaving = !is_unset(metadata, "deletionTimestamp");
    if let Some(name) = metadata
        .get("name")
        .and_then(Value::as_str)
        .filter(|n| !n.is_empty())
        .map(str::to_owned)
        && let Some(labels) = object(metadata, "labels")
    {
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
    }
    // A namespace that is being deleted loses this finalizer for good.
    if let Some(spec) = object(fields, "spec")
        && !leaving
    {
        set_if_unset(spec, "finalizers", json!(["kubernetes"]));
    }
    if let Some(status) = object(fields, "status") {
        set_if_unset(status, "phase", "Active");
    }
}

/// Encodes the entries of `stringData`, which is write-only, into `data`.
fn secret(fields: &mut Fields) {
    set_if_unset(fields, "type", "Opaque");
    let is_plain = |v: &Value| {
        v.as_object()
            .is_some_and(|entries| entries.values().all(Value::is_string))
    };
    if !fields.get("stringData").is_some_and(is_plain) {
        return;
    }
    let Some(Value::Object(plain)) = fields.remove("stringData") else {
        return;
    };
    if let Some(data) = object(fields, "data") {
        for (key, value) in plain {
            data.insert(key, STANDARD.encode(value.as_str().unwrap_or_default()).into());
        }
    }
}

fn core_event(fields: &mut Fields) {
    object(fields, "involvedObject");
    object(fields, "source");
    for name in ["reportingComponent", "reportingInstance"] {
        set_if_unset(fields, name, "");
    }
    for name in ["eventTime", "firstTimestamp", "lastTimestamp"] {
        fields.entry(name).or_insert(Value::Null);
    }
}

fn event(fields: &mut Fields) {
    object(fields, "regarding");
    object(fields, "deprecatedSource");
    for name in ["eventTime", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"] {
        fields.entry(name).or_insert(Value::Null);
    }
}

fn endpoints(fields: &mut Fields) {
    for subset in items(fields, "subsets") {
        for port in items(subset, "ports") {
            set_if_unset(port, "protocol", "TCP");
        }
    }
}

/// Fields of coordinated leader election are dropped while its feature is off, as it is by default.
fn lease(fields: &mut Fields) {
    if let Some(spec) = object(fields, "spec") {
        spec.remove("strategy");
        spec.remove("preferredHolder");
    }
}

fn endpoint_slice(fields: &mut Fields) {
    for endpoint in items(fields, "endpoints") {
        object(endpoint, "conditions");
    }
    for port in items(fields, "ports") {
        set_if_unset(port, "name", "");
        set_if_unset(port, "protocol", "TCP");
    }
}
