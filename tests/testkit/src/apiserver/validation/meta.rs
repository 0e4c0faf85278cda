//! Metadata: names, labels, annotations, owners, finalizers, and what an update may not touch.

use serde_json::{Value, json};

use super::causes::Causes;
use super::formats::{dns_label, dns_subdomain, label_value, path_segment, qualified_name};
use super::{entries, integer, is_set, list, text};
use crate::apiserver::resources::ResourceDef;

/// Bytes of all annotations of one object together.
const ANNOTATIONS_MAX: usize = 256 * 1024;

/// Finalizers without a domain, from the days before domains were required.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

pub(super) fn create(def: &ResourceDef, obj: &Value, causes: &mut Causes) {
    let generate = text(obj, "/metadata/generateName");
    if !generate.is_empty() {
        // More characters follow, so it may end in a dash.
        let masked = if generate.len() > 1 && generate.ends_with('-') {
            generate.trim_end_matches('-')
        } else {
            generate
        };
        causes.invalid_each("metadata.generateName", generate, name_rule(def)(masked));
    }
    match text(obj, "/metadata/name") {
        "" => causes.required("metadata.name", "name or generateName is required"),
        name => causes.invalid_each("metadata.name", name, name_rule(def)(name)),
    }
    match text(obj, "/metadata/namespace") {
        "" if def.namespaced => causes.required("metadata.namespace", ""),
        "" => {}
        namespace if def.namespaced => {
            causes.invalid_each("metadata.namespace", namespace, dns_label(namespace));
        }
        _ => causes.forbidden("metadata.namespace", "not allowed on this type"),
    }
    if integer(obj, "/metadata/generation") < 0 {
        let generation = integer(obj, "/metadata/generation");
        causes.invalid("metadata.generation", generation, "must be greater than or equal to 0");
    }
    common(obj, causes);
    for finalizer in list(obj, "/metadata/finalizers")
        .iter()
        .filter_map(Value::as_str)
    {
        causes.invalid_each("metadata.finalizers", finalizer, qualified_name(finalizer));
    }
    let has = |name: &str| list(obj, "/metadata/finalizers").iter().any(|f| f == name);
    if has("orphan") && has("foregroundDeletion") {
        let all = obj
            .pointer("/metadata/finalizers")
            .cloned()
            .unwrap_or_default();
        causes.invalid(
            "metadata.finalizers",
            all,
            "finalizer orphan and foregroundDeletion cannot be both set",
        );
    }
    kube_finalizers(def, obj, causes);
}

/// Returns the check for names of objects of this kind. Services may begin with a digit since 1.36.
fn name_rule(def: &ResourceDef) -> fn(&str) -> Vec<String> {
    match def.kind {
        "Service" | "Namespace" => dns_label,
        "Event" if def.group.is_empty() => path_segment,
        _ => dns_subdomain,
    }
}

pub(super) fn update(def: &ResourceDef, old: &Value, new: &Value, causes: &mut Causes) {
    unchanged(old, new, causes);
    kube_finalizers(def, new, causes);
    // The real server checks metadata before the kind's own rules and again among them.
    if (def.group, def.kind) != ("", "Event") {
        unchanged(old, new, causes);
    }
}

fn unchanged(old: &Value, new: &Value, causes: &mut Causes) {
    if is_set(old, "/metadata/deletionTimestamp") {
        let before = list(old, "/metadata/finalizers");
        let mut extra: Vec<&str> = list(new, "/metadata/finalizers")
            .iter()
            .filter(|f| !before.contains(f))
            .filter_map(Value::as_str)
            .collect();
        extra.sort_unstable();
        if !extra.is_empty() {
            let names: Vec<String> = extra.iter().map(|e| format!("{e:?}")).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                names.join(", ")
            );
            causes.forbidden("metadata.finalizers", &detail);
        }
    }
    if text(new, "/metadata/resourceVersion").is_empty() {
        causes.invalid("metadata.resourceVersion", "", "must be specified for an update");
    }
    let generation = integer(new, "/metadata/generation");
    if generation < integer(old, "/metadata/generation") {
        causes.invalid("metadata.generation", generation, "must not be decremented");
    }
    for field in ["name", "namespace", "uid"] {
        let pointer = format!("/metadata/{field}");
        let (old, new) = (text(old, &pointer), text(new, &pointer));
        causes.immutable(&format!("metadata.{field}"), &old.into(), &new.into());
    }
    for field in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let at = |obj: &Value| {
            obj.pointer(&format!("/metadata/{field}"))
                .cloned()
                .unwrap_or_default()
        };
        causes.immutable(&format!("metadata.{field}"), &at(old), &at(new));
    }
    common(new, causes);
}

/// Checks labels, annotations and owners, alike on creation and update.
fn common(obj: &Value, causes: &mut Causes) {
    labels(obj, "/metadata/labels", "metadata.labels", causes);
    let mut size = 0;
    for (key, value) in entries(obj, "/metadata/annotations") {
        // Unlike labels, annotation keys may have capitals in their domain.
        causes.invalid_each("metadata.annotations", key, qualified_name(&key.to_lowercase()));
        size += key.len() + value.len();
    }
    if size > ANNOTATIONS_MAX {
        causes.too_long("metadata.annotations", ANNOTATIONS_MAX);
    }
    owners(obj, causes);
}

pub(super) fn labels(obj: &Value, pointer: &str, field: &str, causes: &mut Causes) {
    for (key, value) in entries(obj, pointer) {
        causes.invalid_each(field, key, qualified_name(key));
        causes.invalid_each(field, value, label_value(value));
    }
}

fn owners(obj: &Value, causes: &mut Causes) {
    let references = list(obj, "/metadata/ownerReferences");
    let mut controller: Option<String> = None;
    for reference in references {
        let version = text(reference, "/apiVersion");
        if version.is_empty() || version.ends_with('/') {
            causes.invalid(
                "metadata.ownerReferences.apiVersion",
                version,
                "version must not be empty",
            );
        }
        for field in ["kind", "name", "uid"] {
            if text(reference, &format!("/{field}")).is_empty() {
                causes.invalid(
                    &format!("metadata.ownerReferences.{field}"),
                    "",
                    "must not be empty",
                );
            }
        }
        if version == "v1" && text(reference, "/kind") == "Event" {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            causes.invalid("metadata.ownerReferences", reference.clone(), detail);
        }
        if reference.get("controller") == Some(&Value::Bool(true)) {
            let this = format!("{}/{}", text(reference, "/kind"), text(reference, "/name"));
            match &controller {
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    );
                    causes.invalid("metadata.ownerReferences", json!(references), &detail);
                }
                None => controller = Some(this),
            }
        }
    }
}

/// Checks that finalizers of the core groups contain a domain.
fn kube_finalizers(def: &ResourceDef, obj: &Value, causes: &mut Causes) {
    if def.group == "coordination.k8s.io" {
        return;
    }
    for (index, finalizer) in list(obj, "/metadata/finalizers")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        kube_finalizer(&format!("metadata.finalizers[{index}]"), finalizer, causes);
    }
}

pub(super) fn kube_finalizer(field: &str, finalizer: &str, causes: &mut Causes) {
    if !finalizer.contains('/') && !STANDARD_FINALIZERS.contains(&finalizer) {
        let detail = "name is neither a standard finalizer name nor is it fully qualified";
        causes.invalid(field, finalizer, detail);
    }
}
