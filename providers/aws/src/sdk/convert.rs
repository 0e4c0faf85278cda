//! Conversions between the SDK's types and ours.

use std::{fmt::Display, ops::Deref, str::FromStr};

use aws_smithy_types::DateTime;
use jiff::Timestamp;

use super::error::unreadable;
use crate::api::{Action, AwsError};

/// Converts a list of strings for a request. Returns `None` if it is empty, because the query
/// protocol of Elastic Load Balancing sends an empty list as one empty member.
pub(super) fn non_empty_list<T: Deref<Target = str>>(items: &[T]) -> Option<Vec<String>> {
    (!items.is_empty()).then(|| items.iter().map(|item| item.to_string()).collect())
}

/// Converts a list of structures for a request. Returns `None` if it is empty.
pub(super) fn non_empty_structures<T, U>(
    items: impl IntoIterator<Item = T>,
    convert: impl FnMut(T) -> U,
) -> Option<Vec<U>> {
    let structures: Vec<_> = items.into_iter().map(convert).collect();
    (!structures.is_empty()).then_some(structures)
}

/// Converts a string of an answer. Returns an empty string if it is missing.
pub(super) fn text_or_empty(value: Option<String>) -> Box<str> {
    value.unwrap_or_default().into()
}

/// Converts a string of an answer. Returns `None` if it is missing or empty: EC2 sometimes sends an
/// empty page token with the last page.
pub(super) fn non_empty<T: From<String>>(value: Option<String>) -> Option<T> {
    value.filter(|value| !value.is_empty()).map(T::from)
}

/// Converts a list of strings of an answer. Returns an empty list if it is missing.
pub(super) fn texts_or_empty<T: From<String>>(values: Option<Vec<String>>) -> Vec<T> {
    values
        .unwrap_or_default()
        .into_iter()
        .map(T::from)
        .collect()
}

/// Converts a string that every object of an answer must have, such as its ID.
pub(super) fn required<T: From<String>>(
    action: Action,
    value: Option<String>,
    what: &str,
) -> Result<T, AwsError> {
    non_empty(value).ok_or_else(|| unreadable(action, format_args!("{what} is missing")))
}

/// Parses a value, such as a CIDR.
pub(super) fn parsed<T: FromStr<Err: Display>>(action: Action, value: &str) -> Result<T, AwsError> {
    value
        .parse()
        .map_err(|error| unreadable(action, format_args!("{value:?}: {error}")))
}

/// Converts a number that cannot be negative. Returns 0 if it is missing.
pub(super) fn count_or_zero<T: TryFrom<i32> + Default>(value: Option<i32>) -> T {
    value
        .and_then(|value| T::try_from(value).ok())
        .unwrap_or_default()
}

/// Converts a time.
pub(super) fn time(value: Option<DateTime>) -> Option<Timestamp> {
    let value = value?;
    Timestamp::new(value.secs(), i32::try_from(value.subsec_nanos()).ok()?).ok()
}
