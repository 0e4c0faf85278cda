//! A minimal key manager (Barbican): certificates that load balancers refer to.

mod containers;
mod secrets;

use std::sync::Arc;

use axum::{Json, Router, routing};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{KeyContainer, KeySecret};
use crate::{
    server::{Cloud, Origin, list::Query},
    state::{ApiError, CloudState, RequestContext},
};

/// Rows on a page of a list, unless the request has a limit.
const PAGE: usize = 10;
/// Maximum number of rows on a page.
const MAX_PAGE: usize = 100;

/// Returns the routes of this service.
pub fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/", routing::get(versions))
        .route("/v1", routing::get(version))
        .merge(containers::routes())
        .merge(secrets::routes())
}

/// Finds a container by the last part of a reference to it, if the user may see it.
pub fn find_container<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    reference: &str,
) -> Option<&'s Arc<KeyContainer>> {
    state
        .keystone
        .key_containers
        .get(last(reference))
        .filter(|container| ctx.sees(&container.project_id))
}

/// Finds a secret by the last part of a reference to it, if the user may see it.
pub fn find_secret<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    reference: &str,
) -> Option<&'s Arc<KeySecret>> {
    state
        .keystone
        .key_secrets
        .get(last(reference))
        .filter(|secret| ctx.sees(&secret.project_id))
}

fn last(reference: &str) -> &str {
    reference.rsplit_once('/').map_or(reference, |(_, id)| id)
}

fn entry(origin: &Origin) -> Value {
    json!({
        "id": "v1",
        "status": "CURRENT",
        "updated": "2015-04-28T00:00:00Z",
        "links": [{"rel": "self", "href": format!("{origin}/key-manager/v1/")}],
    })
}

async fn versions(origin: Origin) -> Json<Value> {
    Json(json!({"versions": [entry(&origin)]}))
}

async fn version(origin: Origin) -> Json<Value> {
    Json(json!({"version": entry(&origin)}))
}

fn secret_ref(origin: &Origin, id: &str) -> String {
    format!("{origin}/key-manager/v1/secrets/{id}")
}

/// Returns a time in Barbican's form: UTC without a zone.
fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S").to_string()
}

fn not_found(what: &str) -> ApiError {
    ApiError::not_found("", format!("{what} not found."))
}

/// Returns the requested page of a list: the rows under `key`, their total number, and links to the
/// pages beside it.
fn page(query: &Query, key: &str, rows: Vec<Value>) -> Value {
    let number = |name: &str| query.get(name).and_then(|text| text.parse::<usize>().ok());
    let limit = number("limit").unwrap_or(PAGE).clamp(1, MAX_PAGE);
    let offset = number("offset").unwrap_or(0);
    let total = rows.len();
    let link = |offset: usize| format!("{}?limit={limit}&offset={offset}", query.address());
    let shown: Vec<Value> = rows.into_iter().skip(offset).take(limit).collect();
    let mut body = json!({ "total": total });
    body[key] = shown.into();
    if offset + limit < total {
        body["next"] = link(offset + limit).into();
    }
    if offset > 0 {
        body["previous"] = link(offset.saturating_sub(limit)).into();
    }
    body
}
