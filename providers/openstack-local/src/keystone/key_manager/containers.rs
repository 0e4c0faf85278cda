//! Containers: secrets that belong together, such as a certificate with its key.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State as From},
    routing,
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{find_container, find_secret, last, not_found, page, secret_ref, time};
use crate::{
    keystone::KeyContainer,
    server::{Auth, Cloud, Input, Origin, list::Query},
    state::{ApiError, CloudState, RequestContext, new_id},
};

/// Roles of the secrets in a container of the type `certificate`.
const CERTIFICATE_ROLES: [&str; 4] =
    ["certificate", "private_key", "private_key_passphrase", "intermediates"];
/// Roles of the secrets in a container of the type `rsa`.
const RSA_ROLES: [&str; 3] = ["public_key", "private_key", "private_key_passphrase"];

pub(super) fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/v1/containers", routing::get(list).post(create))
        .route("/v1/containers/{id}", routing::get(show).delete(delete))
}

/// Body of a request for a new container.
#[derive(Debug, Deserialize)]
struct CreateContainer {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    secret_refs: Vec<SecretRef>,
}

#[derive(Debug, Deserialize)]
struct SecretRef {
    #[serde(default)]
    name: String,
    secret_ref: String,
}

impl CreateContainer {
    fn check(&self) -> Result<(), ApiError> {
        let invalid = |what: String| {
            let message = format!("Provided object does not match schema 'Container': {what}.");
            Err(ApiError::bad_request("", message))
        };
        let (roles, required): (&[&str], &[&str]) = match &*self.kind {
            "generic" => return Ok(()),
            "certificate" => (&CERTIFICATE_ROLES, &["certificate"]),
            "rsa" => (&RSA_ROLES, &["public_key", "private_key"]),
            other => return invalid(format!("{other:?} is no type")),
        };
        if let Some(other) = self
            .secret_refs
            .iter()
            .find(|one| !roles.contains(&&*one.name))
        {
            return invalid(format!("{:?} is no name of a secret in it", other.name));
        }
        for role in required {
            if !self.secret_refs.iter().any(|one| one.name == *role) {
                return invalid(format!("a {} container needs a {role}", self.kind));
            }
        }
        Ok(())
    }

    /// Returns the IDs of the secrets by role.
    fn secrets(
        &self,
        state: &CloudState,
        ctx: &RequestContext,
    ) -> Result<BTreeMap<String, String>, ApiError> {
        let mut secrets = BTreeMap::new();
        for one in &self.secret_refs {
            if find_secret(state, ctx, &one.secret_ref).is_none() {
                let message = format!("Secret provided for '{}' doesn't exist.", one.name);
                return Err(ApiError::not_found("", message));
            }
            let id = last(&one.secret_ref).to_owned();
            if secrets.insert(one.name.clone(), id).is_some() {
                let message = format!("Duplicate reference name '{}'.", one.name);
                return Err(ApiError::bad_request("", message));
            }
        }
        Ok(secrets)
    }
}

fn container_ref(origin: &Origin, id: &str) -> String {
    format!("{origin}/key-manager/v1/containers/{id}")
}

fn view(container: &KeyContainer, origin: &Origin) -> Value {
    let secrets: Vec<Value> = container
        .secrets
        .iter()
        .map(|(name, id)| json!({"name": name, "secret_ref": secret_ref(origin, id)}))
        .collect();
    json!({
        "container_ref": container_ref(origin, &container.id),
        "name": container.name,
        "type": container.kind,
        "status": "ACTIVE",
        "created": time(container.created_at),
        "updated": time(container.created_at),
        "secret_refs": secrets,
        "consumers": [],
    })
}

async fn list(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    origin: Origin,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let rows = cloud.store.read(|state| {
        let own = state.keystone.key_containers.iter();
        let own = own.filter(|container| *container.project_id == *ctx.project);
        let named =
            own.filter(|container| query.get("name").is_none_or(|name| name == container.name));
        Ok(named.map(|container| view(container, &origin)).collect())
    });
    Ok(Json(page(&query, "containers", rows.await?)))
}

async fn create(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    origin: Origin,
    Input(body): Input<CreateContainer>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    body.check()?;
    let id = new_id();
    let put = |state: &mut CloudState| {
        let secrets = body.secrets(state, &ctx)?;
        state.keystone.key_containers.put(KeyContainer {
            id: id.clone(),
            name: body.name.unwrap_or_default(),
            project_id: ctx.project.to_string(),
            created_at: ctx.now,
            kind: body.kind,
            secrets,
        });
        Ok(())
    };
    cloud.store.change(put).await?;
    let reference = container_ref(&origin, &id);
    Ok((StatusCode::CREATED, Json(json!({ "container_ref": reference }))))
}

async fn show(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    origin: Origin,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let find = |state: &CloudState| {
        find_container(state, &ctx, &id)
            .cloned()
            .ok_or_else(|| not_found("Container"))
    };
    let found = cloud.store.read(find).await?;
    Ok(Json(view(&found, &origin)))
}

async fn delete(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let delete = |state: &mut CloudState| {
        if find_container(state, &ctx, &id).is_none() {
            return Err(not_found("Container"));
        }
        state.keystone.key_containers.remove(&id);
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(delete).await
}
