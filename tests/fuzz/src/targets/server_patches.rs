//! Patches in their three forms, as the embedded API server applies them, beside simpler ways to do
//! the same.

use ccm_testkit::apiserver::{
    parts::{apply_operation, apply_patch},
    resources::{self, ResourceDef},
};
use serde_json::{Map, Value, json};

use crate::input::Input;

/// Words of objects and patches.
pub const WORDS: &[&str] = NAMES;

const NAMES: &[&str] = &[
    "metadata",
    "spec",
    "status",
    "labels",
    "annotations",
    "finalizers",
    "taints",
    "key",
    "effect",
    "addresses",
    "type",
    "address",
    "conditions",
    "ports",
    "port",
    "protocol",
    "loadBalancer",
    "ingress",
    "ip",
    "podCIDRs",
    "uid",
    "a~/b",
];
const DIRECTIVES: &[&str] = &[
    "$patch",
    "$retainKeys",
    "$setElementOrder/finalizers",
    "$deleteFromPrimitiveList/finalizers",
    "$setElementOrder/taints",
];
const VALUES: &[&str] =
    &["", "a", "b", "Ready", "InternalIP", "TCP", "delete", "replace", "merge", "10.0.0.1"];

/// Draws objects and patches from the bytes; what is left of them is a patch by itself.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let plural = input.pick(&["nodes", "services"]);
    let def = resources::find("", "v1", plural).expect("it is served");
    let current = Value::Object(input.object(4, NAMES, VALUES));
    operations(&mut input, &current);
    merge(&mut input, def, &current);
    strategic(&mut input, def, &current);
    for media in [
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    ] {
        let _ = apply_patch(def, &current, media, data);
    }
}

/// What RFC 6902 allows the server does alike.
fn operations(input: &mut Input<'_>, current: &Value) {
    let mut places = vec![String::new()];
    gather(current, &mut String::new(), &mut places);
    let mut document = current.clone();
    for operation in input.list(5, |input| operation(input, &places)) {
        let mut plain = document.clone();
        let by_rfc = serde_json::from_value(json!([operation.clone()]))
            .ok()
            .and_then(|patch: json_patch::Patch| json_patch::patch(&mut plain, &patch).ok());
        let applied = apply_operation(&document, &operation);
        if by_rfc.is_some() {
            assert_eq!(applied.as_ref(), Some(&plain), "{operation} of {document}");
        }
        document = applied.unwrap_or(document);
    }
}

fn operation(input: &mut Input<'_>, places: &[String]) -> Value {
    let mut place = places[input.up_to(places.len() - 1)].clone();
    if input.one_in(3) {
        place.push('/');
        place += &input.word(&["-", "0", "new", "labels", "~0", "~1", "~", "00"]);
    }
    let from = &places[input.up_to(places.len() - 1)];
    let value = input.json(2, NAMES, VALUES);
    match input.pick(&["add", "remove", "replace", "test", "move", "copy", "frob"]) {
        kind @ ("move" | "copy") => json!({"op": kind, "from": from, "path": place}),
        "remove" => json!({"op": "remove", "path": place}),
        kind => json!({"op": kind, "path": place, "value": value}),
    }
}

/// All places of a document as JSON Pointers.
fn gather(value: &Value, at: &mut String, places: &mut Vec<String>) {
    let length = at.len();
    let mut visit = |name: &str, value: &Value| {
        at.push('/');
        *at += &name.replace('~', "~0").replace('/', "~1");
        places.push(at.clone());
        gather(value, at, places);
        at.truncate(length);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| visit(name, value)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(at, value)| visit(&at.to_string(), value)),
        _ => {}
    }
}

/// A merge patch does what RFC 7396 says in a few lines, and a second time nothing.
fn merge(input: &mut Input<'_>, def: &'static ResourceDef, current: &Value) {
    let patch = Value::Object(input.object(4, NAMES, VALUES));
    let apply = |to: &Value| {
        let body = patch.to_string();
        apply_patch(def, to, "application/merge-patch+json", body.as_bytes())
            .unwrap_or_else(|e| panic!("{patch}: {e}"))
    };
    let merged = apply(current);
    assert_eq!(merged, by_rfc_7396(current, &patch), "{patch} of {current}");
    assert_eq!(apply(&merged), merged, "{patch} a second time");
}

fn by_rfc_7396(current: &Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else {
        return patch.clone();
    };
    let mut merged = current.as_object().cloned().unwrap_or_default();
    for (name, value) in patch {
        if value.is_null() {
            merged.remove(name);
        } else {
            let old = merged.get(name).cloned().unwrap_or_default();
            merged.insert(name.clone(), by_rfc_7396(&old, value));
        }
    }
    Value::Object(merged)
}

/// A strategic patch without lists is a merge patch; an empty one changes nothing; one that applies
/// can be read by the same rules again.
fn strategic(input: &mut Input<'_>, def: &'static ResourceDef, current: &Value) {
    const MEDIA: &str = "application/strategic-merge-patch+json";
    assert_eq!(apply_patch(def, current, MEDIA, b"{}").as_ref(), Ok(current));
    let names: Vec<&str> = NAMES.iter().chain(DIRECTIVES).copied().collect();
    let with_lists = Value::Object(input.object(4, &names, VALUES));
    let _ = apply_patch(def, current, MEDIA, with_lists.to_string().as_bytes());
    let mut plain = with_lists;
    drop_lists_and_directives(&mut plain);
    let patched = apply_patch(def, current, MEDIA, plain.to_string().as_bytes());
    assert_eq!(patched, Ok(by_rfc_7396(current, &plain)), "{plain} of {current}");
}

fn drop_lists_and_directives(value: &mut Value) {
    if let Value::Object(map) = value {
        let kept = std::mem::take(map)
            .into_iter()
            .filter(|(name, value)| !name.starts_with('$') && !value.is_array());
        *map = kept
            .map(|(name, mut value)| {
                drop_lists_and_directives(&mut value);
                (name, value)
            })
            .collect::<Map<_, _>>();
    }
}
