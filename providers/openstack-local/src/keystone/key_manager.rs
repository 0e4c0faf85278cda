//! A minimal key manager (Barbican): certificates that load balancers refer to.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State as From},
    response::{IntoResponse, Response},
    routing,
};
use http::header;
use serde_json::{Value, json};

use super::{KeyContainer, KeySecret};
use crate::{
    server::{Auth, Cloud, Origin},
    state::{ApiError, CloudState, RequestContext},
};

/// Returns the routes of this service.
pub fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/", routing::get(versions))
        .route("/v1", routing::get(version))
        .route("/v1/containers/{id}", routing::get(container))
        .route("/v1/secrets/{id}", routing::get(secret))
        .route("/v1/secrets/{id}/payload", routing::get(payload))
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

async fn container(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let find = |state: &CloudState| {
        find_container(state, &ctx, &id)
            .cloned()
            .ok_or_else(|| gone("Container"))
    };
    let found = cloud.store.read(find).await?;
    let secrets: Vec<Value> = found
        .secrets
        .iter()
        .map(|(name, id)| json!({"name": name, "secret_ref": secret_ref(&origin, id)}))
        .collect();
    Ok(Json(json!({
        "container_ref": format!("{origin}/key-manager/v1/containers/{id}"),
        "name": found.name,
        "type": "certificate",
        "status": "ACTIVE",
        "created": found.created_at.strftime("%Y-%m-%dT%H:%M:%S").to_string(),
        "updated": found.created_at.strftime("%Y-%m-%dT%H:%M:%S").to_string(),
        "secret_refs": secrets,
        "consumers": [],
    })))
}

fn secret_ref(origin: &Origin, id: &str) -> String {
    format!("{origin}/key-manager/v1/secrets/{id}")
}

fn gone(what: &str) -> ApiError {
    ApiError::not_found("", format!("{what} not found."))
}

async fn secret(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let find = |state: &CloudState| {
        find_secret(state, &ctx, &id)
            .cloned()
            .ok_or_else(|| gone("Secret"))
    };
    let found = cloud.store.read(find).await?;
    Ok(Json(json!({
        "secret_ref": secret_ref(&origin, &id),
        "name": found.name,
        "secret_type": found.kind,
        "status": "ACTIVE",
        "created": found.created_at.strftime("%Y-%m-%dT%H:%M:%S").to_string(),
        "updated": found.created_at.strftime("%Y-%m-%dT%H:%M:%S").to_string(),
        "content_types": {"default": "text/plain"},
        "expiration": null,
    })))
}

async fn payload(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let find = |state: &CloudState| {
        find_secret(state, &ctx, &id)
            .cloned()
            .ok_or_else(|| gone("Secret"))
    };
    let found = cloud.store.read(find).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain")], found.payload.expose().to_owned()).into_response())
}
