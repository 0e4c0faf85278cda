//! Label and field selectors of list, watch and deletecollection.

use super::object::{Object, selectable};
use super::resources::ResourceDef;
use super::status::ApiError;

/// A parsed label and field selector; the default selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldRequirement {
    field: String,
    value: String,
    negated: bool,
}

impl Selector {
    /// Parses the two query parameters for objects of `def`.
    ///
    /// # Errors
    /// 400, as the real server gives it, for malformed selectors and for fields that cannot be selected on.
    pub(crate) fn parse(def: &ResourceDef, labels: Option<&str>, fields: Option<&str>) -> Result<Self, ApiError> {
        let mut selector = Self::default();
        for part in split_outside_parentheses(labels.unwrap_or_default()) {
            selector.labels.push(parse_requirement(part)?);
        }
        for part in fields.unwrap_or_default().split(',').map(str::trim).filter(|p| !p.is_empty()) {
            selector.fields.push(parse_field(def, part)?);
        }
        Ok(selector)
    }

    /// Whether every object is selected.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Also asks for this name.
    #[must_use]
    pub(crate) fn and_name(mut self, name: &str) -> Self {
        self.fields.push(FieldRequirement { field: "metadata.name".into(), value: name.into(), negated: false });
        self
    }

    /// Whether `object` is selected.
    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.labels.iter().all(|r| r.matches(object)) && self.fields.iter().all(|f| f.matches(object))
    }
}

impl Requirement {
    fn matches(&self, object: &Object) -> bool {
        match self {
            Self::In(key, values) => object.labels.get(key).is_some_and(|v| values.contains(v)),
            Self::NotIn(key, values) => object.labels.get(key).is_none_or(|v| !values.contains(v)),
            Self::Exists(key) => object.labels.contains_key(key),
            Self::Absent(key) => !object.labels.contains_key(key),
        }
    }
}

impl FieldRequirement {
    fn matches(&self, object: &Object) -> bool {
        let value = match self.field.as_str() {
            "metadata.name" => object.name.as_str(),
            "metadata.namespace" => object.namespace.as_str(),
            field => object.fields.iter().find(|(label, _)| *label == field).map_or("", |(_, v)| v.as_str()),
        };
        (value == self.value) != self.negated
    }
}

fn parse_field(def: &ResourceDef, part: &str) -> Result<FieldRequirement, ApiError> {
    let (field, value, negated) = if let Some((field, value)) = part.split_once("!=") {
        (field, value, true)
    } else if let Some((field, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        (field, value, false)
    } else {
        return Err(ApiError::bad_request(format!("invalid selector: '{part}'; can't understand '{part}'")));
    };
    let known = ["metadata.name", "metadata.namespace"].contains(&field)
        || selectable(def).iter().any(|(label, _)| *label == field);
    if !known {
        return Err(ApiError::bad_request(format!("field label not supported: {field}")));
    }
    // `\,`, `\=` and `\\` are the escapes of field values; names never need them.
    Ok(FieldRequirement { field: field.into(), value: value.replace('\\', ""), negated })
}

fn parse_requirement(part: &str) -> Result<Requirement, ApiError> {
    let malformed =
        || ApiError::bad_request(format!("unable to parse requirement: found '{part}', expected: identifier"));
    if let Some(key) = part.strip_prefix('!') {
        return Ok(Requirement::Absent(checked_key(key.trim()).ok_or_else(malformed)?));
    }
    if let Some((head, values)) = part.split_once('(') {
        let values = values.strip_suffix(')').ok_or_else(malformed)?;
        let values = values.split(',').map(|v| v.trim().to_owned()).collect();
        let (key, operator) = head.trim().rsplit_once(char::is_whitespace).ok_or_else(malformed)?;
        let key = checked_key(key.trim()).ok_or_else(malformed)?;
        return match operator {
            "in" => Ok(Requirement::In(key, values)),
            "notin" => Ok(Requirement::NotIn(key, values)),
            _ => Err(malformed()),
        };
    }
    if let Some((key, value)) = part.split_once("!=") {
        return Ok(Requirement::NotIn(checked_key(key.trim()).ok_or_else(malformed)?, vec![value.trim().into()]));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Requirement::In(checked_key(key.trim()).ok_or_else(malformed)?, vec![value.trim().into()]));
    }
    Ok(Requirement::Exists(checked_key(part).ok_or_else(malformed)?))
}

fn checked_key(key: &str) -> Option<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    (!key.is_empty() && key.chars().all(fits)).then(|| key.to_owned())
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().map(str::trim).filter(|p| !p.is_empty()).collect()
}
