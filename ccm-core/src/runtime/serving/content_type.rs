//! Chooses the form of a response.

use axum::http::{HeaderMap, header};

/// Returns true if a client accepts `text/plain` before JSON. A client that accepts any type gets
/// JSON.
pub(crate) fn wants_text(headers: &HeaderMap) -> bool {
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let kinds = accept
        .split(',')
        .filter_map(|entry| entry.split(';').next())
        .map(str::trim);
    kinds
        .into_iter()
        .find(|kind| ["text/plain", "application/json", "*/*"].contains(kind))
        == Some("text/plain")
}
