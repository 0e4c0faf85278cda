//! Strategic merge patch: merge patch that knows which lists are keyed.
//!
//! The rules are those of `k8s.io/apimachinery/pkg/util/strategicpatch` 1.36; which list merges by
//! which key is in [`super::schema`].

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
/// A message for a malformed patch: an unknown directive, a keyed item without its key, a non-list
/// directive.
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
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
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
            return Ok(patch
                .iter()
                .filter(|(k, _)| *k != PATCH)
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect());
        }
        Some("delete") => return Ok(Map::new()),
        Some(other) => {
            return Err(format!(
                "unknown patch type: {other} in map: {}",
                Value::Object(patch.clone())
            ));
        }
    }
    if let Some(kept) = patch.get(RETAIN_KEYS) {
        let kept = kept
            .as_array()
            .ok_or("invalid patch format of retainKeys: not a list")?;
        original.retain(|k, _| kept.iter().any(|v| v == k));
    }
    let ordered = patch.keys().filter_map(|k| k.strip_prefix(SET_ORDER));
    let before: Map<String, Value> = ordered
        .filter_map(|field| Some((field.to_owned(), original.get(field)?.clone())))
        .collect();
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix(DELETE_PRIMITIVES) {
            let gone = value
                .as_array()
                .ok_or("invalid patch format of primitive list: not a list")?;
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
            let order = order
                .as_array()
                .ok_or("invalid patch format of setElementOrder list: not a list")?;
            let rule = rule(def, &join(path, field));
            if let Some(Value::Array(list)) = original.get_mut(field) {
                let live = before
                    .get(field)
                    .and_then(Value::as_array)
                    .map_or(&[][..], Vec::as_slice);
                *list = arrange(std::mem::take(list), order, live, rule);
            }
        }
    }
    Ok(original)
}

fn merge_values(
    def: &ResourceDef,
    path: &str,
    old: Option<Value>,
    patch: &Value,
) -> Result<Value, String> {
    match (old, patch) {
        (Some(Value::Object(old)), Value::Object(patch)) => {
            merge_maps(def, path, old, patch).map(Value::Object)
        }
        // A map that was not there is still read for directives and nulls.
        (_, Value::Object(patch)) => merge_maps(def, path, Map::new(), patch).map(Value::Object),
        (Some(Value::Array(old)), Value::Array(patch)) => {
            merge_lists(def, path, old, patch).map(Value::Array)
        }
        (_, Value::Array(patch)) => {
            // Nothing to merge with: taken as it is, duplicates included, but for directives.
            let items = patch.iter().filter(|item| item.get(PATCH).is_none());
            items
                .map(|item| merge_values(def, path, None, item))
                .collect::<Result<_, _>>()
                .map(Value::Array)
        }
        (_, other) => Ok(other.clone()),
    }
}

fn merge_lists(
    def: &ResourceDef,
    path: &str,
    old: Vec<Value>,
    patch: &[Value],
) -> Result<Vec<Value>, String> {
    let rule = rule(def, path);
    match rule {
        Merge::Atomic => Ok(patch.to_vec()),
        Merge::Set => {
            let mut all = old.clone();
            for value in patch {
                if !all.contains(value) {
                    all.push(value.clone());
                }
            }
            Ok(arrange(all, patch, &old, rule))
        }
        Merge::Key(key, _) => merge_keyed(def, path, old, patch, key),
    }
}

fn merge_keyed(
    def: &ResourceDef,
    path: &str,
    mut old: Vec<Value>,
    patch: &[Value],
    key: &'static str,
) -> Result<Vec<Value>, String> {
    let (mut items, mut replaced) = (Vec::new(), false);
    for item in patch {
        let Some(fields) = item.as_object() else {
            return Err(format!("expected a map in the list {path}, got {item}"));
        };
        let missing = || format!("map: {item} does not contain declared merge key: {key}");
        match fields.get(PATCH).map(|v| v.as_str().unwrap_or_default()) {
            None | Some("merge") => {
                fields.get(key).ok_or_else(missing)?;
                items.push(item.clone());
            }
            Some("delete") => {
                let id = fields.get(key).ok_or_else(missing)?;
                old.retain(|o| o.get(key) != Some(id));
            }
            Some("replace") => replaced = true,
            Some(other) => return Err(format!("unknown patch type: {other} in map: {item}")),
        }
    }
    if replaced {
        // As given, duplicates included: the only way to write two addresses of one type.
        return Ok(items);
    }
    let mut all = old.clone();
    for item in &items {
        match all.iter().position(|o| o.get(key) == item.get(key)) {
            Some(at) => {
                let current = std::mem::take(&mut all[at]);
                all[at] = merge_values(def, path, Some(current), item)?;
            }
            None => all.push(merge_values(def, path, None, item)?),
        }
    }
    Ok(arrange(all, &items, &old, Merge::Key(key, &[])))
}

/// Puts the elements that `order` names in its order, the others in that of the `live` list, and
/// lets one of the others go first only where both were in the live list and it stood before: so
/// new elements come before old ones that the patch does not name.
fn arrange(list: Vec<Value>, order: &[Value], live: &[Value], rule: Merge) -> Vec<Value> {
    let place = |list: &[Value], value: &Value| match rule {
        Merge::Key(key, _) => list.iter().position(|o| o.get(key) == value.get(key)),
        Merge::Atomic | Merge::Set => list.iter().position(|o| o == value),
    };
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        list.into_iter().partition(|v| place(order, v).is_some());
    named.sort_by_key(|v| place(order, v));
    others.sort_by_key(|v| place(live, v).unwrap_or(usize::MAX));
    let mut result = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for value in named {
        let at = place(live, &value);
        while let Some(other) =
            others.next_if(|o| at.is_some() && place(live, o).is_some_and(|p| Some(p) < at))
        {
            result.push(other);
        }
        result.push(value);
    }
    result.extend(others);
    result
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::resources;
    use super::*;

    fn patched(plural: &str, object: &Value, patch: &Value) -> Value {
        apply(resources::find("", "v1", plural).unwrap(), object, patch).unwrap()
    }

    // length: one table, and a case needs its three objects
    #[test]
    fn lists_merge_by_their_rule() {
        let cases = [
            (
                "conditions merge by type and keep other fields",
                "nodes",
                json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r"}, {"type": "Other", "status": "True"}]}}),
                json!({"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "New", "status": "True"}]}}),
                json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "r"}, {"type": "New", "status": "True"}, {"type": "Other", "status": "True"}]}}),
            ),
            (
                "addresses of one type are all merged into the first, as they are upstream",
                "nodes",
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "a"}]}}),
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "b"}, {"type": "Hostname", "address": "h"}]}}),
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "b"}, {"type": "Hostname", "address": "h"}]}}),
            ),
            (
                "a replace item replaces the whole list, duplicates of a key included",
                "nodes",
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "a"}, {"type": "ExternalIP", "address": "e"}]}}),
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "4"}, {"type": "InternalIP", "address": "6"}, {"$patch": "replace"}]}}),
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "4"}, {"type": "InternalIP", "address": "6"}]}}),
            ),
            (
                "a list that was not there is taken as it is",
                "nodes",
                json!({"status": {}}),
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "4"}, {"type": "InternalIP", "address": "6"}]}}),
                json!({"status": {"addresses": [{"type": "InternalIP", "address": "4"}, {"type": "InternalIP", "address": "6"}]}}),
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
