//! Label and field selectors of list, watch and deletecollection.

use std::fmt;

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
    /// 400, as the real server gives it, for malformed selectors and for fields that cannot be
    /// selected on.
    pub(crate) fn parse(
        def: &ResourceDef,
        labels: Option<&str>,
        fields: Option<&str>,
    ) -> Result<Self, ApiError> {
        let mut selector = Self::default();
        for part in split_outside_parentheses(labels.unwrap_or_default()) {
            selector.labels.push(parse_requirement(part)?);
        }
        let fields = split_unescaped(fields.unwrap_or_default());
        for part in fields.into_iter().filter(|p| !p.is_empty()) {
            selector.fields.push(parse_field(def, part)?);
        }
        Ok(selector)
    }

    /// Returns the two query parameters that say this.
    pub(crate) fn texts(&self) -> (String, String) {
        let labels: Vec<String> = self.labels.iter().map(ToString::to_string).collect();
        let fields: Vec<String> = self.fields.iter().map(ToString::to_string).collect();
        (labels.join(","), fields.join(","))
    }

    /// Returns true if every object is selected.
    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Also requires this name.
    #[must_use]
    pub(crate) fn and_name(mut self, name: &str) -> Self {
        self.fields.push(FieldRequirement {
            field: "metadata.name".into(),
            value: name.into(),
            negated: false,
        });
        self
    }

    /// Returns true if `object` is selected.
    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.labels.iter().all(|r| r.matches(object))
            && self.fields.iter().all(|f| f.matches(object))
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
            field => object
                .fields
                .iter()
                .find(|(label, _)| *label == field)
                .map_or("", |(_, v)| v.as_str()),
        };
        (value == self.value) != self.negated
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::In(key, values) => write!(f, "{key} in ({})", values.join(",")),
            Self::NotIn(key, values) => write!(f, "{key} notin ({})", values.join(",")),
            Self::Exists(key) => f.write_str(key),
            Self::Absent(key) => write!(f, "!{key}"),
        }
    }
}

impl fmt::Display for FieldRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operator = if self.negated { "!=" } else { "=" };
        write!(f, "{}{operator}", self.field)?;
        for c in self.value.chars() {
            if matches!(c, '\\' | ',' | '=') {
                f.write_str("\\")?;
            }
            write!(f, "{c}")?;
        }
        Ok(())
    }
}

fn parse_field(def: &ResourceDef, part: &str) -> Result<FieldRequirement, ApiError> {
    let Some((field, value, negated)) = split_at_operator(part) else {
        return Err(ApiError::bad_request(format!(
            "invalid selector: '{part}'; can't understand '{part}'"
        )));
    };
    let known = ["metadata.name", "metadata.namespace"].contains(&field)
        || selectable(def).iter().any(|(label, _)| *label == field);
    if !known {
        // The core group says it in its own words.
        let message = match def.group {
            "" | "events.k8s.io" => format!("field label not supported: {field}"),
            _ => {
                format!(
                    "\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                )
            }
        };
        return Err(ApiError::bad_request(message));
    }
    Ok(FieldRequirement { field: field.into(), value: unescaped(value)?, negated })
}

/// Splits at commas that no backslash stands before.
fn split_unescaped(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        if c == ',' && !escaped {
            parts.push(&text[start..at]);
            start = at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    parts.push(&text[start..]);
    parts
}

/// Splits at the first operator that no backslash stands before; whether it negates.
fn split_at_operator(part: &str) -> Option<(&str, &str, bool)> {
    let mut escaped = false;
    for (at, c) in part.char_indices() {
        if !escaped {
            for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
                if let Some(value) = part[at..].strip_prefix(operator) {
                    return Some((&part[..at], value, negated));
                }
            }
        }
        escaped = c == '\\' && !escaped;
    }
    None
}

/// Reads a field's value, in which backslash, comma and equals sign stand behind a backslash.
fn unescaped(text: &str) -> Result<String, ApiError> {
    let mut value = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                Some(c @ ('\\' | ',' | '=')) => value.push(c),
                other => {
                    let sequence: String = std::iter::once('\\').chain(other).collect();
                    let message =
                        format!("invalid field selector: invalid escape sequence: {sequence}");
                    return Err(ApiError::bad_request(message));
                }
            },
            ',' | '=' => {
                return Err(ApiError::bad_request(format!(
                    "invalid field selector: unescaped character in value: {c}"
                )));
            }
            c => value.push(c),
        }
    }
    Ok(value)
}

fn parse_requirement(part: &str) -> Result<Requirement, ApiError> {
    let malformed = |found: &str, expected: &str| {
        ApiError::bad_request(format!(
            "unable to parse requirement: found '{found}', expected: {expected}"
        ))
    };
    let key =
        |text: &str| checked_key(text.trim()).ok_or_else(|| malformed(text.trim(), "identifier"));
    if let Some(absent) = part.strip_prefix('!') {
        return Ok(Requirement::Absent(key(absent)?));
    }
    if let Some((head, values)) = part.split_once('(') {
        let values = values
            .strip_suffix(')')
            .ok_or_else(|| malformed("", "',' or ')'"))?;
        let value = |text: &str| match text.trim() {
            "" => Ok(String::new()),
            text => key(text),
        };
        let values = values.split(',').map(value).collect::<Result<_, _>>()?;
        let (name, operator) = head
            .trim()
            .rsplit_once(char::is_whitespace)
            .unwrap_or((head, ""));
        return match operator {
            "in" => Ok(Requirement::In(key(name)?, values)),
            "notin" => Ok(Requirement::NotIn(key(name)?, values)),
            other => Err(malformed(other, OPERATORS)),
        };
    }
    let value = |text: &str| match text.trim() {
        "" => Ok(String::new()),
        text => key(text.strip_prefix('=').map_or(text, |_| "=")),
    };
    if let Some((name, text)) = part.split_once("!=") {
        return Ok(Requirement::NotIn(key(name)?, vec![value(text)?]));
    }
    if let Some((name, text)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Requirement::In(key(name)?, vec![value(text)?]));
    }
    match part.split_once(char::is_whitespace) {
        Some((_, rest)) => Err(malformed(rest.trim(), OPERATORS)),
        None => Ok(Requirement::Exists(key(part)?)),
    }
}

/// Operators that may follow a key.
const OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

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
    parts
        .into_iter()
        .map(str::trim)
        .filter(|p| !p.is_empty())
        .collect()
}
