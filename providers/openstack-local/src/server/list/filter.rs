//! Filters of lists.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Query, Rules, Style};
use crate::state::ApiError;

/// Parameters that are never filters.
const COMMON: [&str; 7] =
    ["fields", "sort_key", "sort_dir", "limit", "marker", "page_reverse", "sort"];
const TAGS: [&str; 4] = ["tags", "tags-any", "not-tags", "not-tags-any"];

/// Rejects filters by unknown attributes.
pub(super) fn check(query: &Query, rules: &Rules<'_>) -> Result<(), ApiError> {
    if !rules.strict {
        return Ok(());
    }
    let tags: &[&str] = if rules.attributes.contains(&"tags") {
        &TAGS
    } else {
        &[]
    };
    let known = [&COMMON[..], tags, rules.ignored, rules.attributes];
    let names = query.pairs().map(|(name, _)| name);
    let mut unknown: Vec<&str> = names
        .filter(|name| !known.iter().any(|known| known.contains(name)))
        .collect();
    unknown.dedup();
    if unknown.is_empty() {
        return Ok(());
    }
    Err(ApiError::bad_request(
        "",
        format!("['{}'] is invalid attribute for filtering", unknown.join("', '")),
    ))
}

/// Returns whether a row passes all filters; repeated ones are alternatives.
pub(super) fn passes(query: &Query, rules: &Rules<'_>, row: &Value) -> bool {
    if rules.style == Style::Nova {
        return true;
    }
    let mut wanted: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, value) in query.pairs() {
        if rules.attributes.contains(&name)
            && !TAGS.contains(&name)
            && !rules.ignored.contains(&name)
        {
            wanted.entry(name).or_default().push(value);
        }
    }
    wanted
        .iter()
        .all(|(name, values)| matches(&row[name], values))
        && passes_tags(query, row)
}

fn passes_tags(query: &Query, row: &Value) -> bool {
    let has = |tag: &str| {
        row["tags"]
            .as_array()
            .is_some_and(|tags| tags.iter().any(|have| have == tag))
    };
    let all = |list: &str| list.split(',').filter(|tag| !tag.is_empty()).all(has);
    let any = |list: &str| list.split(',').any(has);
    // Octavia's clients repeat the parameter, Neutron's send a list: both mean one list of tags.
    query.all("tags").all(all)
        && (query.get("tags-any").is_none() || query.all("tags-any").any(any))
        && !(query.get("not-tags").is_some() && query.all("not-tags").all(all))
        && !query.all("not-tags-any").any(any)
}

fn matches(value: &Value, wanted: &[&str]) -> bool {
    match value {
        Value::Array(items) if items.iter().any(Value::is_object) => matches_object(items, wanted),
        Value::Array(items) => items
            .iter()
            .any(|item| wanted.iter().any(|wanted| equals(item, wanted))),
        value => wanted.iter().any(|wanted| equals(value, wanted)),
    }
}

/// Applies filters such as `fixed_ips=subnet_id=x`, all to the same item; a value alone means the
/// ID.
fn matches_object(items: &[Value], wanted: &[&str]) -> bool {
    let mut parts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for wanted in wanted {
        let (name, value) = wanted.split_once('=').unwrap_or(("id", wanted));
        parts.entry(name).or_default().push(value);
    }
    items.iter().any(|item| {
        parts
            .iter()
            .all(|(name, values)| match name.strip_suffix("_substr") {
                Some(name) => item[name]
                    .as_str()
                    .is_some_and(|text| values.iter().any(|value| text.contains(value))),
                None => values.iter().any(|value| equals(&item[name], value)),
            })
    })
}

fn equals(value: &Value, wanted: &str) -> bool {
    match value {
        Value::String(value) => value == wanted,
        Value::Number(value) => value.to_string() == wanted,
        Value::Bool(true) => {
            matches!(wanted.to_ascii_lowercase().as_str(), "true" | "1" | "yes" | "on" | "t")
        }
        Value::Bool(false) => {
            matches!(wanted.to_ascii_lowercase().as_str(), "false" | "0" | "no" | "off" | "f")
        }
        Value::Null => matches!(wanted, "" | "null" | "None"),
        Value::Array(_) | Value::Object(_) => false,
    }
}
