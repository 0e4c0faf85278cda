//! Requests about images.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State as From},
    http::header,
    response::{IntoResponse, Response},
    routing,
};
use http::StatusCode;
use http_body_util::BodyExt as _;
use md5::Md5;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha512};

use super::{IMAGE, ImageContent, ImageRow, NAME};
use crate::{
    server::{Auth, Cloud, Input, list::Query},
    state::{ApiError, CloudState, RequestContext, new_id},
};

const VISIBILITIES: [&str; 4] = ["private", "shared", "community", "public"];
/// Rows on a page unless the request has a limit.
const PAGE: usize = 25;

pub(super) fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/v2/images", routing::get(list).post(create))
        .route("/v2/images/{id}", routing::get(show).patch(update).delete(delete))
        .route("/v2/images/{id}/file", routing::get(download).put(upload))
        .route("/v2/images/{id}/tags/{tag}", routing::put(add_tag).delete(remove_tag))
}

/// Returns the image that always exists.
fn built_in() -> Value {
    json!({
        "id": IMAGE, "name": NAME, "status": "active", "visibility": "public", "protected": true, "owner": null,
        "container_format": "bare", "disk_format": "raw", "min_disk": 0, "min_ram": 0, "size": 0, "virtual_size": null,
        "checksum": null, "os_hash_algo": null, "os_hash_value": null, "os_hidden": false, "tags": [],
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z",
        "self": format!("/v2/images/{IMAGE}"), "file": format!("/v2/images/{IMAGE}/file"),
        "schema": "/v2/schemas/image",
    })
}

fn view(row: &ImageRow) -> Value {
    let content = row.content.as_ref();
    let mut shown = json!({
        "id": row.id,
        "name": row.name,
        "status": if content.is_some() { "active" } else { "queued" },
        "visibility": row.visibility,
        "protected": row.protected,
        "owner": row.project,
        "container_format": row.container_format,
        "disk_format": row.disk_format,
        "min_disk": row.min_disk,
        "min_ram": row.min_ram,
        "size": content.map(|content| content.size),
        "virtual_size": null,
        "checksum": content.map(|content| content.checksum.clone()),
        "os_hash_algo": content.map(|_| "sha512"),
        "os_hash_value": content.map(|content| content.hash.clone()),
        "os_hidden": false,
        "tags": row.tags,
        "created_at": row.created.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "updated_at": row.updated.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "self": format!("/v2/images/{}", row.id),
        "file": format!("/v2/images/{}/file", row.id),
        "schema": "/v2/schemas/image",
    });
    for (name, value) in &row.properties {
        shown[name] = value.clone().into();
    }
    shown
}

/// Returns true if a user sees an image.
fn sees(ctx: &RequestContext, row: &ImageRow) -> bool {
    ctx.sees(&row.project) || matches!(&*row.visibility, "public" | "community")
}

/// Finds an image that the user may change.
fn own<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s Arc<ImageRow>, ApiError> {
    if id == IMAGE {
        let message = "You are not permitted to modify this image.";
        return Err(ApiError::forbidden("", message));
    }
    let row = state.glance.images.get(id).filter(|row| sees(ctx, row));
    let row = row.ok_or_else(|| not_found(id))?;
    if ctx.sees(&row.project) {
        return Ok(row);
    }
    Err(ApiError::forbidden("", "You are not permitted to modify this image."))
}

fn not_found(id: &str) -> ApiError {
    ApiError::not_found("", format!("No image found with ID {id}"))
}

async fn list(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let mut rows = vec![built_in()];
    let stored: Vec<Value> = cloud
        .store
        .read(|state| {
            let seen = state.glance.images.iter().filter(|row| sees(&ctx, row));
            Ok(seen.map(|row| view(row)).collect())
        })
        .await?;
    rows.extend(stored);
    rows.retain(|row| passes(&query, row));
    if let Some(marker) = query.get("marker") {
        let at = rows.iter().position(|row| row["id"] == marker);
        // A marker beyond the end is what a client sends after the last page.
        rows = at.map_or_else(Vec::new, |at| rows.split_off(at + 1));
    }
    let limit = query.get("limit").and_then(|limit| limit.parse().ok());
    let limit: usize = limit.unwrap_or(PAGE);
    let mut body = json!({"first": "/v2/images", "schema": "/v2/schemas/images"});
    if rows.len() > limit
        && let Some(last) = limit
            .checked_sub(1)
            .and_then(|last| rows[last]["id"].as_str())
    {
        body["next"] = format!("/v2/images?limit={limit}&marker={last}").into();
    }
    rows.truncate(limit);
    body["images"] = rows.into();
    Ok(Json(body))
}

/// Returns true if an image passes the filters of a list.
fn passes(query: &Query, image: &Value) -> bool {
    ["id", "name", "status", "visibility", "owner", "container_format", "disk_format"]
        .iter()
        .all(|field| {
            let value = image[*field].as_str().unwrap_or_default();
            query
                .get(field)
                .is_none_or(|asked| match asked.strip_prefix("in:") {
                    // Several alternatives are written as `in:a,b`.
                    Some(several) => several.split(',').any(|one| one.trim_matches('"') == value),
                    None => asked == value || (*field == "visibility" && asked == "all"),
                })
        })
}

async fn show(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if id == IMAGE {
        return Ok(Json(built_in()));
    }
    let shown = cloud.store.read(|state| {
        let row = state.glance.images.get(&id).filter(|row| sees(&ctx, row));
        row.map(|row| view(row)).ok_or_else(|| not_found(&id))
    });
    Ok(Json(shown.await?))
}

/// Sets a field of an image; null removes it.
fn set(
    row: &mut ImageRow,
    ctx: &RequestContext,
    field: &str,
    value: Value,
) -> Result<(), ApiError> {
    let invalid = || {
        let message = format!("Provided object does not match schema 'image': {field} is invalid");
        ApiError::bad_request("", message)
    };
    let text = |value: Value| match value {
        Value::String(text) => Ok(Some(text)),
        Value::Null => Ok(None),
        _ => Err(invalid()),
    };
    match field {
        "name" => row.name = text(value)?,
        "container_format" => row.container_format = text(value)?,
        "disk_format" => row.disk_format = text(value)?,
        "visibility" => {
            let visibility = text(value)?.ok_or_else(invalid)?;
            if !VISIBILITIES.contains(&&*visibility) {
                return Err(invalid());
            }
            if visibility == "public" && !ctx.admin {
                let message = "You are not authorized to complete publicize_image action.";
                return Err(ApiError::forbidden("", message));
            }
            row.visibility = visibility;
        }
        "protected" => row.protected = value.as_bool().ok_or_else(invalid)?,
        "min_disk" => row.min_disk = value.as_u64().ok_or_else(invalid)?,
        "min_ram" => row.min_ram = value.as_u64().ok_or_else(invalid)?,
        "tags" => row.tags = serde_json::from_value(value).map_err(|_| invalid())?,
        "os_hidden" => {}
        "id" | "status" | "owner" | "size" | "checksum" | "created_at" | "updated_at" | "self"
        | "file" | "schema" => {
            let message = format!("Attribute '{field}' is read-only.");
            return Err(ApiError::forbidden("", message));
        }
        _ => match text(value)? {
            Some(text) => drop(row.properties.insert(field.to_owned(), text)),
            None => drop(row.properties.remove(field)),
        },
    }
    Ok(())
}

async fn create(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Input(mut body): Input<Map<String, Value>>,
) -> Result<Response, ApiError> {
    let id = match body.remove("id") {
        None => new_id(),
        Some(id) => {
            let id = id.as_str().and_then(|id| uuid::Uuid::parse_str(id).ok());
            let id = id.ok_or_else(|| ApiError::bad_request("", "Invalid image ID"))?;
            id.to_string()
        }
    };
    let mut row = ImageRow {
        id: id.clone(),
        name: None,
        project: ctx.project.to_string(),
        visibility: "shared".to_owned(),
        protected: false,
        container_format: None,
        disk_format: None,
        min_disk: 0,
        min_ram: 0,
        tags: Vec::new(),
        properties: BTreeMap::new(),
        content: None,
        created: ctx.now,
        updated: ctx.now,
    };
    for (field, value) in body {
        set(&mut row, &ctx, &field, value)?;
    }
    let shown = view(&row);
    let put = |state: &mut CloudState| {
        if id == IMAGE || state.glance.images.get(&id).is_some() {
            let message = format!("Image ID {id} already exists!");
            return Err(ApiError::conflict("", message));
        }
        state.glance.images.put(row);
        Ok(())
    };
    cloud.store.change(put).await?;
    let location = format!("/v2/images/{id}");
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(shown)).into_response())
}

/// One operation of a patch.
#[derive(Debug, Deserialize)]
struct Operation {
    op: String,
    path: String,
    #[serde(default)]
    value: Value,
}

async fn update(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    Input(operations): Input<Vec<Operation>>,
) -> Result<Json<Value>, ApiError> {
    let change = |state: &mut CloudState| {
        let mut row = ImageRow::clone(own(state, &ctx, &id)?);
        for operation in operations {
            let field = operation.path.trim_start_matches('/').to_owned();
            let value = match &*operation.op {
                "add" | "replace" => operation.value,
                "remove" => Value::Null,
                other => {
                    let message = format!("Operation {other:?} is not supported.");
                    return Err(ApiError::bad_request("", message));
                }
            };
            set(&mut row, &ctx, &field, value)?;
        }
        row.updated = ctx.now;
        let shown = view(&row);
        state.glance.images.put(row);
        Ok(shown)
    };
    Ok(Json(cloud.store.change(change).await?))
}

async fn delete(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let remove = |state: &mut CloudState| {
        if own(state, &ctx, &id)?.protected {
            let message = format!("Image {id} is protected and cannot be deleted.");
            return Err(ApiError::forbidden("", message));
        }
        state.glance.images.remove(&id);
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(remove).await
}

/// Counts and hashes the content of an image, which is not kept.
async fn upload(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    mut body: Body,
) -> Result<StatusCode, ApiError> {
    let check = |state: &CloudState| {
        if own(state, &ctx, &id)?.content.is_some() {
            let message = "Image status transition from active to saving is not allowed";
            return Err(ApiError::conflict("", message));
        }
        Ok(())
    };
    cloud.store.read(check).await?;
    let (mut size, mut md5, mut sha512) = (0, Md5::new(), Sha512::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ApiError::bad_request("", format!("The body could not be read: {error}"))
        })?;
        if let Some(data) = frame.data_ref() {
            size += data.len() as u64;
            md5.update(data);
            sha512.update(data);
        }
    }
    let content = ImageContent {
        size,
        checksum: hex(&md5.finalize()),
        hash: hex(&sha512.finalize()),
    };
    let put = |state: &mut CloudState| {
        check(state)?;
        state.glance.images.update(&id, |row| {
            row.content = Some(content);
            row.updated = ctx.now;
        });
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(put).await
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        for nibble in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(nibble.into(), 16));
        }
        text
    })
}

/// The content is not kept.
async fn download(
    From(cloud): From<Arc<Cloud>>,
    auth: Auth,
    id: Path<String>,
) -> Result<StatusCode, ApiError> {
    show(From(cloud), auth, id)
        .await
        .map(|_| StatusCode::NO_CONTENT)
}

async fn add_tag(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path((id, tag)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    change_tags(&cloud, &ctx, &id, |tags| {
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    })
    .await
}

async fn remove_tag(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path((id, tag)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    change_tags(&cloud, &ctx, &id, |tags| tags.retain(|one| *one != tag)).await
}

async fn change_tags(
    cloud: &Cloud,
    ctx: &RequestContext,
    id: &str,
    change: impl FnOnce(&mut Vec<String>) + Send,
) -> Result<StatusCode, ApiError> {
    let change = |state: &mut CloudState| {
        own(state, ctx, id)?;
        state.glance.images.update(id, |row| change(&mut row.tags));
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(change).await
}
