//! Pages of lists, and the links to other pages.

use serde_json::{Value, json};

use super::{Query, Rules, Style};
use crate::state::ApiError;

/// The requested page.
pub(super) struct PageRequest<'q> {
    /// Maximum number of rows; `None` for all.
    limit: Option<usize>,
    marker: Option<&'q str>,
    reverse: bool,
}

impl<'q> PageRequest<'q> {
    pub(super) fn read(query: &'q Query, rules: &Rules<'_>) -> Result<Self, ApiError> {
        if rules.style == Style::Keystone {
            return Ok(Self { limit: None, marker: None, reverse: false });
        }
        let given = query.get("limit").map(limit).transpose()?;
        let limit = match (given, rules.page_size) {
            // In Nova, 0 means no rows; in the others, no limit.
            (Some(0), max) if rules.style != Style::Nova => max,
            (Some(given), max) => Some(given.min(max.unwrap_or(usize::MAX))),
            (None, max) => max,
        };
        let reverse = rules.style != Style::Nova && query.flag("page_reverse");
        Ok(Self {
            limit,
            marker: query.get("marker").filter(|marker| !marker.is_empty()),
            reverse,
        })
    }
}

fn limit(text: &str) -> Result<usize, ApiError> {
    text.parse().map_err(|_| {
        ApiError::bad_request(
            "",
            format!("Limit must be an integer 0 or greater and not '{text}'."),
        )
    })
}

type Page = (Vec<Value>, Option<(String, Value)>);

/// Cuts the page out of all rows, which are sorted.
pub(super) fn cut(
    query: &Query,
    rules: &Rules<'_>,
    asked: &PageRequest<'_>,
    mut rows: Vec<Value>,
    passes: impl Fn(&Value) -> bool,
) -> Result<Page, ApiError> {
    if let Some(marker) = asked.marker {
        // The marker need not pass the filters, but must exist: otherwise the position is unknown.
        let at = rows.iter().position(|row| row["id"] == marker);
        let at =
            at.ok_or_else(|| ApiError::bad_request("", format!("marker [{marker}] not found")))?;
        if asked.reverse {
            rows.truncate(at);
        } else {
            rows.drain(..=at);
        }
    }
    rows.retain(passes);
    let full = asked
        .limit
        .is_some_and(|limit| limit > 0 && rows.len() >= limit);
    if let Some(limit) = asked.limit {
        if asked.reverse {
            rows.drain(..rows.len().saturating_sub(limit));
        } else {
            rows.truncate(limit);
        }
    }
    let links = links(query, rules, asked, &rows, full);
    Ok((rows, links))
}

fn links(
    query: &Query,
    rules: &Rules<'_>,
    asked: &PageRequest<'_>,
    rows: &[Value],
    full: bool,
) -> Option<(String, Value)> {
    let id = |row: Option<&Value>| row.and_then(|row| row["id"].as_str()).map(str::to_owned);
    let limit = asked.limit.unwrap_or_default();
    // Backwards there is always a next page: the one that the client came from.
    let next = id(rows.last()).filter(|_| full || (asked.reverse && asked.marker.is_some()));
    let next =
        next.map(|id| json!({"rel": "next", "href": query.page(rules.style, limit, &id, false)}));
    let previous = id(rows.first()).filter(|_| {
        if asked.reverse {
            full
        } else {
            asked.marker.is_some()
        }
    });
    let previous = previous.filter(|_| asked.limit.is_some() && rules.style != Style::Nova);
    let previous = previous
        .map(|id| json!({"rel": "previous", "href": query.page(rules.style, limit, &id, true)}));
    let links: Vec<Value> = next
        .filter(|_| asked.limit.is_some())
        .into_iter()
        .chain(previous)
        .collect();
    match rules.style {
        Style::Keystone => {
            let links = json!({"next": null, "previous": null, "self": query.address()});
            Some(("links".to_owned(), links))
        }
        Style::Neutron | Style::Nova if links.is_empty() => None,
        Style::Neutron | Style::Nova | Style::Octavia => {
            Some((format!("{}_links", rules.collection), links.into()))
        }
    }
}
