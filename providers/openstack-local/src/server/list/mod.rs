//! Lists: filters, tags, order, pages, fields.
//!
//! A service passes all its rows as they are shown, and [`Rules`]; [`list`] returns the body of the
//! answer.

mod filter;
mod page;
mod query;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use serde_json::{Map, Value};

pub use self::query::Query;
use super::Settings;
use crate::state::ApiError;

/// How a service lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Filters by attribute; `<collection>_links` when there is another page.
    Neutron,
    /// Filters by attribute; `<collection>_links` always.
    Octavia,
    /// The service has filtered already; `<collection>_links` when there is another page. Latest
    /// first.
    Nova,
    /// Filters by attribute, and ignores others; never pages; `links`.
    Keystone,
}

/// How one collection is listed.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Key of the rows, such as `ports`.
    pub collection: &'a str,
    /// How the service lists.
    pub style: Style,
    /// Attributes that may be filtered and sorted by, as they are in the rows.
    pub attributes: &'a [&'a str],
    /// Attributes that are in the rows only for filtering, and are not shown.
    pub hidden: &'a [&'a str],
    /// Parameters that are not filters, and have no effect here.
    pub ignored: &'a [&'a str],
    /// True when a filter by another attribute is rejected; otherwise it is ignored.
    pub strict: bool,
    /// Default order: attribute, and true for descending. The ID decides between equal rows.
    pub order: &'a [(&'a str, bool)],
    /// Maximum number of rows on a page; `None` for all.
    pub page_size: Option<usize>,
}

impl<'a> Rules<'a> {
    /// Lists as Neutron does: in pages only when requested, or when the settings say so.
    pub fn neutron(collection: &'a str, attributes: &'a [&'a str], settings: &Settings) -> Self {
        Self {
            page_size: settings.page_size,
            ..Self::new(collection, Style::Neutron, attributes)
        }
    }

    /// Lists as Octavia does: 1,000 rows to a page, oldest first.
    pub fn octavia(collection: &'a str, attributes: &'a [&'a str], settings: &Settings) -> Self {
        let page_size = Some(settings.page_size.unwrap_or(1000));
        Self {
            page_size,
            order: &[("created_at", false)],
            ..Self::new(collection, Style::Octavia, attributes)
        }
    }

    /// Lists as Nova does: 1,000 rows to a page. `attributes` are those that may be sorted by.
    pub fn nova(collection: &'a str, attributes: &'a [&'a str], settings: &Settings) -> Self {
        let page_size = Some(settings.page_size.unwrap_or(1000));
        Self {
            page_size,
            strict: false,
            ..Self::new(collection, Style::Nova, attributes)
        }
    }

    /// Lists as Keystone does.
    pub fn keystone(collection: &'a str, attributes: &'a [&'a str]) -> Self {
        Self {
            strict: false,
            ..Self::new(collection, Style::Keystone, attributes)
        }
    }

    fn new(collection: &'a str, style: Style, attributes: &'a [&'a str]) -> Self {
        Self {
            collection,
            style,
            attributes,
            hidden: &[],
            ignored: &[],
            strict: true,
            order: &[],
            page_size: None,
        }
    }
}

/// Returns the body of the answer: the requested page of the rows that pass the filters, in the
/// requested order.
///
/// Each row is an object with an `id`.
///
/// # Errors
/// 400 for a filter or an order by an unknown attribute, a limit that is not a number, or a marker
/// that is not a row.
pub fn list(query: &Query, rules: &Rules<'_>, mut rows: Vec<Value>) -> Result<Value, ApiError> {
    filter::check(query, rules)?;
    let order = order(query, rules)?;
    rows.sort_by(|a, b| compare(a, b, &order));
    let asked = page::PageRequest::read(query, rules)?;
    let (rows, links) =
        page::cut(query, rules, &asked, rows, |row| filter::passes(query, rules, row))?;
    let rows = rows
        .into_iter()
        .map(|row| show(query, rules, row))
        .collect();
    let mut body = Map::new();
    body.insert(rules.collection.to_owned(), Value::Array(rows));
    if let Some((key, links)) = links {
        body.insert(key, links);
    }
    Ok(Value::Object(body))
}

/// Returns the attributes to order by, each with true for descending.
fn order<'q>(query: &'q Query, rules: &'q Rules<'_>) -> Result<Vec<(&'q str, bool)>, ApiError> {
    let mut order: Vec<(&str, bool)> = Vec::new();
    if rules.style == Style::Keystone {
        return Ok(vec![("name", false)]);
    }
    for pair in query
        .all("sort")
        .filter(|_| rules.style == Style::Octavia)
        .flat_map(|sort| sort.split(','))
    {
        let (key, direction) = pair.split_once(':').unwrap_or((pair, "asc"));
        order.push((key, falls(direction)?));
    }
    let mut directions = query.all("sort_dir");
    for key in query.all("sort_key") {
        let falls = match directions.next() {
            Some(direction) => falls(direction)?,
            None => rules.style == Style::Nova,
        };
        order.push((key, falls));
    }
    if let Some((key, _)) = order
        .iter()
        .find(|(key, _)| *key != "id" && !rules.attributes.contains(key))
    {
        return Err(ApiError::bad_request("", format!("It is not possible to sort by '{key}'.")));
    }
    if order.is_empty() {
        order.extend(rules.order);
    }
    Ok(order)
}

fn falls(direction: &str) -> Result<bool, ApiError> {
    match direction.to_ascii_lowercase().as_str() {
        "asc" => Ok(false),
        "desc" => Ok(true),
        _ => Err(ApiError::bad_request(
            "",
            format!("The sort direction '{direction}' is neither 'asc' nor 'desc'."),
        )),
    }
}

fn compare(a: &Value, b: &Value, order: &[(&str, bool)]) -> Ordering {
    for (key, falls) in order.iter().chain(&[("id", false)]) {
        let ordering = compare_values(&a[key], &b[key]);
        let ordering = if *falls { ordering.reverse() } else { ordering };
        if ordering.is_ne() {
            return ordering;
        }
    }
    Ordering::Equal
}

fn compare_values(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a
            .as_f64()
            .partial_cmp(&b.as_f64())
            .unwrap_or(Ordering::Equal),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        // Nulls first, as in databases; other values are not ordered.
        (a, b) => b.is_null().cmp(&a.is_null()),
    }
}

fn show(query: &Query, rules: &Rules<'_>, mut row: Value) -> Value {
    if let Value::Object(row) = &mut row {
        row.retain(|key, _| !rules.hidden.contains(&&**key));
    }
    match rules.style {
        Style::Neutron | Style::Octavia => query.select(row),
        Style::Nova | Style::Keystone => row,
    }
}
