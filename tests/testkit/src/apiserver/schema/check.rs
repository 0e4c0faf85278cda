//! Decoding as the real server does it: values of the wrong type are refused, unknown fields are
//! reported.

use base64::DecodeError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::{Ty, Type, type_of};
use crate::apiserver::resources::ResourceDef;

/// Result of decoding an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    /// The first value of a wrong type, in the words of Go's decoder. The real server answers 400
    /// with `<Kind> in version "<version>" cannot be handled as a <Kind>: ` before it.
    pub type_error: Option<String>,
    /// Paths of unknown fields, in the object's order. With `fieldValidation=Strict` the real
    /// server answers 400 with `strict decoding error: unknown field "<path>", …`; with `Warn` it
    /// sends a warning for each.
    pub unknown_fields: Vec<String>,
}

/// Checks `obj` against the fields of its type; resources without a known type pass.
pub fn check(def: &ResourceDef, obj: &Value) -> Checked {
    let mut checked = Checked::default();
    if let Some(ty) = type_of(def) {
        object(ty, obj, "", ty.short_name(), &mut checked);
    }
    checked
}

fn object(ty: &'static Type, value: &Value, path: &str, place: &str, out: &mut Checked) {
    let Value::Object(fields) = value else {
        if !value.is_null() {
            mismatch(value, place, &go_name(&Ty::Object(ty)), out);
        }
        return;
    };
    for (name, value) in fields {
        let at = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        match ty.field(name) {
            Some(field) => {
                // Go names the struct, then the path without indexes.
                let place = format!("{}.{}", ty.short_name(), without_indexes(&at));
                visit(&field.ty, value, &at, &place, out);
            }
            None => out.unknown_fields.push(at),
        }
    }
}

fn visit(ty: &'static Ty, value: &Value, path: &str, place: &str, out: &mut Checked) {
    if value.is_null() {
        return;
    }
    match (ty, value) {
        (Ty::Object(inner), _) => object(inner, value, path, place, out),
        (Ty::List(item, _), Value::Array(items)) => {
            for (index, value) in items.iter().enumerate() {
                visit(item, value, &format!("{path}[{index}]"), place, out);
            }
        }
        (Ty::Map(item), Value::Object(entries)) => {
            for (key, value) in entries {
                visit(item, value, &format!("{path}.{key}"), place, out);
            }
        }
        (Ty::Bytes, Value::String(text)) => {
            if let Some(error) = base64_error(text) {
                out.type_error.get_or_insert(error);
            }
        }
        (Ty::Time | Ty::MicroTime, Value::String(text)) => {
            if let Some(error) = time_error(text, matches!(ty, Ty::MicroTime)) {
                out.type_error.get_or_insert(error);
            }
        }
        _ if fits(ty, value) => {}
        _ => mismatch(value, place, &go_name(ty), out),
    }
}

fn fits(ty: &Ty, value: &Value) -> bool {
    match ty {
        Ty::Text => value.is_string(),
        Ty::Bool => value.is_boolean(),
        Ty::Int32 => value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
        Ty::Int64 => value.as_i64().is_some(),
        // Strings were looked at more closely before.
        Ty::Bytes | Ty::Time | Ty::MicroTime => false,
        Ty::Quantity => value.is_number() || value.is_string(),
        Ty::IntOrString => {
            value.is_string() || value.as_i64().is_some_and(|n| i32::try_from(n).is_ok())
        }
        Ty::Any | Ty::Object(_) | Ty::Map(_) => value.is_object(),
        Ty::List(..) => value.is_array(),
    }
}

/// Returns the error of Go's decoder for invalid base64.
fn base64_error(text: &str) -> Option<String> {
    let offset = match STANDARD.decode(text).err()? {
        DecodeError::InvalidByte(offset, _) => offset,
        _ => text.len() / 4 * 4,
    };
    Some(format!("illegal base64 data at input byte {offset}"))
}

/// Returns Go's error for a time that it cannot parse. Times with microseconds must have exactly
/// six digits of them.
fn time_error(text: &str, micro: bool) -> Option<String> {
    let parsed = text.parse::<jiff::Timestamp>();
    let fraction = text
        .split_once('.')
        .map_or(0, |(_, rest)| rest.chars().take_while(char::is_ascii_digit).count());
    let rest = text.get(19..).unwrap_or(text);
    let (layout, wrong, part) = match parsed {
        Ok(_) if !micro || fraction == 6 => return None,
        Ok(_) => ("2006-01-02T15:04:05.000000Z07:00", rest, ".000000"),
        Err(_) if micro => ("2006-01-02T15:04:05.000000Z07:00", text, "2006"),
        Err(_) => ("2006-01-02T15:04:05Z07:00", text, "2006"),
    };
    Some(format!("parsing time {text:?} as {layout:?}: cannot parse {wrong:?} as {part:?}"))
}

fn mismatch(value: &Value, place: &str, wanted: &str, out: &mut Checked) {
    let got = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(n) if n.is_f64() => format!("number {n}"),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
    };
    let message =
        || format!("json: cannot unmarshal {got} into Go struct field {place} of type {wanted}");
    out.type_error.get_or_insert_with(message);
}

fn without_indexes(path: &str) -> String {
    let mut depth = 0_usize;
    path.chars()
        .filter(|c| {
            depth += usize::from(*c == '[');
            let keep = depth == 0;
            depth -= usize::from(*c == ']' && depth > 0);
            keep
        })
        .collect()
}

fn go_name(ty: &Ty) -> String {
    match ty {
        Ty::Text => "string".to_owned(),
        Ty::Bytes => "[]uint8".to_owned(),
        Ty::Int32 => "int32".to_owned(),
        Ty::Int64 => "int64".to_owned(),
        Ty::Bool => "bool".to_owned(),
        Ty::Time => "v1.Time".to_owned(),
        Ty::MicroTime => "v1.MicroTime".to_owned(),
        Ty::Quantity => "resource.Quantity".to_owned(),
        Ty::IntOrString => "intstr.IntOrString".to_owned(),
        Ty::Any => "map[string]interface {}".to_owned(),
        Ty::Map(of) => format!("map[string]{}", go_name(of)),
        Ty::List(of, _) => format!("[]{}", go_name(of)),
        Ty::Object(ty) => format!("v1.{}", ty.short_name()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::apiserver::resources::{all, find};
    use crate::apiserver::schema::{Merge, merge_rule, types::TYPES};
    use crate::apiserver::test_json::any_json;

    fn checked(plural: &str, object: &Value) -> Checked {
        check(find("", "v1", plural).unwrap(), object)
    }

    #[test]
    fn every_resource_has_a_type_with_sorted_unique_fields() {
        for def in all() {
            let ty = type_of(def).unwrap_or_else(|| panic!("{}", def.qualified_name()));
            for name in ["apiVersion", "kind", "metadata"] {
                assert!(ty.field(name).is_some(), "{} has no {name}", ty.name);
            }
        }
        for ty in TYPES {
            let names: Vec<&str> = ty.fields.iter().map(|f| f.name).collect();
            assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "{}: {names:?}", ty.name);
        }
    }

    #[test]
    fn unknown_fields_are_named_by_path() {
        let service = json!({"kind": "Service", "spec": {"ports": [{"port": 1}, {"prot": 80}], "typo": 1, "selector": {"any": "x"}}, "x": {}});
        let got = checked("services", &service);
        assert_eq!(got.unknown_fields, ["spec.ports[1].prot", "spec.typo", "x"]);
        assert_eq!(got.type_error, None);
    }

    #[test]
    fn wrong_types_are_named_as_go_does() {
        let error =
            |plural: &str, object: &Value| checked(plural, object).type_error.unwrap_or_default();
        let port = json!({"spec": {"ports": [{"port": "http"}]}});
        assert_eq!(
            error("services", &port),
            "json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32"
        );
        assert_eq!(
            error("nodes", &json!({"spec": {"taints": {}}})),
            "json: cannot unmarshal object into Go struct field NodeSpec.spec.taints of type []v1.Taint"
        );
        assert_eq!(
            error("configmaps", &json!({"data": {"a": 1}})),
            "json: cannot unmarshal number into Go struct field ConfigMap.data of type string"
        );
        assert_eq!(
            error("nodes", &json!({"metadata": {"labels": null, "generation": 3}, "spec": null})),
            ""
        );
    }

    #[test]
    fn times_and_bytes_are_read_as_go_reads_them() {
        let lease = |time: &str| {
            let def = find("coordination.k8s.io", "v1", "leases").unwrap();
            check(def, &json!({"spec": {"renewTime": time}}))
                .type_error
                .unwrap_or_default()
        };
        assert_eq!(lease("2026-01-01T00:00:00.000000Z"), "");
        let layout = "2006-01-02T15:04:05.000000Z07:00";
        assert_eq!(
            lease("x"),
            format!("parsing time \"x\" as \"{layout}\": cannot parse \"x\" as \"2006\"")
        );
        let short = "2026-01-01T00:00:00Z";
        assert_eq!(
            lease(short),
            format!("parsing time \"{short}\" as \"{layout}\": cannot parse \"Z\" as \".000000\"")
        );
        let event = |time: &str| checked("events", &json!({"lastTimestamp": time})).type_error;
        assert_eq!((event(short), event("2026-01-01T00:00:00.5+01:00")), (None, None));
        assert!(
            event("today")
                .unwrap()
                .contains("as \"2006-01-02T15:04:05Z07:00\"")
        );
        let secret = |data: &str| checked("secrets", &json!({"data": {"a": data}})).type_error;
        assert_eq!(secret("eA=="), None);
        assert_eq!(secret("%%").as_deref(), Some("illegal base64 data at input byte 0"));
        assert_eq!(secret("abcde").as_deref(), Some("illegal base64 data at input byte 4"));
    }

    #[test]
    fn merge_rules_are_those_of_the_api() {
        let rule = |plural: &str, path: &[&str]| merge_rule(find("", "v1", plural).unwrap(), path);
        assert_eq!(
            rule("services", &["spec", "ports"]),
            Some(Merge::Key("port", &["port", "protocol"]))
        );
        assert_eq!(rule("nodes", &["spec", "taints"]), Some(Merge::Atomic));
        assert_eq!(rule("nodes", &["status", "addresses"]), Some(Merge::Key("type", &["type"])));
        assert_eq!(rule("nodes", &["metadata", "finalizers"]), Some(Merge::Set));
        assert_eq!(rule("nodes", &["metadata", "labels"]), None);
        assert_eq!(rule("nodes", &["status", "images", "names"]), Some(Merge::Atomic));
    }

    proptest! {
        #[test]
        fn checking_takes_any_json(object in any_json(), index in 0..all().len()) {
            check(&all()[index], &object);
        }
    }
}
