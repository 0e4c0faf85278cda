//! Filters and pages of EC2 and Elastic Load Balancing.

use super::error::{ApiResult, refuse};
use crate::api::{Filter, Page, Tags};

/// Maximum number of values of one filter.
const MOST_VALUES: usize = 200;

/// Validated filters of a request. All have to match, each with one of its values.
pub(super) struct Filters<'a>(&'a [Filter]);

impl<'a> Filters<'a> {
    /// Validates filters: each name has to be a tag's or one of `known`.
    pub(super) fn new(filters: &'a [Filter], known: &[&str]) -> ApiResult<Self> {
        for filter in filters {
            let name = &*filter.name;
            if !name.starts_with("tag:") && name != "tag-key" && !known.contains(&name) {
                return refuse("InvalidParameterValue", format!("The filter '{name}' is invalid"));
            }
            if filter.values.is_empty() {
                return refuse(
                    "InvalidParameterValue",
                    format!("The filter '{name}' has no values"),
                );
            }
        }
        let values: usize = filters
            .iter()
            .map(|filter| filter.values.len())
            .max()
            .unwrap_or_default();
        if values > MOST_VALUES {
            let message = format!(
                "The maximum number of filter values specified on a single call is {MOST_VALUES}"
            );
            return refuse("FilterLimitExceeded", message);
        }
        Ok(Self(filters))
    }

    /// Returns true if an object with these tags and fields matches.
    pub(super) fn accept(&self, tags: &Tags, field: impl Fn(&str) -> Vec<String>) -> bool {
        self.0.iter().all(|filter| {
            let found: Vec<String> = match (filter.name.strip_prefix("tag:"), &*filter.name) {
                (Some(key), _) => tags.get(key).map(ToString::to_string).into_iter().collect(),
                (None, "tag-key") => tags.keys().map(ToString::to_string).collect(),
                (None, name) => field(name),
            };
            filter
                .values
                .iter()
                .any(|pattern| found.iter().any(|value| glob(pattern, value)))
        })
    }
}

/// Matches a pattern with `*` (anything) and `?` (one character); a backslash escapes the next
/// character.
pub(super) fn glob(pattern: &str, text: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => text.is_empty(),
        Some('*') => {
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.into_iter().any(|at| glob(rest.as_str(), &text[at..]))
        }
        Some('?') => {
            let mut text = text.chars();
            text.next().is_some() && glob(rest.as_str(), text.as_str())
        }
        Some(first) => {
            let literal = if first == '\\' {
                rest.next().unwrap_or('\\')
            } else {
                first
            };
            text.strip_prefix(literal)
                .is_some_and(|text| glob(rest.as_str(), text))
        }
    }
}

/// Returns a page of a list that is sorted by key. The token contains the last key of the previous
/// page, so that pages are consistent even if the list changes in between.
pub(super) fn page<T>(
    items: Vec<(String, T)>,
    token: Option<&str>,
    size: usize,
    bad: &'static str,
) -> ApiResult<Page<T>> {
    let after = match token.map(|token| token.strip_prefix("after:")) {
        Some(None) => return refuse(bad, "The token is not valid"),
        Some(Some(key)) => Some(key.to_owned()),
        None => None,
    };
    let mut rest = items
        .into_iter()
        .filter(|(key, _)| after.as_ref().is_none_or(|after| key > after))
        .peekable();
    let mut page = Page { items: Vec::new(), next: None };
    let mut last = String::new();
    while page.items.len() < size.max(1)
        && let Some((key, item)) = rest.next()
    {
        page.items.push(item);
        last = key;
    }
    page.next = rest.peek().map(|_| format!("after:{last}"));
    Ok(page)
}
