//! Conversions between the SDK's types and ours.

use std::{fmt::Display, ops::Deref, str::FromStr};

use aws_smithy_types::DateTime;
use jiff::Timestamp;

use super::error::unreadable;
use crate::api::{Action, AwsError};

/// Converts a list of strings for a request. Returns `None` if it is empty, because the query
/// protocol of Elastic Load Balancing sends an empty list as one empty member.
pub(super) fn list<T: Deref<Target = str>>(items: &[T]) -> Option<Vec<String>> {
    (!items.is_empty()).then(|| items.iter().map(|item| item.to_string()).collect())
}

/// Converts a list of structures for a request. Returns `None` if it is empty.
pub(super) fn structures<T, U>(
    items: impl IntoIterator<Item = T>,
    make: impl FnMut(T) -> U,
) -> Option<Vec<U>> {
    let made: Vec<_> = items.into_iter().map(make).collect();
    (!made.is_empty()).then_some(made)
}

/// Converts a string of an answer. Returns empty text if it is missing.
pub(super) fn text(value: Option<String>) -> Box<str> {
    value.unwrap_or_default().into()
}

/// Converts a string of an answer. Returns `None` if it is missing or empty.
pub(super) fn maybe<T: From<String>>(value: Option<String>) -> Option<T> {
    value.filter(|value| !value.is_empty()).map(T::from)
}

/// Converts a list of strings of an answer.
pub(super) fn texts<T: From<String>>(values: Option<Vec<String>>) -> Vec<T> {
    values
        .unwrap_or_default()
        .into_iter()
        .map(T::from)
        .collect()
}

/// Converts an ID, which every object of an answer must have.
pub(super) fn id<T: From<String>>(
    action: Action,
    value: Option<String>,
    what: &str,
) -> Result<T, AwsError> {
    maybe(value).ok_or_else(|| unreadable(action, format_args!("{what} is missing")))
}

/// Parses a value, such as a CIDR.
pub(super) fn parsed<T: FromStr<Err: Display>>(action: Action, value: &str) -> Result<T, AwsError> {
    value
        .parse()
        .map_err(|error| unreadable(action, format_args!("{value:?}: {error}")))
}

/// Converts the token of the next page. EC2 sometimes sends an empty one with the last page.
pub(super) fn token(value: Option<String>) -> Option<String> {
    value.filter(|token| !token.is_empty())
}

/// Converts a number that cannot be negative. Returns 0 if it is missing.
pub(super) fn count<T: TryFrom<i32> + Default>(value: Option<i32>) -> T {
    value
        .and_then(|value| T::try_from(value).ok())
        .unwrap_or_default()
}

/// Converts a time.
pub(super) fn time(value: Option<DateTime>) -> Option<Timestamp> {
    let value = value?;
    Timestamp::new(value.secs(), i32::try_from(value.subsec_nanos()).ok()?).ok()
}
