//! The annotations of Services. `table.rs` lists them all, and this file parses them.

mod table;

use std::{collections::BTreeMap, sync::Arc};

use ccm_core::{
    k8s::ServiceView,
    provider::{FieldError, LabelRequirement},
};

pub(super) use self::table::*;

/// Prefix of most annotations.
pub const PREFIX: &str = "loadbalancer.openstack.org/";

/// A supported annotation.
#[derive(Clone, Copy, Debug)]
pub struct Annotation {
    /// The key without [`PREFIX`], or a whole key if it contains `/`.
    pub name: &'static str,
    /// Type of the value.
    pub kind: ValueKind,
    /// Description of the default, for the documentation.
    pub default: &'static str,
    /// Description of the effect, for the documentation.
    pub effect: &'static str,
    /// Tells the documentation whether and when a change affects an existing load balancer.
    pub applies_to_existing: &'static str,
}

impl Annotation {
    /// Returns the whole key.
    pub fn key(&self) -> Box<str> {
        if self.name.contains('/') {
            self.name.into()
        } else {
            format!("{PREFIX}{}", self.name).into()
        }
    }
}

/// Returns the keys of all annotations.
pub fn keys() -> impl Iterator<Item = Box<str>> {
    ALL.iter().map(|annotation| annotation.key())
}

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Any text. An empty value replaces the configured one too.
    Text,
    /// `true` or `false`. Any other value is ignored with a notice.
    Bool,
    /// A whole number. Any other value is ignored with a notice.
    Integer,
}

/// Problems that were found while annotations were read.
pub(super) struct AnnotationFindings {
    pub(super) errors: Vec<FieldError>,
    /// Descriptions of the values that were ignored.
    pub(super) ignored: Vec<String>,
}

/// Reads the annotations of one Service one by one, and collects errors.
pub(super) struct AnnotationReader<'a> {
    annotations: &'a BTreeMap<Arc<str>, Arc<str>>,
    errors: Vec<FieldError>,
    ignored: Vec<String>,
}

impl<'a> AnnotationReader<'a> {
    pub(super) fn new(service: &'a ServiceView) -> Self {
        Self {
            annotations: &service.annotations,
            errors: Vec::new(),
            ignored: Vec::new(),
        }
    }

    /// Returns the value, even if it is empty, or `None` if the annotation is absent.
    pub(super) fn given(&self, annotation: &Annotation) -> Option<&'a str> {
        self.annotations
            .get(&*annotation.key())
            .map(|text| text.trim())
    }

    /// Returns the value, or `default` if the annotation is absent.
    pub(super) fn text<'b>(&self, annotation: &Annotation, default: &'b str) -> &'b str
    where
        'a: 'b,
    {
        self.given(annotation).unwrap_or(default)
    }

    /// Returns a boolean. For anything but `true` and `false`, records that it was ignored and
    /// returns the default.
    pub(super) fn boolean(&mut self, annotation: &Annotation, default: bool) -> bool {
        match self.given(annotation) {
            None => default,
            Some("true") => true,
            Some("false") => false,
            Some(other) => {
                self.ignore(annotation, other, &default.to_string());
                default
            }
        }
    }

    /// Returns a number. For anything else, records that it was ignored and returns the default.
    pub(super) fn integer(&mut self, annotation: &Annotation, default: i32) -> i32 {
        let Some(text) = self.given(annotation) else {
            return default;
        };
        text.parse().unwrap_or_else(|_| {
            self.ignore(annotation, text, &default.to_string());
            default
        })
    }

    fn ignore(&mut self, annotation: &Annotation, text: &str, default: &str) {
        let short: String = text.chars().take(40).collect();
        self.ignored
            .push(format!("{}: {short:?} is not understood, using {default}", annotation.key()));
    }

    /// Records an error in an annotation.
    pub(super) fn invalid_value(&mut self, annotation: &Annotation, message: impl Into<Box<str>>) {
        self.errors.push(FieldError::new(annotation.key(), message));
    }

    /// Records an error in any field.
    pub(super) fn add_error(&mut self, field: &str, message: impl Into<Box<str>>) {
        self.errors.push(FieldError::new(field, message));
    }

    /// Records errors.
    pub(super) fn add_errors(&mut self, errors: impl IntoIterator<Item = FieldError>) {
        self.errors.extend(errors);
    }

    /// Returns the problems of all annotations that were read.
    pub(super) fn finish(self) -> AnnotationFindings {
        AnnotationFindings { errors: self.errors, ignored: self.ignored }
    }
}

/// Finds annotations with our prefix that are not supported.
pub(super) fn find_unknown(service: &ServiceView) -> Vec<&str> {
    service
        .annotations
        .keys()
        .map(|key| &**key)
        .filter(|key| key.starts_with(PREFIX) && !is_supported(key))
        .collect()
}

fn is_supported(key: &str) -> bool {
    ALL.iter().any(|annotation| *annotation.key() == *key)
}

/// Parses a list such as `key=value,key`. A key alone has an empty value, spaces around entries are
/// ignored, and a value may contain `=`.
pub(super) fn parse_pairs(text: &str) -> BTreeMap<Box<str>, Box<str>> {
    let mut pairs = BTreeMap::new();
    for entry in text.split(',').map(str::trim) {
        if let Some((key, value)) = entry.split_once('=') {
            pairs.insert(key.trim().into(), value.trim().into());
        } else if !entry.is_empty() {
            pairs.insert(entry.into(), Box::default());
        }
    }
    pairs
}

/// Parses a node selector. Members are the nodes that meet all requirements.
pub(super) fn parse_selector(text: &str) -> Vec<LabelRequirement> {
    parse_pairs(text)
        .into_iter()
        .map(|(key, value)| match &*value {
            "" => LabelRequirement::Exists(key),
            _ => LabelRequirement::Equals(key, value),
        })
        .collect()
}

#[cfg(test)]
mod tests;
