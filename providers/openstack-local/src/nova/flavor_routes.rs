//! HTTP routes of flavors.

use std::sync::Arc;

use crate::api::nova::{Flavor, FlavorCreate, FlavorEnvelope};
use axum::{
    Json, Router,
    extract::{Path, State as From},
    routing,
};
use http::StatusCode;
use serde_json::{Value, json};

use super::{Microversion, flavors};
use crate::{
    server::{
        Auth, Cloud, Input, Origin,
        list::{Query, Rules, list as page},
    },
    state::ApiError,
};

/// Attributes that may be sorted by.
const SORT_KEYS: [&str; 5] = ["flavorid", "name", "memory_mb", "vcpus", "root_gb"];

pub(super) fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/flavors", routing::get(index).post(create))
        .route("/flavors/detail", routing::get(detail))
        .route("/flavors/{id}", routing::get(show).delete(delete))
        .route("/flavors/{id}/os-extra_specs", routing::get(extra_specs))
}

async fn index(
    cloud: From<Arc<Cloud>>,
    auth: Auth,
    version: Microversion,
    origin: Origin,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    list(cloud, auth, version, &origin, &query, false).await
}

async fn detail(
    cloud: From<Arc<Cloud>>,
    auth: Auth,
    version: Microversion,
    origin: Origin,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    list(cloud, auth, version, &origin, &query, true).await
}

async fn list(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    origin: &Origin,
    query: &Query,
    details: bool,
) -> Result<Json<Value>, ApiError> {
    // Administrators may choose; everybody else sees only public flavors.
    let public = match query.get("is_public").map(str::to_lowercase).as_deref() {
        Some("none") if ctx.admin => None,
        Some("false" | "0") if ctx.admin => Some(false),
        _ => Some(true),
    };
    let at_least = |name: &str| {
        query
            .get(name)
            .and_then(|number| number.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let ram = at_least("minRam");
    let disk = at_least("minDisk");
    let rows = cloud.store.read(|state| {
        let rows = state
            .nova
            .flavors
            .iter()
            .filter(|row| public.is_none_or(|public| row.is_public == public));
        let rows = rows.filter(|row| row.ram >= ram && row.disk >= disk);
        rows.map(|row| {
            let mut shown = serde_json::to_value(flavors::show(row, version, origin, details))
                .map_err(|error| {
                    ApiError::new(
                        StatusCode::INTERNAL_SERVER_ERROR,
                        "",
                        format!("A flavor cannot be shown: {error}"),
                    )
                })?;
            shown["flavorid"] = row.id.clone().into();
            shown["memory_mb"] = row.ram.into();
            shown["root_gb"] = row.disk.into();
            Ok(shown)
        })
        .collect::<Result<Vec<_>, ApiError>>()
    });
    let settings = cloud.settings();
    let rules = Rules {
        hidden: &["flavorid", "memory_mb", "root_gb"],
        order: &[("flavorid", false)],
        ..Rules::nova("flavors", &SORT_KEYS, &settings)
    };
    page(query, &rules, rows.await?).map(Json)
}

async fn show(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<Json<FlavorEnvelope>, ApiError> {
    let flavor: Flavor = cloud
        .store
        .read(|state| Ok(flavors::show(flavors::get(state, &ctx, &id)?, version, &origin, true)))
        .await?;
    Ok(Json(FlavorEnvelope { flavor }))
}

async fn create(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    origin: Origin,
    Input(body): Input<FlavorEnvelope<FlavorCreate>>,
) -> Result<Json<FlavorEnvelope>, ApiError> {
    let row = cloud
        .store
        .change(|state| flavors::create(state, &ctx, body.flavor))
        .await?;
    Ok(Json(FlavorEnvelope { flavor: flavors::show(&row, version, &origin, true) }))
}

async fn delete(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    cloud
        .store
        .change(|state| flavors::delete(state, &ctx, &id))
        .await
        .map(|()| StatusCode::ACCEPTED)
}

async fn extra_specs(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let specs = cloud
        .store
        .read(|state| Ok(flavors::get(state, &ctx, &id)?.extra_specs.clone()))
        .await?;
    Ok(Json(json!({ "extra_specs": specs })))
}
