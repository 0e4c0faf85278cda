use std::convert::Infallible;

use axum::extract::{FromRequestParts, OriginalUri};
use http::request::Parts;
use serde_json::Value;
use url::form_urlencoded;

use super::Style;
use crate::server::Origin;

/// The query of a request with its URL, for links to other pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// URL without the query.
    pub(super) address: String,
    pub(super) pairs: Vec<(String, String)>,
}

impl Query {
    /// Parses a URL such as `http://127.0.0.1/network/v2.0/ports?name=a`.
    pub fn new(address: &str) -> Self {
        let (address, query) = address.split_once('?').unwrap_or((address, ""));
        let pairs = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        Self { address: address.to_owned(), pairs }
    }

    /// Returns the URL without the query.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the first value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }

    /// Returns all values of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs()
            .filter(move |(key, _)| *key == name)
            .map(|(_, value)| value)
    }

    /// Returns all parameters.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Returns whether a parameter is present and true: `true`, `yes`, `1`, or without a value.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| {
            matches!(
                value.to_ascii_lowercase().as_str(),
                "" | "true" | "yes" | "on" | "t" | "y" | "1"
            )
        })
    }

    /// Reduces an object to the requested `fields`; keeps everything without that parameter.
    pub fn select(&self, mut row: Value) -> Value {
        let fields: Vec<&str> = self
            .all("fields")
            .filter(|field| !field.is_empty())
            .collect();
        if let (Value::Object(row), false) = (&mut row, fields.is_empty()) {
            row.retain(|key, _| fields.contains(&&**key));
        }
        row
    }

    /// Returns the URL of another page, with the same query except for limit, marker and direction.
    /// Octavia leaves out filters and fields.
    pub(super) fn page(&self, style: Style, limit: usize, marker: &str, reverse: bool) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let stays = |key: &str| match style {
            Style::Octavia => matches!(key, "sort" | "sort_key" | "sort_dir"),
            _ => !matches!(key, "limit" | "marker" | "page_reverse"),
        };
        query.extend_pairs(self.pairs().filter(|(key, _)| stays(key)));
        query
            .append_pair("limit", &limit.to_string())
            .append_pair("marker", marker);
        if reverse {
            query.append_pair("page_reverse", "True");
        }
        format!("{}?{}", self.address, query.finish())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let origin = Origin::from_request_parts(parts, state).await?;
        let uri = parts
            .extensions
            .get::<OriginalUri>()
            .map_or(&parts.uri, |uri| &uri.0);
        Ok(Self::new(&format!(
            "{origin}{}",
            uri.path_and_query().map_or("/", |target| target.as_str())
        )))
    }
}
