//! Strategic merge patch: merge patch that knows which lists are keyed.
//!
//! The rules are those of `k8s.io/apimachinery/pkg/util/strategicpatch` 1.36; which list merges by which key is in
//! [`super::schema`].

use serde_json::{Map, Value};

use super::resources::ResourceDef;
use super::schema::{Merge, merge_rule};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// Applies `patch` to `object`.
///
/// # Errors
/// A message for a malformed patch: an unknown directive, a keyed item without its key, a non-list directive.
pub(crate) fn apply(def: &ResourceDef, object: &Value, patch: &Value) -> Result<Value, String> {
    let (Some(object), Some(patch)) = (object.as_object(), patch.as_object()) else {
        return Err("cannot restore struct from: the patch is not an object".into());
    };
    merge_maps(def, "", object.clone(), patch).map(Value::Object)
}

fn rule(def: &ResourceDef, path: &str) -> Merge {
    let steps: Vec<&str> = path.split('.').collect();
    merge_rule(def, &steps).unwrap_or(Merge::Atomic)
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn merge_maps(
    def: &ResourceDef,
    path: &str,
    mut original: Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<Map<String, Value>, String> {
    match patch.get(PATCH).map(|v| v.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("replace") => {
            return Ok(patch.iter().filter(|(k, _)| *k != PATCH).map(|(k, v)| (k.clone(), v.clone())).collect());
        }
        Some("delete") => return Ok(Map::new()),
        Some(other) => return Err(format!("unknown patch type: {other}")),
    }
    if let Some(kept) = patch.get(RETAIN_KEYS) {
        let kept = kept.as_array().ok_or("invalid patch format of retainKeys: not a list")?;
        original.retain(|k, _| kept.iter().any(|v| v == k));
    }
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix(DELETE_PRIMITIVES) {
            let gone = value.as_array().ok_or("invalid patch format of primitive list: not a list")?;
            if let Some(Value::Array(list)) = original.get_mut(field) {
                list.retain(|v| !gone.contains(v));
            }
        } else if key == PATCH || key == RETAIN_KEYS || key.starts_with(SET_ORDER) {
        } else if value.is_null() {
            original.remove(key);
        } else {
            let old = original.remove(key);
            let merged = merge_values(def, &join(path, key), old, value)?;
            original.insert(key.clone(), merged);
        }
    }
    for (key, order) in patch {
        if let Some(field) = key.strip_prefix(SET_ORDER) {
            let order = order.as_array().ok_or("invalid patch format of setElementOrder list: not a list")?;
            let rule = rule(def, &join(path, field));
            if let Some(Value::Array(list)) = original.get_mut(field) {
                reorder(list, order, rule);
            }
        }
    }
    Ok(original)
}

fn merge_values(def: &ResourceDef, path: &str, old: Option<Value>, patch: &Value) -> Result<Value, String> {
    match (old, patch) {
        (Some(Value::Object(old)), Value::Object(patch)) => merge_maps(def, path, old, patch).map(Value::Object),
        // A map that was not there is still read for directives and nulls.
        (_, Value::Object(patch)) => merge_maps(def, path, Map::new(), patch).map(Value::Object),
        (old, Value::Array(patch)) => {
            let old = if let Some(Value::Array(old)) = old { old } else { Vec::new() };
            merge_lists(def, path, old, patch).map(Value::Array)
        }
        (_, other) => Ok(other.clone()),
    }
}

fn merge_lists(def: &ResourceDef, path: &str, mut old: Vec<Value>, patch: &[Value]) -> Result<Vec<Value>, String> {
    match rule(def, path) {
        Merge::Atomic => Ok(patch.to_vec()),
        Merge::Set => {
            for value in patch {
                if !old.contains(value) {
                    old.push(value.clone());
                }
            }
            Ok(old)
        }
        Merge::Key(key, _) => merge_keyed(def, path, old, patch, key),
    }
}

fn merge_keyed(
    def: &ResourceDef,
    path: &str,
    mut old: Vec<Value>,
    patch: &[Value],
    key: &str,
) -> Result<Vec<Value>, String> {
    if patch.iter().any(|item| item[PATCH] == "replace") {
        old.clear();
    }
    for item in patch {
        let Some(fields) = item.as_object() else {
            return Err(format!("expected a map in the list {path}, got {item}"));
        };
        let directive = fields.get(PATCH).and_then(Value::as_str);
        // A bare `{"$patch": "replace"}` only says that the list is replaced.
        if directive == Some("replace") && fields.len() == 1 {
            continue;
        }
        let Some(id) = fields.get(key) else {
            return Err(format!("map: {item} does not contain declared merge key: {key}"));
        };
        let at = old.iter().position(|o| o.get(key) == Some(id));
        match (directive, at) {
            (Some("delete"), _) => old.retain(|o| o.get(key) != Some(id)),
            (_, Some(at)) => {
                let current = std::mem::take(&mut old[at]);
                old[at] = merge_values(def, path, Some(current), item)?;
            }
            (_, None) => old.push(merge_values(def, path, None, item)?),
        }
    }
    Ok(old)
}

/// Puts the named elements in the named order; those the patch does not name keep their place behind the element that
/// preceded them.
fn reorder(list: &mut Vec<Value>, order: &[Value], rule: Merge) {
    let rank = |value: &Value| match rule {
        Merge::Key(key, _) => order.iter().position(|o| o.get(key) == value.get(key)),
        _ => order.iter().position(|o| o == value),
    };
    let mut named: Vec<(usize, usize, Value)> = Vec::new();
    let mut others: Vec<(usize, Value)> = Vec::new();
    for (at, value) in std::mem::take(list).into_iter().enumerate() {
        match rank(&value) {
            Some(rank) => named.push((rank, at, value)),
            None => others.push((at, value)),
        }
    }
    named.sort_by_key(|(rank, at, _)| (*rank, *at));
    let mut others = others.into_iter().peekable();
    for (_, at, value) in named {
        while let Some((_, other)) = others.next_if(|(o, _)| *o < at) {
            list.push(other);
        }
        list.push(value);
    }
    list.extend(others.map(|(_, v)| v));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::resources;
    use super::*;

    fn patched(plural: &str, object: &Value, patch: &Value) -> Value {
        apply(resources::find("", "v1", plural).unwrap(), object, patch).unwrap()
    }

    #[test]
    fn lists_merge_by_their_rule() {
        let cases = [
            (
                "conditions merge by type and keep other fields",
                "nodes",
                json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r"}, {"type": "Other", "status": "True"}]}}),
                json!({"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "New", "status": "True"}]}}),
                json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "r"}, {"type": "Other", "status": "True"}, {"type": "New", "status": "True"}]}}),
            ),
            (
                "addresses of one type collapse onto the first, as they do upstream",
                "nodes",
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "a"}]}}),
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "b"}, {"type": "Hostname", "address": "h"}]}}),
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "b"}, {"type": "Hostname", "address": "h"}]}}),
            ),
            (
                "a bare replace item replaces the whole list",
                "nodes",
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "a"}, {"type": "ExternalIP", "address": "e"}]}}),
                json!({"status": {"addresses": [{"type": "Hostname", "address": "h"}, {"$patch": "replace"}]}}),
                json!({"status": {"addresses": [{"type": "Hostname", "address": "h"}]}}),
            ),
            (
                "a delete item removes by key",
                "nodes",
                json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}]}}),
                json!({"status": {"conditions": [{"$patch": "delete", "type": "Other"}]}}),
                json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
            ),
            (
                "taints are atomic",
                "nodes",
                json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]}}),
                json!({"spec": {"taints": [{"key": "c", "effect": "NoExecute"}]}}),
                json!({"spec": {"taints": [{"key": "c", "effect": "NoExecute"}]}}),
            ),
            (
                "ports merge by port, in the order asked for",
                "services",
                json!({"spec": {"ports": [{"port": 80, "nodePort": 30080}, {"port": 443, "nodePort": 30443}]}}),
                json!({"spec": {"$setElementOrder/ports": [{"port": 8080}, {"port": 443}], "ports": [{"port": 8080, "name": "alt"}, {"port": 80, "$patch": "delete"}]}}),
                json!({"spec": {"ports": [{"port": 8080, "name": "alt"}, {"port": 443, "nodePort": 30443}]}}),
            ),
            (
                "finalizers are a set with its own deletion",
                "services",
                json!({"metadata": {"finalizers": ["a", "b"]}}),
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["c", "b"], "finalizers": ["c"]}}),
                json!({"metadata": {"finalizers": ["c", "b"]}}),
            ),
            (
                "ingress points are atomic",
                "services",
                json!({"status": {"loadBalancer": {"ingress": [{"ip": "1.1.1.1"}, {"ip": "2.2.2.2"}]}}}),
                json!({"status": {"loadBalancer": {"ingress": [{"ip": "3.3.3.3"}]}}}),
                json!({"status": {"loadBalancer": {"ingress": [{"ip": "3.3.3.3"}]}}}),
            ),
        ];
        for (name, plural, object, patch, expected) in cases {
            assert_eq!(patched(plural, &object, &patch), expected, "{name}");
        }
    }

    #[test]
    fn maps_take_directives_and_nulls() {
        let cases = [
            (
                "null removes and is never stored",
                json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
                json!({"metadata": {"labels": {"a": null, "zz": null}, "annotations": {"x": null}}}),
                json!({"metadata": {"labels": {"b": "2"}, "annotations": {}}}),
            ),
            (
                "replace",
                json!({"metadata": {"labels": {"a": "1"}}}),
                json!({"metadata": {"labels": {"$patch": "replace", "b": "2"}}}),
                json!({"metadata": {"labels": {"b": "2"}}}),
            ),
            (
                "delete",
                json!({"spec": {"configSource": {"a": 1}}, "status": {}}),
                json!({"spec": {"configSource": {"$patch": "delete"}}}),
                json!({"spec": {"configSource": {}}, "status": {}}),
            ),
            (
                "retain keys",
                json!({"spec": {"x": {"a": 1, "b": 2}}}),
                json!({"spec": {"x": {"$retainKeys": ["b", "c"], "c": 3}}}),
                json!({"spec": {"x": {"b": 2, "c": 3}}}),
            ),
        ];
        for (name, object, patch, expected) in cases {
            assert_eq!(patched("nodes", &object, &patch), expected, "{name}");
        }
    }

    #[test]
    fn malformed_patches_are_refused() {
        let def = resources::find("", "v1", "nodes").unwrap();
        for patch in [
            json!({"status": {"conditions": [{"status": "True"}]}}),
            json!({"metadata": {"labels": {"$patch": "explode"}}}),
            json!({"metadata": {"$retainKeys": "x"}}),
            json!([]),
        ] {
            assert!(apply(def, &json!({"status": {"conditions": []}}), &patch).is_err(), "{patch}");
        }
    }
}
