//! Secrets: with their content in one request, or in two.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State as From},
    response::{IntoResponse, Response},
    routing,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{find_secret, not_found, page, secret_ref, time};
use crate::{
    api::Secret,
    keystone::KeySecret,
    server::{Auth, Cloud, Input, Origin, list::Query},
    state::{ApiError, CloudState, RequestContext, new_id},
};

/// Kinds of secrets.
const KINDS: [&str; 6] = ["symmetric", "public", "private", "passphrase", "certificate", "opaque"];
/// Maximum size of a secret in bytes, which is Barbican's default.
const MAX_SIZE: usize = 20_000;
const TEXT: &str = "text/plain";
const BINARY: &str = "application/octet-stream";

pub(super) fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/v1/secrets", routing::get(list).post(create))
        .route("/v1/secrets/{id}", routing::get(show).put(add_payload).delete(delete))
        .route("/v1/secrets/{id}/payload", routing::get(payload))
        .route("/v1/secrets/{id}/metadata", routing::get(metadata).put(set_metadata))
        .route("/v1/secrets/{id}/acl", routing::get(acl))
}

/// Body of a request for a new secret.
#[derive(Debug, Deserialize)]
struct CreateSecret {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    secret_type: Option<String>,
    #[serde(default)]
    algorithm: Option<String>,
    #[serde(default)]
    bit_length: Option<u32>,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    expiration: Option<String>,
    /// The content; a later request adds it if absent.
    #[serde(default)]
    payload: Option<Secret>,
    #[serde(default)]
    payload_content_type: Option<String>,
    #[serde(default)]
    payload_content_encoding: Option<String>,
}

/// The content of a secret.
struct Payload {
    content_type: &'static str,
    /// The text, or the base64 form of bytes that are no text.
    content: Secret,
    is_base64: bool,
}

impl Payload {
    /// Reads the content of a request. `encoding`: `base64` or nothing.
    fn read(content_type: &str, encoding: Option<&str>, content: &[u8]) -> Result<Self, ApiError> {
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        let content_type = match media_type {
            TEXT => TEXT,
            BINARY => BINARY,
            other => {
                let message = format!(
                    "Problem with payload: content type {other:?} is neither {TEXT} nor {BINARY}."
                );
                return Err(ApiError::bad_request("", message));
            }
        };
        let decoded = match encoding {
            None => content.to_vec(),
            Some("base64") if content_type == BINARY => STANDARD
                .decode(content.trim_ascii())
                .map_err(|_| ApiError::bad_request("", "Invalid payload: it is not base64."))?,
            Some(other) => {
                let message = format!(
                    "Problem with payload: encoding {other:?} is not supported for {content_type}."
                );
                return Err(ApiError::bad_request("", message));
            }
        };
        if decoded.is_empty() {
            return Err(ApiError::bad_request("", "Invalid payload: it is empty."));
        }
        if decoded.len() > MAX_SIZE {
            let message = format!("Payload is too large: more than {MAX_SIZE} bytes.");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "", message));
        }
        Ok(match String::from_utf8(decoded) {
            Ok(text) => Self { content_type, content: text.into(), is_base64: false },
            Err(_) if content_type == TEXT => {
                return Err(ApiError::bad_request("", "Invalid payload: it is not UTF-8."));
            }
            Err(bytes) => Self {
                content_type,
                content: STANDARD.encode(bytes.as_bytes()).into(),
                is_base64: true,
            },
        })
    }

    fn put_into(self, secret: &mut KeySecret) {
        self.content_type.clone_into(&mut secret.content_type);
        secret.payload = self.content;
        secret.is_base64 = self.is_base64;
    }
}

fn find(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<Arc<KeySecret>, ApiError> {
    find_secret(state, ctx, id)
        .cloned()
        .ok_or_else(|| not_found("Secret"))
}

fn view(secret: &KeySecret, origin: &Origin) -> Value {
    let mut shown = json!({
        "secret_ref": secret_ref(origin, &secret.id),
        "name": secret.name,
        "secret_type": secret.kind,
        "status": "ACTIVE",
        "created": time(secret.created_at),
        "updated": time(secret.created_at),
        "algorithm": secret.algorithm,
        "bit_length": secret.bit_length,
        "mode": secret.mode,
        "expiration": secret.expiration,
        "creator_id": secret.creator_id,
    });
    if !secret.content_type.is_empty() {
        shown["content_types"] = json!({"default": secret.content_type});
    }
    shown
}

async fn list(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    origin: Origin,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let rows = cloud.store.read(|state| {
        let own = state.keystone.key_secrets.iter();
        let own = own.filter(|secret| *secret.project_id == *ctx.project);
        let named = own.filter(|secret| query.get("name").is_none_or(|name| name == secret.name));
        Ok(named.map(|secret| view(secret, &origin)).collect())
    });
    Ok(Json(page(&query, "secrets", rows.await?)))
}

async fn create(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    origin: Origin,
    Input(body): Input<CreateSecret>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let kind = body.secret_type.unwrap_or_else(|| "opaque".to_owned());
    if !KINDS.contains(&&*kind) {
        let message =
            format!("Provided object does not match schema 'Secret': {kind:?} is no secret_type.");
        return Err(ApiError::bad_request("", message));
    }
    let payload = match (&body.payload, &body.payload_content_type) {
        (None, _) => None,
        (Some(_), None) => {
            let message = "Provided object does not match schema 'Secret': payload needs payload_content_type.";
            return Err(ApiError::bad_request("", message));
        }
        (Some(content), Some(content_type)) => {
            let encoding = body.payload_content_encoding.as_deref();
            if content_type == BINARY && encoding.is_none() {
                let message = "Provided object does not match schema 'Secret': payload_content_encoding must be specified for application/octet-stream.";
                return Err(ApiError::bad_request("", message));
            }
            Some(Payload::read(content_type, encoding, content.expose().as_bytes())?)
        }
    };
    let mut secret = KeySecret {
        id: new_id(),
        name: body.name.unwrap_or_default(),
        project_id: ctx.project.to_string(),
        created_at: ctx.now,
        kind,
        payload: "".into(),
        content_type: String::new(),
        is_base64: false,
        algorithm: body.algorithm,
        bit_length: body.bit_length,
        mode: body.mode,
        expiration: body.expiration,
        creator_id: ctx.user.to_string(),
        metadata: BTreeMap::new(),
    };
    if secret.name.is_empty() {
        secret.name.clone_from(&secret.id);
    }
    if let Some(payload) = payload {
        payload.put_into(&mut secret);
    }
    let secret_ref = secret_ref(&origin, &secret.id);
    let put = |state: &mut CloudState| {
        state.keystone.key_secrets.put(secret);
        Ok(())
    };
    cloud.store.change(put).await?;
    Ok((StatusCode::CREATED, Json(json!({ "secret_ref": secret_ref }))))
}

async fn show(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let found = cloud.store.read(|state| find(state, &ctx, &id)).await?;
    Ok(Json(view(&found, &origin)))
}

async fn add_payload(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    headers: HeaderMap,
    content: Bytes,
) -> Result<StatusCode, ApiError> {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let content_type = header(header::CONTENT_TYPE).unwrap_or_default();
    let payload = Payload::read(content_type, header(header::CONTENT_ENCODING), &content)?;
    let put = |state: &mut CloudState| {
        let mut secret = KeySecret::clone(&*find(state, &ctx, &id)?);
        if !secret.content_type.is_empty() {
            return Err(ApiError::conflict("", "Secret already has data, cannot modify it."));
        }
        payload.put_into(&mut secret);
        state.keystone.key_secrets.put(secret);
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(put).await
}

async fn delete(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let delete = |state: &mut CloudState| {
        let secret = find(state, &ctx, &id)?;
        // Containers lose it, as in Barbican.
        let holders: Vec<_> = state
            .keystone
            .key_containers
            .iter()
            .filter(|container| container.secrets.values().any(|held| *held == secret.id))
            .cloned()
            .collect();
        for holder in holders {
            let mut container = super::KeyContainer::clone(&holder);
            container.secrets.retain(|_, held| *held != secret.id);
            state.keystone.key_containers.put(container);
        }
        state.keystone.key_secrets.remove(&secret.id);
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(delete).await
}

async fn payload(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let found = cloud.store.read(|state| find(state, &ctx, &id)).await?;
    if found.content_type.is_empty() {
        return Err(ApiError::not_found("", "Not Found. Sorry but your secret has no payload."));
    }
    let accepted = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("*/*");
    let accepts = |range: &str| {
        let media_type = range.split(';').next().unwrap_or_default().trim();
        media_type == "*/*" || media_type == found.content_type
    };
    if !accepted.split(',').any(accepts) {
        let message = format!("Not Acceptable: the payload is {}.", found.content_type);
        return Err(ApiError::new(StatusCode::NOT_ACCEPTABLE, "", message));
    }
    let content = found.payload.expose();
    let bytes = if found.is_base64 {
        STANDARD.decode(content).unwrap_or_default()
    } else {
        content.as_bytes().to_vec()
    };
    Ok(([(header::CONTENT_TYPE, found.content_type.clone())], bytes).into_response())
}

/// Body of requests about the metadata of a secret, and of their answers.
#[derive(Debug, Deserialize)]
struct Metadata {
    metadata: BTreeMap<String, String>,
}

async fn metadata(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let found = cloud.store.read(|state| find(state, &ctx, &id)).await?;
    Ok(Json(json!({"metadata": found.metadata})))
}

async fn set_metadata(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    origin: Origin,
    Path(id): Path<String>,
    Input(body): Input<Metadata>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let put = |state: &mut CloudState| {
        let secret = find(state, &ctx, &id)?;
        let metadata = body.metadata;
        state
            .keystone
            .key_secrets
            .put(KeySecret { metadata, ..KeySecret::clone(&secret) });
        Ok(())
    };
    cloud.store.change(put).await?;
    let reference = format!("{}/metadata", secret_ref(&origin, &id));
    Ok((StatusCode::CREATED, Json(json!({ "metadata_ref": reference }))))
}

/// Every secret can be read by its whole project.
async fn acl(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    cloud.store.read(|state| find(state, &ctx, &id)).await?;
    Ok(Json(json!({"read": {"project-access": true}})))
}
