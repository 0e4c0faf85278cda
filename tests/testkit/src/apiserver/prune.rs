//! Leaves out what the typed objects of the real server would not keep: unknown fields, nulls,
//! empty lists and maps.

use serde_json::Value;

use super::resources::ResourceDef;
use super::schema::{Ty, Type, type_of};

/// Prunes an object of a known type. Metadata is tidied elsewhere; strings stay even when empty,
/// because some are pointers for which empty means something (a lease's released holder).
pub(crate) fn prune(def: &ResourceDef, object: &mut Value) {
    if let Some(ty) = type_of(def) {
        fields(ty, object);
    }
}

fn fields(ty: &'static Type, object: &mut Value) {
    let Some(map) = object.as_object_mut() else {
        return;
    };
    map.retain(|name, value| {
        let Some(field) = ty.field(name) else {
            return false;
        };
        visit(&field.ty, value);
        let empty = match (&field.ty, &*value) {
            (_, Value::Null) => true,
            (Ty::List(..), Value::Array(list)) => list.is_empty() && !field.required,
            (Ty::Map(_), Value::Object(map)) => map.is_empty() && !field.required,
            _ => false,
        };
        !empty
    });
}

fn visit(ty: &'static Ty, value: &mut Value) {
    match ty {
        Ty::Object(inner) => fields(inner, value),
        Ty::List(item, _) => value
            .as_array_mut()
            .into_iter()
            .flatten()
            .for_each(|v| visit(item, v)),
        Ty::Map(item) => value
            .as_object_mut()
            .into_iter()
            .flat_map(|m| m.values_mut())
            .for_each(|v| visit(item, v)),
        _ => {}
    }
}
