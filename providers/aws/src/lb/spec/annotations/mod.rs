//! The annotations of Services: one table (`table.rs`), which defines how they are parsed and
//! generates the reference page (`docs/reference/aws-annotations.md`).

mod parse;
mod reference;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ccm_core::{k8s::ServiceView, provider::FieldError};

use crate::config::AnnotationDialect;

pub use self::reference::reference;
pub(in crate::lb) use self::{
    parse::{boolean, map},
    table::*,
};

/// Prefix of most annotations.
pub const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";

/// The end of an error about something that only the dialect `extended` supports.
pub(super) const HINT: &str = "; the annotation \
     service.beta.kubernetes.io/aws-load-balancer-annotation-dialect: extended turns it on";

/// A row of the table: one annotation, or a family with one key per port.
#[derive(Clone, Copy, Debug)]
pub(in crate::lb) struct Annotation {
    /// The key after [`PREFIX`], or a whole key. One that ends in `.` is followed by a port.
    pub(in crate::lb) name: &'static str,
    /// The placeholder for the port at the end of the key, if there is one.
    port: &'static str,
    section: Section,
    kind: ValueKind,
    /// The default, as shown on the page.
    default: &'static str,
    unit: &'static str,
    effect: &'static str,
    from: Origin,
    /// How the dialect `upstream` reads it, as shown on the page; empty if in the same way.
    upstream: &'static str,
    /// Errors besides those of the kind.
    errors: &'static [&'static str],
    /// The reason for which the annotation has no effect here; `None` if it has one.
    without_effect: Option<&'static str>,
}

impl Annotation {
    /// Returns the whole key, or its prefix if a port follows.
    pub(in crate::lb) fn key(&self) -> Box<str> {
        if self.name.contains('/') {
            self.name.into()
        } else {
            format!("{PREFIX}{}", self.name).into()
        }
    }

    /// Returns the possible validation errors, in the words of the event. Single letters are
    /// placeholders.
    pub(in crate::lb) fn error_texts(&self) -> Vec<&'static str> {
        let of_kind = match self.kind {
            ValueKind::Bool => Some("error parsing service annotation: k=v"),
            ValueKind::Integer => Some("failed to parse annotation k=v"),
            ValueKind::Map => Some("failed to parse stringMap annotation, k: v"),
            ValueKind::Text
            | ValueKind::Flag
            | ValueKind::List
            | ValueKind::KeyValues
            | ValueKind::OneOf(_) => None,
        };
        let of_bounds = (self.kind == ValueKind::Integer).then_some("n is not between a and b");
        of_kind
            .into_iter()
            .chain(of_bounds)
            .chain(self.errors.iter().copied())
            .collect()
    }

    /// Returns true if cloud-provider-aws does not read the annotation on Network Load Balancers.
    fn is_unknown_upstream(&self) -> bool {
        self.from == Origin::Lbc
    }

    /// Returns true if the annotation has an effect only in the dialect `extended`.
    fn is_dormant_upstream(&self) -> bool {
        self.without_effect.is_none() && (self.is_unknown_upstream() || self.upstream == NOT_SENT)
    }

    /// Returns true if a key belongs to this row.
    fn is(&self, key: &str) -> bool {
        let name = if self.name.contains('/') {
            Some(key)
        } else {
            key.strip_prefix(PREFIX)
        };
        match name {
            Some(name) if self.port.is_empty() => name == self.name,
            Some(name) => name.starts_with(self.name),
            None => false,
        }
    }
}

/// The text for an annotation that upstream parses and never sends to AWS.
const NOT_SENT: &str = "must be a number, and is never sent";

/// Section of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    General,
    Addresses,
    Security,
    Listeners,
    Targets,
    Health,
    Attributes,
    WithoutEffect,
}

/// The controllers that define an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// kubernetes/cloud-provider-aws, for classic load balancers only.
    Classic,
    /// The AWS load balancer controller.
    Lbc,
    /// Both the AWS load balancer controller and kubernetes/cloud-provider-aws for network load
    /// balancers.
    Both,
    /// This provider.
    Ours,
}

/// The format of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    Text,
    Bool,
    /// True for anything but an empty value and `false`.
    Flag,
    Integer,
    List,
    KeyValues,
    Map,
    OneOf(&'static [&'static str]),
}

/// An annotation with the function that parses its value.
pub(in crate::lb) struct AnnotationKey<T: 'static> {
    pub(in crate::lb) definition: Annotation,
    parse: Parse<T>,
}

/// Parses the value of a key; the error says what is wrong with it.
type Parse<T> = fn(&str, &str) -> Result<T, String>;

/// Returns the keys of all annotations; for those that end in a port or similar, the prefix.
pub fn keys() -> impl Iterator<Item = Box<str>> {
    ALL.iter().map(|row| row.key())
}

/// Parses the annotations of one Service, one by one, and collects validation errors.
pub(in crate::lb) struct AnnotationReader<'a> {
    annotations: &'a BTreeMap<Arc<str>, Arc<str>>,
    dialect: AnnotationDialect,
    errors: Vec<FieldError>,
}

impl<'a> AnnotationReader<'a> {
    pub(in crate::lb) fn new(service: &'a ServiceView, dialect: AnnotationDialect) -> Self {
        Self {
            annotations: &service.annotations,
            dialect,
            errors: Vec::new(),
        }
    }

    /// Returns the value of an annotation; `None` if it is absent, empty, unknown in the dialect, or
    /// invalid, which adds an error.
    pub(in crate::lb) fn get<T>(&mut self, key: &AnnotationKey<T>) -> Option<T> {
        match self.parse(key)? {
            Ok(value) => Some(value),
            Err(message) => {
                self.invalid_value(&key.definition, message);
                None
            }
        }
    }

    /// Parses an annotation, and adds no error if it is invalid. Returns `None` if it is absent,
    /// empty, or unknown in the dialect.
    pub(in crate::lb) fn parse<T>(&self, key: &AnnotationKey<T>) -> Option<Result<T, String>> {
        let text = self.text(&key.definition).filter(|text| !text.is_empty())?;
        Some((key.parse)(&key.definition.key(), text))
    }

    /// Returns the raw value, which may be empty; `None` if the annotation is absent or unknown in
    /// the dialect.
    pub(in crate::lb) fn text(&self, annotation: &Annotation) -> Option<&'a str> {
        if self.is_unknown(annotation) {
            return None;
        }
        self.annotations.get(&*annotation.key()).map(|text| &**text)
    }

    fn is_unknown(&self, annotation: &Annotation) -> bool {
        self.dialect == AnnotationDialect::Upstream && annotation.is_unknown_upstream()
    }

    /// Returns the values of a key that ends in a port, by that end; empty and invalid ones are
    /// left out.
    pub(in crate::lb) fn each<T>(&mut self, key: &AnnotationKey<T>) -> Vec<(&'a str, T)> {
        if self.is_unknown(&key.definition) {
            return Vec::new();
        }
        let start = key.definition.key();
        let mut found = Vec::new();
        let from = (std::ops::Bound::Included(&*start), std::ops::Bound::Unbounded);
        for (name, text) in self
            .annotations
            .range::<str, _>(from)
            .take_while(|(name, _)| name.starts_with(&*start))
        {
            if text.is_empty() {
                continue;
            }
            match (key.parse)(name, text) {
                Ok(value) => found.push((&name[start.len()..], value)),
                Err(message) => self.errors.push(FieldError::new(&**name, message)),
            }
        }
        found
    }

    /// Adds an error for an annotation.
    pub(in crate::lb) fn invalid_value(
        &mut self,
        annotation: &Annotation,
        message: impl Into<Box<str>>,
    ) {
        self.errors.push(FieldError::new(annotation.key(), message));
    }

    /// Adds an error for any field.
    pub(in crate::lb) fn add_error(
        &mut self,
        field: impl Into<Box<str>>,
        message: impl Into<Box<str>>,
    ) {
        self.errors.push(FieldError::new(field, message));
    }

    /// Adds errors.
    pub(in crate::lb) fn add_errors(&mut self, errors: impl IntoIterator<Item = FieldError>) {
        self.errors.extend(errors);
    }

    /// Returns all errors, without duplicates.
    pub(in crate::lb) fn finish(self) -> Vec<FieldError> {
        let mut errors = self.errors;
        let mut texts = BTreeSet::new();
        errors.retain(|error| texts.insert((error.field.clone(), error.message.clone())));
        errors
    }
}

/// Lists the keys of a Service's annotations that may have an effect only in the dialect `extended`.
pub(in crate::lb) fn possibly_dormant(service: &ServiceView) -> Vec<Arc<str>> {
    let mut keys = Vec::new();
    for (key, value) in &service.annotations {
        let row = ALL.iter().find(|row| row.is(key));
        if !value.is_empty() && row.is_some_and(|row| row.is_dormant_upstream()) {
            keys.push(key.clone());
        }
    }
    keys
}

/// Lists annotations without effect, each with the reason: rows that say so, and keys with our
/// prefix that are in no row.
pub(in crate::lb) fn ignored_annotations(service: &ServiceView) -> Vec<(&str, &'static str)> {
    let mut ignored = Vec::new();
    for key in service.annotations.keys() {
        let reason = match ALL.iter().find(|row| row.is(key)) {
            Some(row) => row.without_effect,
            None if key.starts_with(PREFIX) => Some("unknown"),
            None => None,
        };
        if let Some(reason) = reason {
            ignored.push((&**key, reason));
        }
    }
    ignored
}

#[cfg(test)]
mod tests;
