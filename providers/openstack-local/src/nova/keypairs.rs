//! Key pairs: public keys of a user, which servers would get.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State as From},
    routing,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::StatusCode;
use md5::{Digest as _, Md5};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{KeyPairRow, Microversion};
use crate::{
    server::{Auth, Cloud, Input, list::Query},
    state::{ApiError, CloudState, RequestContext},
};

pub(super) fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/os-keypairs", routing::get(list).post(create))
        .route("/os-keypairs/{name}", routing::get(show).delete(delete))
}

#[derive(Debug, Deserialize)]
struct Envelope {
    keypair: CreateKeyPair,
}

/// Body of a request for a new key pair.
#[derive(Debug, Deserialize)]
struct CreateKeyPair {
    name: String,
    #[serde(default)]
    public_key: Option<String>,
    /// From 2.2.
    #[serde(rename = "type", default)]
    kind: Option<String>,
    /// From 2.10, for administrators.
    #[serde(default)]
    user_id: Option<String>,
}

/// Returns the key of a user's key pair in the table.
pub(super) fn key(user: &str, name: &str) -> String {
    format!("{user}/{name}")
}

/// Returns the user whose key pairs a request is about.
fn user<'a>(
    ctx: &'a RequestContext,
    version: Microversion,
    asked: Option<&'a str>,
) -> Result<&'a str, ApiError> {
    match asked {
        Some(user) if version >= Microversion(10) && *user != *ctx.user => {
            super::quotas::admin_only(ctx, "os_compute_api:os-keypairs")?;
            Ok(user)
        }
        _ => Ok(&ctx.user),
    }
}

fn check_name(name: &str, version: Microversion) -> Result<(), ApiError> {
    let extra = if version >= Microversion(92) {
        " -_@."
    } else {
        " -_"
    };
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || extra.contains(c);
    if (1..=255).contains(&name.len()) && name.chars().all(is_allowed) {
        return Ok(());
    }
    let message = "Keypair data is invalid: Keypair name contains unsafe characters";
    Err(ApiError::bad_request("", message))
}

/// Returns the fingerprint of a public key in the form of OpenSSH: the MD5 of its content.
fn fingerprint(public_key: &str) -> Option<String> {
    let mut parts = public_key.split_ascii_whitespace();
    let (algorithm, content) = (parts.next()?, STANDARD.decode(parts.next()?).ok()?);
    // The content begins with the name of the algorithm, after its length.
    let length = u32::from_be_bytes(content.get(..4)?.try_into().ok()?);
    let name = content.get(4..4 + usize::try_from(length).ok()?)?;
    if name != algorithm.as_bytes() {
        return None;
    }
    let bytes: Vec<String> = Md5::digest(&content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Some(bytes.join(":"))
}

fn view(row: &KeyPairRow, version: Microversion) -> Value {
    let mut shown = json!({
        "name": row.name,
        "public_key": row.public_key,
        "fingerprint": row.fingerprint,
    });
    if version >= Microversion(2) {
        shown["type"] = "ssh".into();
    }
    shown
}

async fn list(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let user = user(&ctx, version, query.get("user_id"))?;
    let mut rows: Vec<Value> = cloud
        .store
        .read(|state| {
            let own = state.nova.key_pairs.iter().filter(|row| row.user == user);
            Ok(own
                .map(|row| json!({"keypair": view(row, version)}))
                .collect())
        })
        .await?;
    // Pages, from 2.35. The name is the marker.
    if version >= Microversion(35) {
        if let Some(marker) = query.get("marker") {
            let at = rows.iter().position(|row| row["keypair"]["name"] == marker);
            let at = at
                .ok_or_else(|| ApiError::bad_request("", format!("marker [{marker}] not found")))?;
            rows.drain(..=at);
        }
        if let Some(limit) = query.get("limit").and_then(|limit| limit.parse().ok()) {
            rows.truncate(limit);
        }
    }
    Ok(Json(json!({ "keypairs": rows })))
}

async fn create(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    Input(body): Input<Envelope>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let request = body.keypair;
    let user = user(&ctx, version, request.user_id.as_deref())?.to_owned();
    check_name(&request.name, version)?;
    if request.kind.as_deref().is_some_and(|kind| kind != "ssh") {
        let message = "Keypair data is invalid: only keys of the type ssh are supported here";
        return Err(ApiError::bad_request("", message));
    }
    let Some(public_key) = request.public_key else {
        // Nova itself refuses this from 2.92.
        let message = "Invalid input for field/attribute keypair. 'public_key' is a required property: no keys are generated here";
        return Err(ApiError::bad_request("", message));
    };
    let Some(fingerprint) = fingerprint(&public_key) else {
        let message = "Keypair data is invalid: failed to generate fingerprint";
        return Err(ApiError::bad_request("", message));
    };
    let row = KeyPairRow {
        id: key(&user, &request.name),
        name: request.name,
        user,
        public_key,
        fingerprint,
        created: ctx.now,
    };
    let put = |state: &mut CloudState| {
        if state.nova.key_pairs.get(&row.id).is_some() {
            let message = format!("Key pair '{}' already exists.", row.name);
            return Err(ApiError::conflict("", message));
        }
        let mut shown = view(&row, version);
        shown["user_id"] = row.user.clone().into();
        state.nova.key_pairs.put(row);
        Ok(shown)
    };
    let shown = cloud.store.change(put).await?;
    let status = if version >= Microversion(2) {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((status, Json(json!({ "keypair": shown }))))
}

fn not_found(name: &str, user: &str) -> ApiError {
    ApiError::not_found("", format!("Keypair {name} not found for user {user}"))
}

async fn show(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    query: Query,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let user = user(&ctx, version, query.get("user_id"))?;
    let shown = cloud.store.read(|state| {
        let row = state.nova.key_pairs.get(&key(user, &name));
        let row = row.ok_or_else(|| not_found(&name, user))?;
        let mut shown = view(row, version);
        shown["user_id"] = row.user.clone().into();
        shown["created_at"] = row
            .created
            .strftime("%Y-%m-%dT%H:%M:%S.%6f")
            .to_string()
            .into();
        shown["updated_at"] = Value::Null;
        shown["deleted_at"] = Value::Null;
        shown["deleted"] = false.into();
        shown["id"] = 1.into();
        Ok(shown)
    });
    Ok(Json(json!({"keypair": shown.await?})))
}

async fn delete(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    query: Query,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    let user = user(&ctx, version, query.get("user_id"))?;
    let remove = |state: &mut CloudState| {
        let removed = state.nova.key_pairs.remove(&key(user, &name));
        removed.map(drop).ok_or_else(|| not_found(&name, user))
    };
    cloud.store.change(remove).await?;
    Ok(if version >= Microversion(2) {
        StatusCode::NO_CONTENT
    } else {
        StatusCode::ACCEPTED
    })
}
