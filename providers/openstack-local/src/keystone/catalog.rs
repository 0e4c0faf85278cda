//! The catalog: the services and their URLs.

use std::sync::Arc;

use crate::api::keystone::{Catalog, CatalogEndpoint, CatalogService, CollectionLinks};
use axum::{
    Json, Router,
    extract::{Path, State as From},
    routing,
};
use serde_json::{Value, json};

use super::{Endpoint, Region, RequestUser, Service, TokenScope, policy};
use crate::{
    server::{
        CatalogForm, Cloud, Origin, Settings,
        list::{self, Query, Rules},
    },
    state::{ApiError, CloudState},
};

pub(super) fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/v3/auth/catalog", routing::get(show_catalog))
        .route("/v3/services", routing::get(services))
        .route("/v3/services/{id}", routing::get(show_service))
        .route("/v3/endpoints", routing::get(endpoints))
        .route("/v3/endpoints/{id}", routing::get(show_endpoint))
        .route("/v3/regions", routing::get(regions))
        .route("/v3/regions/{id}", routing::get(show_region))
}

/// Returns the catalog for a client that reaches the cloud at `origin`.
pub(super) fn catalog(
    state: &CloudState,
    origin: &Origin,
    settings: &Settings,
) -> Vec<CatalogService> {
    let services = state.keystone.services.iter();
    let services =
        services.filter(|service| service.enabled && !settings.without.contains(&service.kind));
    let mut catalog: Vec<CatalogService> = services
        .map(|service| {
            let endpoints = state
                .keystone
                .endpoints
                .iter()
                .filter(|endpoint| endpoint.service_id == service.id);
            let endpoints = endpoints.map(|endpoint| CatalogEndpoint {
                id: endpoint.id.clone(),
                interface: endpoint.interface.clone(),
                region_id: Some(endpoint.region_id.clone()),
                region: Some(endpoint.region_id.clone()),
                url: url(endpoint, &service.kind, origin, settings.catalog),
            });
            CatalogService {
                id: service.id.clone(),
                kind: service.kind.clone(),
                name: Some(service.name.clone()),
                endpoints: endpoints.collect(),
            }
        })
        .collect();
    catalog.sort_by(|a, b| a.kind.cmp(&b.kind));
    catalog
}

/// Returns the URL of an endpoint.
pub(super) fn url(endpoint: &Endpoint, kind: &str, origin: &Origin, form: CatalogForm) -> String {
    let version = match (form, kind) {
        (CatalogForm::Unversioned, _) => "",
        (_, "compute") => "/v2.1",
        (CatalogForm::Usual, _) => "",
        (CatalogForm::Versioned, "identity") => "/v3",
        (CatalogForm::Versioned, "key-manager") => "/v1",
        (CatalogForm::Versioned, "image") => "/v2",
        (CatalogForm::Versioned, _) => "/v2.0",
    };
    format!("{origin}{}{version}", endpoint.path)
}

type JsonResult = Result<Json<Value>, ApiError>;

async fn show_catalog(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    origin: Origin,
    query: Query,
) -> Result<Json<Catalog>, ApiError> {
    if caller.token.scope == TokenScope::Unscoped {
        return Err(ApiError::forbidden("", "The token has no scope, and so no catalog."));
    }
    let settings = cloud.settings();
    let links = CollectionLinks {
        this: query.address().to_owned(),
        ..CollectionLinks::default()
    };
    cloud
        .store
        .read(|state| Ok(Json(Catalog { catalog: catalog(state, &origin, &settings), links })))
        .await
}

fn service(service: &Service, origin: &Origin) -> Value {
    json!({
        "id": service.id,
        "type": service.kind,
        "name": service.name,
        "description": service.description,
        "enabled": service.enabled,
        "links": {"self": format!("{origin}/identity/v3/services/{}", service.id)},
    })
}

fn endpoint(
    state: &CloudState,
    endpoint: &Endpoint,
    origin: &Origin,
    settings: &Settings,
) -> Value {
    let kind = state
        .keystone
        .services
        .get(&endpoint.service_id)
        .map_or("", |service| &*service.kind);
    json!({
        "id": endpoint.id,
        "service_id": endpoint.service_id,
        "interface": endpoint.interface,
        "region": endpoint.region_id,
        "region_id": endpoint.region_id,
        "url": url(endpoint, kind, origin, settings.catalog),
        "enabled": true,
        "links": {"self": format!("{origin}/identity/v3/endpoints/{}", endpoint.id)},
    })
}

fn region(region: &Region, origin: &Origin) -> Value {
    json!({
        "id": region.id,
        "description": region.description,
        "parent_region_id": null,
        "links": {"self": format!("{origin}/identity/v3/regions/{}", region.id)},
    })
}

async fn services(
    From(cloud): From<Arc<Cloud>>,
    _caller: RequestUser,
    origin: Origin,
    query: Query,
) -> JsonResult {
    let list = |state: &CloudState| {
        let rows = state
            .keystone
            .services
            .iter()
            .map(|row| service(row, &origin))
            .collect();
        list::list(&query, &Rules::keystone("services", &["id", "type", "name"]), rows)
    };
    cloud.store.read(list).await.map(Json)
}

async fn show_service(
    From(cloud): From<Arc<Cloud>>,
    _caller: RequestUser,
    Path(id): Path<String>,
    origin: Origin,
) -> JsonResult {
    let show = |state: &CloudState| {
        let found = policy::found(state.keystone.services.get(&id), "service", &id)?;
        Ok(Json(json!({"service": service(found, &origin)})))
    };
    cloud.store.read(show).await
}

async fn endpoints(
    From(cloud): From<Arc<Cloud>>,
    _caller: RequestUser,
    origin: Origin,
    query: Query,
) -> JsonResult {
    let settings = cloud.settings();
    let list = |state: &CloudState| {
        let rows = state
            .keystone
            .endpoints
            .iter()
            .map(|row| endpoint(state, row, &origin, &settings))
            .collect();
        list::list(
            &query,
            &Rules::keystone("endpoints", &["id", "service_id", "interface", "region_id"]),
            rows,
        )
    };
    cloud.store.read(list).await.map(Json)
}

async fn show_endpoint(
    From(cloud): From<Arc<Cloud>>,
    _caller: RequestUser,
    Path(id): Path<String>,
    origin: Origin,
) -> JsonResult {
    let settings = cloud.settings();
    let show = |state: &CloudState| {
        let found = policy::found(state.keystone.endpoints.get(&id), "endpoint", &id)?;
        Ok(Json(json!({"endpoint": endpoint(state, found, &origin, &settings)})))
    };
    cloud.store.read(show).await
}

async fn regions(
    From(cloud): From<Arc<Cloud>>,
    _caller: RequestUser,
    origin: Origin,
    query: Query,
) -> JsonResult {
    let list = |state: &CloudState| {
        let rows = state
            .keystone
            .regions
            .iter()
            .map(|row| region(row, &origin))
            .collect();
        list::list(&query, &Rules::keystone("regions", &["id"]), rows)
    };
    cloud.store.read(list).await.map(Json)
}

async fn show_region(
    From(cloud): From<Arc<Cloud>>,
    _caller: RequestUser,
    Path(id): Path<String>,
    origin: Origin,
) -> JsonResult {
    let show = |state: &CloudState| {
        let found = policy::found(state.keystone.regions.get(&id), "region", &id)?;
        Ok(Json(json!({"region": region(found, &origin)})))
    };
    cloud.store.read(show).await
}
