//! One stored version of an object.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use serde_json::Value;

use super::resources::ResourceDef;

/// An immutable version of an object: its JSON text plus the few facts reads need without parsing
/// it.
///
/// Text is about a fifth of what a parsed tree of the same node takes, and lists and watches send
/// it as it is.
#[derive(Debug)]
pub struct Object {
    /// Namespace, empty for cluster-scoped objects.
    pub namespace: String,
    /// Name, unique in its namespace.
    pub name: String,
    /// Identity of this incarnation.
    pub uid: String,
    /// The write that made this version.
    pub version: u64,
    /// Labels, for selectors.
    pub labels: BTreeMap<String, String>,
    /// Values of the selectable fields of this resource, for field selectors.
    pub fields: Vec<(&'static str, String)>,
    /// `{"kind":…,"apiVersion":…,`: what a list leaves out of its items.
    head: String,
    /// All but kind and version, as one JSON object.
    body: Bytes,
}

impl Object {
    /// Creates a version from `value`, whose metadata must be complete except for the resource
    /// version, which is written here.
    pub(crate) fn new(def: &ResourceDef, mut value: Value, version: u64) -> Self {
        value["metadata"]["resourceVersion"] = Value::String(version.to_string());
        Self::of(def, value, version)
    }

    /// Creates the response of a dry run: a new object has no version.
    pub(crate) fn unwritten(def: &ResourceDef, value: Value) -> Self {
        let version = value["metadata"]["resourceVersion"]
            .as_str()
            .and_then(|v| v.parse().ok())
            .unwrap_or(0);
        Self::of(def, value, version)
    }

    fn of(def: &ResourceDef, mut value: Value, version: u64) -> Self {
        let text = |path: &str| {
            value
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let labels = value["metadata"]["labels"]
            .as_object()
            .map(|m| {
                m.iter()
                    .map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_owned()))
                    .collect()
            })
            .unwrap_or_default();
        let head = format!("{{\"kind\":\"{}\",\"apiVersion\":\"{}\",", def.kind, def.api_version());
        let fields = selectable(def)
            .iter()
            .map(|(label, pointer)| (*label, field_text(&value, pointer)))
            .collect();
        let (namespace, name, uid) =
            (text("/metadata/namespace"), text("/metadata/name"), text("/metadata/uid"));
        if let Some(map) = value.as_object_mut() {
            map.remove("kind");
            map.remove("apiVersion");
        }
        Self {
            namespace,
            name,
            uid,
            version,
            labels,
            fields,
            head,
            body: Bytes::from(value.to_string()),
        }
    }

    /// Returns the JSON text without kind and version, as it stands in a list.
    pub fn item(&self) -> &Bytes {
        &self.body
    }

    /// Returns the JSON text.
    pub fn json(&self) -> Bytes {
        // The body is a JSON object with at least its metadata, so a member follows the brace.
        let mut text = BytesMut::with_capacity(self.head.len() + self.body.len());
        text.extend_from_slice(self.head.as_bytes());
        text.extend_from_slice(self.body.get(1..).unwrap_or_default());
        text.freeze()
    }

    /// Returns the parsed object.
    pub fn value(&self) -> Value {
        // The text was printed from a `Value` above.
        serde_json::from_slice(&self.json()).unwrap_or(Value::Null)
    }
}

fn field_text(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        Some(Value::String(s)) => s.clone(),
        Some(Value::Bool(b)) => b.to_string(),
        Some(Value::Number(n)) => n.to_string(),
        // The real selectors print an unset flag as `false` and an unset text as nothing.
        _ if pointer == "/spec/unschedulable" => "false".into(),
        _ => String::new(),
    }
}

/// Returns the field labels that a selector may have besides `metadata.name` and
/// `metadata.namespace`, with the pointers to their values. From the `GetAttrs` functions in
/// kubernetes/pkg/registry/core 1.36.
pub(crate) fn selectable(def: &ResourceDef) -> &'static [(&'static str, &'static str)] {
    match def.storage_key() {
        ("", "nodes") => &[("spec.unschedulable", "/spec/unschedulable")],
        ("", "pods") => &[
            ("spec.nodeName", "/spec/nodeName"),
            ("spec.restartPolicy", "/spec/restartPolicy"),
            ("spec.schedulerName", "/spec/schedulerName"),
            ("spec.serviceAccountName", "/spec/serviceAccountName"),
            ("spec.hostNetwork", "/spec/hostNetwork"),
            ("status.phase", "/status/phase"),
            ("status.podIP", "/status/podIP"),
            ("status.nominatedNodeName", "/status/nominatedNodeName"),
        ],
        ("", "services") => &[("spec.clusterIP", "/spec/clusterIP"), ("spec.type", "/spec/type")],
        ("", "namespaces") => &[("status.phase", "/status/phase")],
        ("", "secrets") => &[("type", "/type")],
        ("", "events") => &[
            ("involvedObject.kind", "/involvedObject/kind"),
            ("involvedObject.namespace", "/involvedObject/namespace"),
            ("involvedObject.name", "/involvedObject/name"),
            ("involvedObject.uid", "/involvedObject/uid"),
            ("involvedObject.apiVersion", "/involvedObject/apiVersion"),
            ("involvedObject.resourceVersion", "/involvedObject/resourceVersion"),
            ("involvedObject.fieldPath", "/involvedObject/fieldPath"),
            ("reason", "/reason"),
            ("reportingComponent", "/reportingComponent"),
            ("source", "/source/component"),
            ("type", "/type"),
        ],
        _ => &[],
    }
}
