//! What fields each served type has: for `OpenAPI`, for field validation and for strategic merge
//! patches.

mod check;
pub(super) mod types;

use super::resources::ResourceDef;
pub use check::{Checked, check};

/// An object type of the API.
#[derive(Debug)]
pub struct Type {
    /// Name in the `OpenAPI` documents.
    pub name: &'static str,
    /// Its fields, by name.
    pub fields: &'static [Field],
}

/// A field of a [`Type`].
#[derive(Debug)]
pub struct Field {
    /// Name in JSON.
    pub name: &'static str,
    /// Number in protobuf messages; 0 for fields that travel in the envelope.
    pub number: u32,
    /// Type of the field.
    pub ty: Ty,
    /// True if the documents call it required; the server itself checks that in validation.
    pub required: bool,
}

/// Type of a field.
#[derive(Debug)]
pub enum Ty {
    /// A string.
    Text,
    /// Bytes, base64 in JSON.
    Bytes,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// `true` or `false`.
    Bool,
    /// An RFC 3339 time, whole seconds.
    Time,
    /// An RFC 3339 time with microseconds.
    MicroTime,
    /// An amount such as `500Mi` or `4`.
    Quantity,
    /// A port number or name.
    IntOrString,
    /// An object whose fields are not checked.
    Any,
    /// Text keys, values of one type.
    Map(&'static Ty),
    /// A list.
    List(&'static Ty, Merge),
    /// An object of a known type.
    Object(&'static Type),
}

/// Treatment of a list by a strategic merge patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// The patch replaces it.
    Atomic,
    /// The patch adds values to it.
    Set,
    /// The patch merges items by the first name; the second lists the fields that make an item
    /// unique.
    Key(&'static str, &'static [&'static str]),
}

impl Type {
    /// Returns the field of that name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Returns the field of that number in protobuf messages.
    pub fn numbered(&self, number: u32) -> Option<&'static Field> {
        self.fields
            .iter()
            .find(|field| field.number == number && number != 0)
    }

    /// Returns the last part of the name, as Go calls the type.
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or_default()
    }
}

/// Returns the type of a resource's objects.
pub fn type_of(def: &ResourceDef) -> Option<&'static Type> {
    find(def.group, def.version, def.kind)
}

/// Returns the type of a group, version and kind. Options of a deletion are the same in every
/// group.
pub fn find(group: &str, version: &str, kind: &str) -> Option<&'static Type> {
    if kind == "DeleteOptions" {
        return Some(&types::DELETE_OPTIONS);
    }
    let package = match group.split('.').next() {
        None | Some("") => "core",
        Some(first) => first,
    };
    let name = format!("io.k8s.api.{package}.{version}.{kind}");
    types::TYPES.iter().find(|t| t.name == name).copied()
}

/// Returns how a strategic merge patch treats the list at `path` (field names from the root; list
/// items and map entries add no step). None if there is no list.
pub fn merge_rule(def: &ResourceDef, path: &[&str]) -> Option<Merge> {
    let (last, parents) = path.split_last()?;
    let mut current = type_of(def)?;
    for name in parents {
        current = match current.field(name)?.ty {
            Ty::Object(inner) | Ty::List(&Ty::Object(inner), _) | Ty::Map(&Ty::Object(inner)) => {
                inner
            }
            _ => return None,
        };
    }
    match current.field(last)?.ty {
        Ty::List(_, merge) => Some(merge),
        _ => None,
    }
}
