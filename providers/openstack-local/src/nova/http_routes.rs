//! HTTP routes of the compute service.

use std::sync::Arc;

use crate::api::nova::{
    AvailabilityZones, GroupName, InterfaceAttach, InterfaceAttachmentEnvelope,
    InterfaceAttachments, Limits, LimitsEnvelope, Metadata, QuotaSetEnvelope, QuotaSetUpdate,
    ServerAction, ServerCreate, ServerCreateBody, ServerCreated, ServerEnvelope, ServerUpdate,
};
use axum::{
    Json, Router,
    extract::{Path, State as From},
    middleware,
    response::{IntoResponse, Response},
    routing,
};
use http::{StatusCode, header};
use serde_json::{Value, json};

use super::{
    Microversion, actions, create, discovery, flavor_routes, interfaces, keypairs, list, quotas,
    server_groups, servers, version, view::View, zones,
};
use crate::{
    server::{
        Auth, Cloud, Input, Origin,
        list::{Query, Rules, list as page},
    },
    state::{ApiError, CloudState},
};

/// Returns the routes of this service.
pub fn routes(cloud: &Arc<Cloud>) -> Router<Arc<Cloud>> {
    let versioned = middleware::from_fn_with_state(cloud.clone(), version::layer);
    Router::new()
        .nest("/v2.1", current().layer(versioned))
        .route("/v2.1", routing::get(discovery::one))
        .route("/", routing::get(discovery::all))
}

fn current() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/servers", routing::get(index).post(create_server))
        .route("/servers/detail", routing::get(detail))
        .route("/servers/{id}", routing::get(show).put(update).delete(delete))
        .route("/servers/{id}/action", routing::post(act))
        .route("/servers/{id}/ips", routing::get(addresses))
        .route(
            "/servers/{id}/metadata",
            routing::get(metadata).put(set_metadata).post(add_metadata),
        )
        .route("/servers/{id}/metadata/{key}", routing::get(pair).put(set_pair).delete(remove_pair))
        .route("/servers/{id}/tags", routing::get(tags).put(set_tags).delete(clear_tags))
        .route("/servers/{id}/tags/{tag}", routing::get(has_tag).put(add_tag).delete(remove_tag))
        .route("/servers/{id}/os-interface", routing::get(ports).post(add_port))
        .route("/servers/{id}/os-interface/{port}", routing::get(port).delete(remove_port))
        .route("/servers/{id}/os-volume_attachments", routing::get(volumes))
        .route("/servers/{id}/os-security-groups", routing::get(groups))
        .merge(flavor_routes::routes())
        .merge(keypairs::routes())
        .merge(server_groups::routes())
        .route("/os-availability-zone", routing::get(zone_index))
        .route("/os-availability-zone/detail", routing::get(zone_detail))
        .route("/limits", routing::get(limits))
        .route("/os-quota-sets/{project}", routing::get(quota).put(set_quota))
        .route("/os-quota-sets/{project}/defaults", routing::get(default_quota))
}

async fn index(
    cloud: From<Arc<Cloud>>,
    auth: Auth,
    version: Microversion,
    origin: Origin,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    servers_page(cloud, auth, version, &origin, &query, false).await
}

async fn detail(
    cloud: From<Arc<Cloud>>,
    auth: Auth,
    version: Microversion,
    origin: Origin,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    servers_page(cloud, auth, version, &origin, &query, true).await
}

async fn servers_page(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    origin: &Origin,
    query: &Query,
    details: bool,
) -> Result<Json<Value>, ApiError> {
    let rows = cloud
        .store
        .read(|state| list::rows(state, &ctx, version, origin, query, details))
        .await?;
    let rules = Rules {
        hidden: &list::SORT_KEYS,
        order: &[("created_at", true)],
        ..Rules::nova("servers", &list::SORT_KEYS, &cloud.settings())
    };
    page(query, &rules, rows).map(Json)
}

async fn show(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<Json<ServerEnvelope>, ApiError> {
    let server = cloud.store.read(|state| {
        let row = servers::find(state, &ctx, &id)?;
        let view = View::new(state, &ctx, version, &origin);
        match row.cell_down {
            false => Ok(view.full_alone(row)),
            true if version >= Microversion(69) => Ok(view.partial_alone(row)),
            true => Err(servers::cell_down()),
        }
    });
    Ok(Json(ServerEnvelope { server: server.await? }))
}

async fn create_server(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    origin: Origin,
    Input(body): Input<ServerCreateBody>,
) -> Result<Response, ApiError> {
    let request = ServerCreate { hints: body.hints, ..body.server };
    let (id, links) = cloud
        .store
        .change(|state| {
            let id = create::create(state, &ctx, version, &request)?;
            let links = View::new(state, &ctx, version, &origin).links(&id);
            Ok((id, links))
        })
        .await?;
    let groups = request
        .security_groups
        .unwrap_or_else(|| vec![GroupName { name: "default".to_owned() }]);
    let location = links
        .first()
        .map(|link| link.href.clone())
        .unwrap_or_default();
    let server = ServerCreated {
        id,
        links,
        disk_config: "MANUAL".to_owned(),
        security_groups: groups,
        admin_pass: Some(crate::keystone::random_secret()),
    };
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(ServerEnvelope { server }))
        .into_response())
}

async fn update(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    origin: Origin,
    Path(id): Path<String>,
    Input(body): Input<ServerEnvelope<ServerUpdate>>,
) -> Result<Json<ServerEnvelope>, ApiError> {
    let server = cloud.store.change(|state| {
        servers::update(state, &ctx, &id, body.server)?;
        Ok(View::new(state, &ctx, version, &origin).full_alone(servers::get(state, &ctx, &id)?))
    });
    Ok(Json(ServerEnvelope { server: server.await? }))
}

async fn delete(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    cloud
        .store
        .change(|state| servers::delete(state, &ctx, &id))
        .await
        .map(|()| StatusCode::NO_CONTENT)
}

async fn act(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    Input(action): Input<ServerAction>,
) -> Result<StatusCode, ApiError> {
    cloud
        .store
        .change(|state| actions::act(state, &ctx, &id, action))
        .await
        .map(|()| StatusCode::ACCEPTED)
}

async fn addresses(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let addresses = cloud.store.read(|state| {
        let row = servers::get(state, &ctx, &id)?;
        Ok(View::new(state, &ctx, version, &origin).addresses(row))
    });
    // In this answer, networks list only address and version.
    let mut addresses = addresses.await?;
    for address in addresses.values_mut().flatten() {
        address.kind = None;
        address.mac = None;
    }
    Ok(Json(json!({ "addresses": addresses })))
}

async fn metadata(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<Json<Metadata>, ApiError> {
    let metadata = cloud
        .store
        .read(|state| Ok(servers::get(state, &ctx, &id)?.metadata.clone()))
        .await?;
    Ok(Json(Metadata { metadata }))
}

async fn set_metadata(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    Input(body): Input<Metadata>,
) -> Result<Json<Metadata>, ApiError> {
    let change = |state: &mut CloudState| {
        servers::change_metadata(state, &ctx, &id, |all| *all = body.metadata)
    };
    Ok(Json(Metadata { metadata: cloud.store.change(change).await? }))
}

async fn add_metadata(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    Input(body): Input<Metadata>,
) -> Result<Json<Metadata>, ApiError> {
    let change = |state: &mut CloudState| {
        servers::change_metadata(state, &ctx, &id, |all| all.extend(body.metadata))
    };
    Ok(Json(Metadata { metadata: cloud.store.change(change).await? }))
}

async fn pair(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path((id, key)): Path<(String, String)>,
) -> Result<Json<Value>, ApiError> {
    let value = cloud.store.read(|state| {
        let value = servers::get(state, &ctx, &id)?.metadata.get(&key).cloned();
        value.ok_or_else(|| ApiError::not_found("", "Metadata item was not found"))
    });
    Ok(Json(json!({"meta": {&key: value.await?}})))
}

async fn set_pair(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path((id, key)): Path<(String, String)>,
    Input(body): Input<Value>,
) -> Result<Json<Value>, ApiError> {
    let value = body["meta"][&key].as_str().map(str::to_owned);
    let value = value.ok_or_else(|| ApiError::bad_request("", "Request body and URI mismatch"))?;
    let change = |state: &mut CloudState| {
        servers::change_metadata(state, &ctx, &id, |all| {
            all.insert(key.clone(), value);
        })
    };
    cloud.store.change(change).await?;
    Ok(Json(body))
}

async fn remove_pair(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path((id, key)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let change = |state: &mut CloudState| {
        if !servers::get(state, &ctx, &id)?.metadata.contains_key(&key) {
            return Err(ApiError::not_found("", "Metadata item was not found"));
        }
        servers::change_metadata(state, &ctx, &id, |all| {
            all.remove(&key);
        })
    };
    cloud
        .store
        .change(change)
        .await
        .map(|_| StatusCode::NO_CONTENT)
}

async fn tags(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let tags = cloud
        .store
        .read(|state| Ok(servers::get(state, &ctx, &id)?.tags.clone()))
        .await?;
    Ok(Json(json!({ "tags": tags })))
}

async fn set_tags(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    Input(body): Input<crate::api::neutron::Tags>,
) -> Result<Json<Value>, ApiError> {
    let tags = cloud
        .store
        .change(|state| servers::change_tags(state, &ctx, &id, |tags| *tags = body.tags))
        .await?;
    Ok(Json(json!({ "tags": tags })))
}

async fn clear_tags(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    cloud
        .store
        .change(|state| servers::change_tags(state, &ctx, &id, Vec::clear))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn has_tag(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path((id, tag)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let has = cloud
        .store
        .read(|state| Ok(servers::get(state, &ctx, &id)?.tags.contains(&tag)))
        .await?;
    if has {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::not_found("", format!("Server {id} has no tag '{tag}'")))
}

async fn add_tag(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path((id, tag)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    cloud
        .store
        .change(|state| servers::change_tags(state, &ctx, &id, |tags| tags.push(tag)))
        .await?;
    Ok(StatusCode::CREATED)
}

async fn remove_tag(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path((id, tag)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    cloud
        .store
        .change(|state| servers::change_tags(state, &ctx, &id, |tags| tags.retain(|t| *t != tag)))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn ports(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    Path(id): Path<String>,
) -> Result<Json<InterfaceAttachments>, ApiError> {
    let interface_attachments = cloud
        .store
        .read(|state| interfaces::list(state, &ctx, &id, version))
        .await?;
    Ok(Json(InterfaceAttachments { interface_attachments }))
}

async fn port(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    Path((id, port)): Path<(String, String)>,
) -> Result<Json<InterfaceAttachmentEnvelope>, ApiError> {
    let interface_attachment = cloud
        .store
        .read(|state| interfaces::one(state, &ctx, &id, &port, version))
        .await?;
    Ok(Json(InterfaceAttachmentEnvelope { interface_attachment }))
}

async fn add_port(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    Path(id): Path<String>,
    Input(body): Input<InterfaceAttachmentEnvelope<InterfaceAttach>>,
) -> Result<Json<InterfaceAttachmentEnvelope>, ApiError> {
    let add = |state: &mut CloudState| {
        interfaces::add(state, &ctx, &id, body.interface_attachment, version)
    };
    Ok(Json(InterfaceAttachmentEnvelope {
        interface_attachment: cloud.store.change(add).await?,
    }))
}

async fn remove_port(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path((id, port)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    cloud
        .store
        .change(|state| interfaces::remove(state, &ctx, &id, &port))
        .await
        .map(|()| StatusCode::ACCEPTED)
}

async fn volumes(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    cloud
        .store
        .read(|state| servers::get(state, &ctx, &id).map(drop))
        .await?;
    Ok(Json(json!({"volumeAttachments": []})))
}

async fn groups(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let groups = cloud.store.read(|state| {
        let row = servers::get(state, &ctx, &id)?;
        Ok(View::new(state, &ctx, version, &origin)
            .full(row)
            .security_groups
            .unwrap_or_default())
    });
    Ok(Json(json!({"security_groups": groups.await?})))
}

async fn zone_index(
    From(cloud): From<Arc<Cloud>>,
    Auth(_): Auth,
) -> Result<Json<AvailabilityZones>, ApiError> {
    let zones = cloud
        .store
        .read(|state| Ok(zones::list(state, false)))
        .await?;
    Ok(Json(AvailabilityZones { zones }))
}

async fn zone_detail(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
) -> Result<Json<AvailabilityZones>, ApiError> {
    quotas::admin_only(&ctx, "os_compute_api:os-availability-zone:detail")?;
    let zones = cloud
        .store
        .read(|state| Ok(zones::list(state, true)))
        .await?;
    Ok(Json(AvailabilityZones { zones }))
}

async fn limits(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    query: Query,
) -> Result<Json<LimitsEnvelope>, ApiError> {
    let project = query.get("tenant_id").unwrap_or(&ctx.project);
    if !ctx.sees(project) {
        quotas::admin_only(&ctx, "os_compute_api:os-used-limits")?;
    }
    let absolute = cloud
        .store
        .read(|state| Ok(quotas::limits(state, project)))
        .await?;
    Ok(Json(LimitsEnvelope { limits: Limits { rate: Vec::new(), absolute } }))
}

async fn quota(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    Path(project): Path<String>,
) -> Result<Json<QuotaSetEnvelope>, ApiError> {
    if !ctx.sees(&project) {
        quotas::admin_only(&ctx, "os_compute_api:os-quota-sets:show")?;
    }
    let row = cloud
        .store
        .read(|state| Ok(quotas::get(state, &project)))
        .await?;
    Ok(Json(QuotaSetEnvelope { quota_set: quotas::show(&row, version) }))
}

async fn set_quota(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    Path(project): Path<String>,
    Input(body): Input<QuotaSetEnvelope<QuotaSetUpdate>>,
) -> Result<Json<QuotaSetEnvelope>, ApiError> {
    let row = cloud
        .store
        .change(|state| quotas::update(state, &ctx, &project, &body.quota_set))
        .await?;
    Ok(Json(QuotaSetEnvelope { quota_set: quotas::show(&row, version) }))
}

async fn default_quota(
    Auth(_): Auth,
    version: Microversion,
    Path(project): Path<String>,
) -> Result<Json<QuotaSetEnvelope>, ApiError> {
    let row = quotas::get(&CloudState::default(), &project);
    Ok(Json(QuotaSetEnvelope { quota_set: quotas::show(&row, version) }))
}
