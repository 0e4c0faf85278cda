//! What differs between kinds when they are written.
//!
//! From the `strategy.go` files in kubernetes/pkg/registry 1.36.

use serde_json::{Value, json};

use super::allocate::{carry, carry_families};
use super::prune::prune;
use super::resources::ResourceDef;
use super::status::FieldError;
use super::store::Transaction;
use super::validation::{self, Cause};
use super::{defaulting, namespaces};

/// Returns true if PUT of an absent object creates it.
pub(crate) fn create_on_update(def: &ResourceDef) -> bool {
    matches!(def.plural, "services" | "events" | "endpoints" | "leases")
}

/// Returns true if PUT without a resource version overwrites.
pub(crate) fn unconditional_update(def: &ResourceDef) -> bool {
    def.plural != "leases"
}

/// Returns true if DELETE answers with the object rather than with a `Status`.
pub(crate) fn returns_deleted(def: &ResourceDef) -> bool {
    matches!(def.plural, "services" | "pods" | "serviceaccounts" | "namespaces")
}

/// Returns true if the kind counts changes of its specification. Nodes, services and leases do not.
fn counts_generations(def: &ResourceDef) -> bool {
    matches!(def.plural, "endpointslices" | "pods")
}

/// Taint that the real server's TaintNodesByCondition admission puts on every new node, because no
/// condition is known yet.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Does what admission does to a new node.
pub(crate) fn taint_new_node(def: &ResourceDef, object: &mut Value) {
    if def.plural != "nodes" {
        return;
    }
    if !object["spec"].is_object() {
        object["spec"] = json!({});
    }
    let taint = json!({"key": NOT_READY, "effect": "NoSchedule"});
    match &mut object["spec"]["taints"] {
        Value::Array(taints) => {
            if !taints
                .iter()
                .any(|t| t["key"] == NOT_READY && t["effect"] == "NoSchedule")
            {
                taints.push(taint);
            }
        }
        none => *none = json!([taint]),
    }
}

/// Times that the API's types cannot leave out: absent is null.
fn show_unset_times(def: &ResourceDef, object: &mut Value) {
    if def.plural != "nodes" {
        return;
    }
    let conditions = object
        .pointer_mut("/status/conditions")
        .and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        if let Some(condition) = condition.as_object_mut() {
            condition.entry("lastHeartbeatTime").or_insert(Value::Null);
            condition.entry("lastTransitionTime").or_insert(Value::Null);
        }
    }
}

/// Clears what a client cannot set at creation and fills in defaults.
pub(crate) fn prepare_create(def: &ResourceDef, object: &mut Value) {
    prune(def, object);
    defaulting::default(def, object);
    show_unset_times(def, object);
    if matches!(def.plural, "services" | "pods") {
        object["status"] = if def.plural == "services" {
            json!({"loadBalancer": {}})
        } else {
            json!({"phase": "Pending"})
        };
    }
    if def.plural == "namespaces" {
        namespaces::prepare(object);
    }
    if counts_generations(def) {
        object["metadata"]["generation"] = json!(1);
    }
}

/// Keeps what this path cannot change: the status on the main path; on `status`, the specification.
/// Labels, annotations and finalizers change through both, as on the real server.
pub(crate) fn prepare_update(
    def: &ResourceDef,
    subresource: &str,
    before: &Value,
    object: &mut Value,
) {
    prune(def, object);
    if def.plural == "services" {
        carry_families(before, object);
    }
    // Before anything is kept: defaults follow from what the client sent, as decoding gives them on
    // the real server.
    defaulting::default(def, object);
    show_unset_times(def, object);
    if subresource == "status" {
        keep(before, object, "spec");
    } else if def.has_status() {
        keep(before, object, "status");
    }
    if def.plural == "namespaces" {
        if subresource == "finalize" {
            keep(before, object, "status");
        } else {
            keep(before, object, "spec");
        }
    }
    if def.plural == "services" && subresource.is_empty() {
        carry(before, object);
        defaulting::drop_type_dependent_fields(before, object);
    }
    if counts_generations(def) && subresource.is_empty() && differs(before, object) {
        let generation = before["metadata"]["generation"].as_u64().unwrap_or(0);
        object["metadata"]["generation"] = json!(generation + 1);
    }
}

fn differs(before: &Value, object: &Value) -> bool {
    let content = |v: &Value| {
        let mut v = v.clone();
        if let Some(map) = v.as_object_mut() {
            map.remove("metadata");
            map.remove("status");
        }
        v
    };
    content(before) != content(object)
}

fn keep(before: &Value, object: &mut Value, field: &str) {
    let Some(map) = object.as_object_mut() else {
        return;
    };
    match before.get(field) {
        Some(kept) => map.insert(field.into(), kept.clone()),
        None => map.remove(field),
    };
}

/// Findings of validation in the form of an answer.
pub(crate) fn errors(causes: Vec<Cause>) -> Vec<FieldError> {
    let form = |c: Cause| FieldError {
        reason: c.reason.to_owned(),
        message: c.message,
        field: c.field,
    };
    causes.into_iter().map(form).collect()
}

/// Gives a service its addresses and ports.
///
/// # Errors
/// One error per address or port that cannot be had.
pub(crate) fn allocate(
    tx: &mut Transaction<'_>,
    def: &ResourceDef,
    before: Option<&Value>,
    object: &mut Value,
) -> Result<(), Vec<FieldError>> {
    if def.plural != "services" {
        return Ok(());
    }
    let allocations = tx.allocations();
    let configured = if allocations.is_dual_stack() {
        vec!["IPv4", "IPv6"]
    } else {
        vec![allocations.primary_family()]
    };
    let causes = validation::validate_cluster_ips(before, object, &configured);
    if causes.is_empty() {
        allocations.fill(object)
    } else {
        Err(errors(causes))
    }
}
