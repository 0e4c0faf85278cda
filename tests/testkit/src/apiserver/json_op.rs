//! One operation of a JSON Patch, with the liberties of the library that kube-apiserver uses.
//!
//! Seen on 1.36.3 (`gopkg.in/evanphx/json-patch.v4`): `replace` of an absent member adds it, and
//! `test` for null passes on an absent member, in both cases if the parent is there. All else is
//! RFC 6902, done by the `json-patch` crate.

use json_patch::PatchOperation;
use serde_json::Value;

/// An operation does not apply. The API gives no reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DoesNotApply;

/// Applies `operation` to `document`, which is not to be used after an error: a `move` to nowhere
/// has taken away already.
///
/// # Errors
/// The operation is none, its path does not exist, or its test fails.
pub(crate) fn apply(document: &mut Value, operation: &Value) -> Result<(), DoesNotApply> {
    let operation: PatchOperation =
        serde_json::from_value(operation.clone()).map_err(|_| DoesNotApply)?;
    let absent_member = |path: &str| {
        let parent = path.rsplit_once('/').map(|(parent, _)| parent);
        document.pointer(path).is_none()
            && parent
                .and_then(|p| document.pointer(p))
                .is_some_and(Value::is_object)
    };
    let operation = match operation {
        PatchOperation::Test(test) if test.value.is_null() && absent_member(test.path.as_str()) => {
            return Ok(());
        }
        PatchOperation::Replace(replace) if absent_member(replace.path.as_str()) => {
            PatchOperation::Add(json_patch::AddOperation {
                path: replace.path,
                value: replace.value,
            })
        }
        other => other,
    };
    json_patch::patch(document, &[operation]).map_err(|_| DoesNotApply)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn operations_take_the_real_servers_liberties() {
        let document = json!({"a": {"b": 1}, "l": [1, 2]});
        let cases = [
            (json!({"op": "test", "path": "/a/b", "value": 1}), Some(document.clone())),
            (json!({"op": "test", "path": "/a/b", "value": 2}), None),
            (json!({"op": "test", "path": "/a/c", "value": null}), Some(document.clone())),
            (json!({"op": "test", "path": "/x/c", "value": null}), None),
            (
                json!({"op": "replace", "path": "/a/c", "value": 3}),
                Some(json!({"a": {"b": 1, "c": 3}, "l": [1, 2]})),
            ),
            (json!({"op": "replace", "path": "/x/c", "value": 3}), None),
            (json!({"op": "replace", "path": "/l/2", "value": 3}), None),
            (json!({"op": "remove", "path": "/a/c"}), None),
            (json!({"op": "remove", "path": "/l/0"}), Some(json!({"a": {"b": 1}, "l": [2]}))),
            (
                json!({"op": "add", "path": "/l/-", "value": 3}),
                Some(json!({"a": {"b": 1}, "l": [1, 2, 3]})),
            ),
            (json!({"op": "add", "path": "/x/c", "value": 3}), None),
            (json!({"op": "frob", "path": "/a"}), None),
        ];
        for (operation, expected) in cases {
            let mut patched = document.clone();
            let result = apply(&mut patched, &operation);
            assert_eq!(result.is_ok().then_some(patched), expected, "{operation}");
        }
    }
}
