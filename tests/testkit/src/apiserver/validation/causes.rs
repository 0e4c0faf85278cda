//! Findings, in the form in which the API reports them.

use serde_json::Value;

use crate::apiserver::resources::ResourceDef;

/// One reason why an object is invalid: an entry of `details.causes` in the 422 answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Machine-readable, such as `FieldValueInvalid`.
    pub reason: &'static str,
    /// For people; does not repeat the field.
    pub message: String,
    /// Path of the field, such as `spec.ports[0].port`.
    pub field: String,
}

/// Returns the `message` of the 422 answer: `<Kind> "<name>" is invalid: <field>: <cause>`, with
/// brackets round several causes.
pub fn invalid_message(def: &ResourceDef, name: &str, causes: &[Cause]) -> String {
    let kind = if def.group.is_empty() {
        def.kind.to_owned()
    } else {
        format!("{}.{}", def.kind, def.group)
    };
    let mut messages: Vec<String> = Vec::new();
    for cause in causes {
        let message = format!("{}: {}", cause.field, cause.message);
        // The real server's aggregate leaves repetitions out.
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    match messages.as_slice() {
        [] => format!("{kind} {name:?} is invalid"),
        [one] => format!("{kind} {name:?} is invalid: {one}"),
        several => format!("{kind} {name:?} is invalid: [{}]", several.join(", ")),
    }
}

/// Collects causes.
#[derive(Default)]
pub(super) struct Causes(Vec<Cause>);

impl Causes {
    pub(super) fn done(self) -> Vec<Cause> {
        self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, reason: &'static str, head: String, detail: &str, field: &str) {
        let message = if detail.is_empty() {
            head
        } else {
            format!("{head}: {detail}")
        };
        self.0
            .push(Cause { reason, message, field: field.to_owned() });
    }

    pub(super) fn invalid(&mut self, field: &str, value: impl Into<Value>, detail: &str) {
        self.add(
            "FieldValueInvalid",
            format!("Invalid value: {}", shown(&value.into())),
            detail,
            field,
        );
    }

    /// Adds one cause for each error of the value.
    pub(super) fn invalid_each(&mut self, field: &str, value: &str, details: Vec<String>) {
        for detail in details {
            self.invalid(field, value, &detail);
        }
    }

    pub(super) fn required(&mut self, field: &str, detail: &str) {
        self.add("FieldValueRequired", "Required value".to_owned(), detail, field);
    }

    pub(super) fn forbidden(&mut self, field: &str, detail: &str) {
        self.add("FieldValueForbidden", "Forbidden".to_owned(), detail, field);
    }

    pub(super) fn duplicate(&mut self, field: &str, value: impl Into<Value>) {
        self.add(
            "FieldValueDuplicate",
            format!("Duplicate value: {}", shown(&value.into())),
            "",
            field,
        );
    }

    /// Adds a duplicate that the real server prints as its internal type, as JSON text with
    /// capitalised fields in its order.
    pub(super) fn duplicate_struct(&mut self, field: &str, shown: &str, detail: &str) {
        self.add("FieldValueDuplicate", format!("Duplicate value: {shown}"), detail, field);
    }

    pub(super) fn too_long(&mut self, field: &str, bytes: usize) {
        let detail = format!("may not be more than {bytes} bytes");
        self.add("FieldValueTooLong", "Too long".to_owned(), &detail, field);
    }

    /// Adds an unsupported value. `supported` must be sorted, as in the real server's message.
    pub(super) fn not_supported(&mut self, field: &str, value: &str, supported: &[&str]) {
        let quoted: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        self.add("FieldValueNotSupported", format!("Unsupported value: {value:?}"), &detail, field);
    }

    /// Adds a cause if the value is missing or not one of `supported`.
    pub(super) fn one_of(&mut self, field: &str, value: &str, supported: &[&str]) {
        if value.is_empty() {
            self.required(field, "");
        } else if !supported.contains(&value) {
            self.not_supported(field, value, supported);
        }
    }

    pub(super) fn immutable(&mut self, field: &str, old: &Value, new: &Value) {
        if old != new {
            self.invalid(field, new.clone(), "field is immutable");
        }
    }
}

/// Formats a value like Go, which quotes strings, prints numbers plainly and everything else as
/// JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    }
}
