//! Server groups: servers that a scheduler would keep together or apart. Servers run nowhere here,
//! so a policy has no effect.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State as From},
    routing,
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Microversion, ServerGroupRow};
use crate::{
    server::{Auth, Cloud, Input, list::Query},
    state::{ApiError, CloudState, RequestContext, new_id},
};

/// Policies that every microversion has.
const HARD: [&str; 2] = ["affinity", "anti-affinity"];
/// Policies from 2.15.
const SOFT: [&str; 2] = ["soft-affinity", "soft-anti-affinity"];

pub(super) fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/os-server-groups", routing::get(list).post(create))
        .route("/os-server-groups/{id}", routing::get(show).delete(delete))
}

#[derive(Debug, Deserialize)]
struct Envelope {
    server_group: CreateServerGroup,
}

/// Body of a request for a new server group.
#[derive(Debug, Deserialize)]
struct CreateServerGroup {
    name: String,
    /// One policy, before 2.64.
    #[serde(default)]
    policies: Vec<String>,
    /// From 2.64.
    #[serde(default)]
    policy: Option<String>,
    /// From 2.64.
    #[serde(default)]
    rules: PolicyRules,
}

#[derive(Debug, Default, Deserialize)]
struct PolicyRules {
    #[serde(default)]
    max_server_per_host: Option<u32>,
}

/// Finds a group that the user may see.
///
/// # Errors
/// 404.
pub(super) fn find<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s Arc<ServerGroupRow>, ApiError> {
    let row = state.nova.server_groups.get(id);
    row.filter(|row| ctx.sees(&row.project))
        .ok_or_else(|| ApiError::not_found("", format!("Instance group {id} could not be found.")))
}

fn view(state: &CloudState, row: &ServerGroupRow, version: Microversion) -> Value {
    let members: Vec<&str> = state
        .nova
        .servers
        .iter()
        .filter(|server| server.group.as_ref() == Some(&row.id))
        .map(|server| &*server.id)
        .collect();
    let mut shown = json!({"id": row.id, "name": row.name, "members": members});
    if version >= Microversion(64) {
        shown["policy"] = row.policy.clone().into();
        shown["rules"] = match row.max_server_per_host {
            Some(max) => json!({"max_server_per_host": max}),
            None => json!({}),
        };
    } else {
        shown["policies"] = json!([row.policy]);
        shown["metadata"] = json!({});
    }
    if version >= Microversion(13) {
        shown["project_id"] = row.project.clone().into();
        shown["user_id"] = row.user.clone().into();
    }
    shown
}

async fn list(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let all = ctx.admin && query.flag("all_projects");
    let rows: Vec<Value> = cloud
        .store
        .read(|state| {
            let rows = state.nova.server_groups.iter();
            let rows = rows.filter(|row| all || *row.project == *ctx.project);
            Ok(rows.map(|row| view(state, row, version)).collect())
        })
        .await?;
    Ok(Json(json!({ "server_groups": rows })))
}

async fn create(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    Input(body): Input<Envelope>,
) -> Result<Json<Value>, ApiError> {
    let request = body.server_group;
    super::servers::check_name(&request.name)?;
    let policy = match (version >= Microversion(64), request.policy, &request.policies[..]) {
        (true, Some(policy), []) => policy,
        (false, None, [policy]) => policy.clone(),
        _ => {
            let message = "Invalid input for field/attribute server_group: exactly one policy is needed, in 'policy' from microversion 2.64 and in 'policies' before";
            return Err(ApiError::bad_request("", message));
        }
    };
    let is_known =
        HARD.contains(&&*policy) || (version >= Microversion(15) && SOFT.contains(&&*policy));
    if !is_known {
        let message =
            format!("Invalid input for field/attribute policy. Value: {policy}. It is no policy");
        return Err(ApiError::bad_request("", message));
    }
    let max_server_per_host = request.rules.max_server_per_host;
    if max_server_per_host.is_some() && policy != "anti-affinity" {
        let message = "Only anti-affinity policy supports rules.";
        return Err(ApiError::bad_request("", message));
    }
    let row = ServerGroupRow {
        id: new_id(),
        name: request.name,
        project: ctx.project.to_string(),
        user: ctx.user.to_string(),
        policy,
        max_server_per_host,
    };
    let put = |state: &mut CloudState| {
        let shown = view(state, &row, version);
        state.nova.server_groups.put(row);
        Ok(shown)
    };
    Ok(Json(json!({"server_group": cloud.store.change(put).await?})))
}

async fn show(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    version: Microversion,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let shown = cloud
        .store
        .read(|state| Ok(view(state, find(state, &ctx, &id)?, version)))
        .await?;
    Ok(Json(json!({ "server_group": shown })))
}

async fn delete(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let remove = |state: &mut CloudState| {
        find(state, &ctx, &id)?;
        state.nova.server_groups.remove(&id);
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(remove).await
}
