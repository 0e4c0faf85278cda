//! `Table` answers, which is how kubectl gets what it prints.
//!
//! Column names, types, formats and priorities are those of kube-apiserver 1.36
//! (`pkg/printers/internalversion`), because people and scripts depend on them; the descriptions
//! are ours.

mod age;
mod cells;
mod pod;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::resources::ResourceDef;
pub use age::human_duration;

/// Part of each object that a row has besides its cells (`includeObject` in the query).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// Its metadata, as `PartialObjectMetadata`.
    #[default]
    Metadata,
    /// All of it.
    Object,
}

impl IncludeObject {
    /// Reads the query parameter; absent or empty is [`IncludeObject::Metadata`].
    ///
    /// # Errors
    /// The message of the real server's 400 for any other word.
    pub fn parse(parameter: Option<&str>) -> Result<Self, String> {
        match parameter.unwrap_or_default() {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => Err(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
            )),
        }
    }
}

/// One column; wide ones have priority 1 and appear only under `-o wide`.
struct Column {
    name: &'static str,
    kind: &'static str,
    format: &'static str,
    description: &'static str,
    priority: i32,
}

impl Column {
    const fn new(name: &'static str, description: &'static str) -> Self {
        Self { name, kind: "string", format: "", description, priority: 0 }
    }

    const fn wide(name: &'static str, description: &'static str) -> Self {
        Self { priority: 1, ..Self::new(name, description) }
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "type": self.kind,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        })
    }
}

/// Returns a `meta.k8s.io/v1` `Table` of `objects`, all of them of the kind `def`.
///
/// All columns are sent, wide ones too: the client picks. For a single object the table's resource
/// version is the object's; a caller that answers a list sets `metadata` itself. In a watch, the
/// real server sends `columnDefinitions` with the first event only: [`strip_columns`].
pub fn to_table(
    def: &ResourceDef,
    objects: &[Value],
    include_object: IncludeObject,
    now: Timestamp,
) -> Value {
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| row(def, object, include_object, now))
        .collect();
    let resource_version = match objects {
        [one] => one
            .pointer("/metadata/resourceVersion")
            .and_then(Value::as_str)
            .unwrap_or_default(),
        _ => "",
    };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": resource_version},
        "columnDefinitions": columns(def).iter().map(Column::to_json).collect::<Vec<_>>(),
        "rows": rows,
    })
}

/// Removes the column definitions from a table, for watch events after the first.
pub fn strip_columns(table: &mut Value) {
    if let Some(columns) = table.get_mut("columnDefinitions") {
        *columns = Value::Null;
    }
}

fn row(def: &ResourceDef, object: &Value, include: IncludeObject, now: Timestamp) -> Value {
    let mut row =
        json!({"cells": cells(def, object, now), "object": included(def, object, include)});
    let phase = object.pointer("/status/phase").and_then(Value::as_str);
    if def.kind == "Pod"
        && let Some(phase @ ("Succeeded" | "Failed")) = phase
    {
        let message = if phase == "Succeeded" {
            "The pod ran to its end."
        } else {
            "The pod has failed."
        };
        row["conditions"] =
            json!([{"type": "Completed", "status": "True", "reason": phase, "message": message}]);
    }
    row
}

fn included(def: &ResourceDef, object: &Value, include: IncludeObject) -> Value {
    match include {
        IncludeObject::None => Value::Null,
        IncludeObject::Metadata => json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
        }),
        IncludeObject::Object => {
            let mut object = object.clone();
            if let Value::Object(fields) = &mut object {
                // Items of a list are stored without type; alone in a row they need one.
                fields
                    .entry("apiVersion")
                    .or_insert_with(|| def.api_version().into());
                fields.entry("kind").or_insert_with(|| def.kind.into());
            }
            object
        }
    }
}

const NAME: Column = Column {
    format: "name",
    ..Column::new("Name", "Name of the object, unique in its scope.")
};
const AGE: Column = Column::new("Age", "Time since the server created the object.");

const NODE: &[Column] = &[
    NAME,
    Column::new("Status", "Readiness of the node, and whether pods may be scheduled to it."),
    Column::new("Roles", "Roles from the node's labels."),
    AGE,
    Column::new("Version", "Version of the kubelet."),
    Column::wide("Internal-IP", "First address of type InternalIP."),
    Column::wide("External-IP", "First address of type ExternalIP."),
    Column::wide("OS-Image", "Operating system as the node reports it."),
    Column::wide("Kernel-Version", "Kernel release and architecture."),
    Column::wide("Container-Runtime", "Container runtime and its version."),
];

const SERVICE: &[Column] = &[
    NAME,
    Column::new("Type", "How the service is exposed."),
    Column::new("Cluster-IP", "First virtual address inside the cluster."),
    Column::new("External-IP", "Addresses from outside the cluster."),
    Column::new("Port(s)", "Ports, node ports and protocols."),
    AGE,
    Column::wide("Selector", "Labels of the pods behind the service."),
];

const EVENT: &[Column] = &[
    Column::new("Last Seen", "Time since the event last happened."),
    Column::new("Type", "Normal or Warning."),
    Column::new("Reason", "Machine-readable cause."),
    Column::new("Object", "The object the event is about."),
    Column::wide("Subobject", "The part of the object the event is about."),
    Column::wide("Source", "Who reports the event, and from where."),
    Column::new("Message", "What happened, for people."),
    Column::wide("First Seen", "Time since the event first happened."),
    Column::wide("Count", "How often the event happened."),
    Column { priority: 1, ..NAME },
];

const POD: &[Column] = &[
    NAME,
    Column::new("Ready", "Ready containers of all containers."),
    Column::new("Status", "What the pod's containers are doing."),
    Column::new("Restarts", "Container restarts, and when the last one was."),
    AGE,
    Column::wide("IP", "First address of the pod."),
    Column::wide("Node", "The node the pod is bound to."),
    Column::wide("Nominated Node", "The node that is being freed for the pod."),
    Column::wide("Readiness Gates", "Fulfilled readiness gates of all gates."),
];

const NAMESPACE: &[Column] = &[NAME, Column::new("Status", "Phase of the namespace."), AGE];
const SECRET: &[Column] = &[
    NAME,
    Column::new("Type", "What the secret is for."),
    Column::new("Data", "Number of entries."),
    AGE,
];
const CONFIG_MAP: &[Column] = &[NAME, Column::new("Data", "Number of entries."), AGE];
const SERVICE_ACCOUNT: &[Column] = &[NAME, AGE];
const LEASE: &[Column] = &[NAME, Column::new("Holder", "Identity of the current holder."), AGE];
const ENDPOINTS: &[Column] = &[NAME, Column::new("Endpoints", "First addresses and ports."), AGE];
const ENDPOINT_SLICE: &[Column] = &[
    NAME,
    Column::new("AddressType", "Kind of the addresses."),
    Column::new("Ports", "First ports."),
    Column::new("Endpoints", "First addresses."),
    AGE,
];
const OTHER: &[Column] = &[
    NAME,
    Column {
        kind: "date",
        ..Column::new("Created At", "When the server created the object.")
    },
];

fn columns(def: &ResourceDef) -> &'static [Column] {
    match def.kind {
        "Node" => NODE,
        "Service" => SERVICE,
        "Event" => EVENT,
        "Pod" => POD,
        "Namespace" => NAMESPACE,
        "Secret" => SECRET,
        "ConfigMap" => CONFIG_MAP,
        "ServiceAccount" => SERVICE_ACCOUNT,
        "Lease" => LEASE,
        "Endpoints" => ENDPOINTS,
        "EndpointSlice" => ENDPOINT_SLICE,
        _ => OTHER,
    }
}

fn cells(def: &ResourceDef, object: &Value, now: Timestamp) -> Vec<Value> {
    match def.kind {
        "Node" => cells::node(object, now),
        "Service" => cells::service(object, now),
        "Event" => cells::event(object, now),
        "Pod" => pod::cells(object, now),
        "Namespace" => cells::namespace(object, now),
        "Secret" => cells::secret(object, now),
        "ConfigMap" => cells::config_map(object, now),
        "ServiceAccount" => cells::service_account(object, now),
        "Lease" => cells::lease(object, now),
        "Endpoints" => cells::endpoints(object, now),
        "EndpointSlice" => cells::endpoint_slice(object, now),
        _ => cells::other(object),
    }
}
