//! Application credentials and trusts: some of a user's roles, for a program or for another user.

use std::sync::Arc;

use crate::api::{
    Secret,
    keystone::{
        self as api, ApplicationCredentialCreate, ApplicationCredentialEnvelope, Named, RoleRef,
        SelfLink,
    },
};
use axum::{
    Json, Router,
    extract::{Path, State as From},
    routing,
};
use http::StatusCode;
use jiff::{Timestamp, civil::DateTime, tz::TimeZone};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ApplicationCredential, RequestUser, Trust, policy,
    secret::{Hashed, random_secret},
    seed::new_id,
    token,
};
use crate::{
    server::{
        Cloud, Input, Origin,
        list::{self, Query, Rules},
    },
    state::{ApiError, CloudState},
};

pub(super) fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route(
            "/v3/users/{user}/application_credentials",
            routing::get(list_credentials).post(create),
        )
        .route("/v3/users/{user}/application_credentials/{id}", routing::get(show).delete(delete))
        .route("/v3/OS-TRUST/trusts", routing::get(list_trusts).post(create_trust))
        .route("/v3/OS-TRUST/trusts/{id}", routing::get(show_trust).delete(delete_trust))
        .route("/v3/OS-TRUST/trusts/{id}/roles", routing::get(trust_roles))
}

type JsonResult = Result<Json<Value>, ApiError>;

/// Parses a time: with a zone, or without one in UTC.
fn time(text: &str, field: &str) -> Result<Timestamp, ApiError> {
    let zoned = text.parse::<Timestamp>().ok();
    let plain = || {
        Some(
            text.parse::<DateTime>()
                .ok()?
                .to_zoned(TimeZone::UTC)
                .ok()?
                .timestamp(),
        )
    };
    let refuse = || {
        ApiError::bad_request(
            "",
            format!("Invalid input for field '{field}': '{text}' is no time."),
        )
    };
    zoned.or_else(plain).ok_or_else(refuse)
}

/// Parses the expiry of something that is created now.
fn end(text: Option<&str>, now: Timestamp) -> Result<Option<Timestamp>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    let end = time(text, "expires_at")?;
    let past = || {
        ApiError::bad_request("", "Invalid input for field 'expires_at': the time is in the past.")
    };
    if end > now {
        Ok(Some(end))
    } else {
        Err(past())
    }
}

/// Finds the roles to delegate, among those of the user's token; all when none are named.
fn roles(
    state: &CloudState,
    caller: &RequestUser,
    asked: Option<&[RoleRef]>,
) -> Result<Vec<String>, ApiError> {
    let have = token::roles(state, &caller.token);
    let Some(asked) = asked.filter(|asked| !asked.is_empty()) else {
        return Ok(have.into_iter().map(|role| role.id.clone()).collect());
    };
    let find = |asked: &RoleRef| {
        let wanted = |role: &&&Arc<super::Role>| {
            asked
                .id
                .as_ref()
                .map_or_else(|| asked.name.as_ref() == Some(&role.name), |id| *id == role.id)
        };
        let name = asked
            .id
            .as_deref()
            .or(asked.name.as_deref())
            .unwrap_or_default();
        let missing = || {
            ApiError::bad_request("", format!("Invalid role '{name}': the token does not have it."))
        };
        have.iter()
            .find(wanted)
            .map(|role| role.id.clone())
            .ok_or_else(missing)
    };
    asked.iter().map(find).collect()
}

fn named_roles(state: &CloudState, ids: &[String]) -> Vec<Named> {
    let roles = ids.iter().filter_map(|id| state.keystone.roles.get(id));
    roles
        .map(|role| Named { id: role.id.clone(), name: role.name.clone() })
        .collect()
}

fn is_unrestricted(state: &CloudState, caller: &RequestUser) -> bool {
    let id = caller.token.application_credential_id.as_ref();
    id.and_then(|id| state.keystone.application_credentials.get(id))
        .is_some_and(|credential| credential.unrestricted)
}

fn credential(
    state: &CloudState,
    credential: &ApplicationCredential,
    secret: Option<Secret>,
    origin: &Origin,
) -> api::ApplicationCredential {
    let user = &credential.user_id;
    let id = &credential.id;
    api::ApplicationCredential {
        id: id.clone(),
        name: credential.name.clone(),
        description: credential.description.clone(),
        project_id: credential.project_id.clone(),
        user_id: user.clone(),
        expires_at: credential
            .expires_at
            .map(|at| at.strftime("%Y-%m-%dT%H:%M:%S%.6f").to_string()),
        roles: named_roles(state, &credential.role_ids),
        unrestricted: credential.unrestricted,
        secret,
        links: SelfLink {
            this: format!("{origin}/identity/v3/users/{user}/application_credentials/{id}"),
        },
    }
}

async fn list_credentials(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(user): Path<String>,
    origin: Origin,
    query: Query,
) -> JsonResult {
    policy::own(&caller, &user, "list_application_credentials")?;
    let rules = Rules::keystone("application_credentials", &["id", "name"]);
    let list = |state: &CloudState| {
        let rows = state
            .keystone
            .application_credentials
            .iter()
            .filter(|row| row.user_id == user);
        list::list(
            &query,
            &rules,
            rows.map(|row| json!(credential(state, row, None, &origin)))
                .collect(),
        )
    };
    cloud.store.read(list).await.map(Json)
}

async fn create(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(user): Path<String>,
    origin: Origin,
    Input(ApplicationCredentialEnvelope { application_credential: body }): Input<
        ApplicationCredentialEnvelope<ApplicationCredentialCreate>,
    >,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    const ACTION: &str = "create_application_credential";
    // Nobody, not even an administrator, creates one for somebody else, and it is for the token's
    // project.
    policy::allow(*caller.ctx.user == *user && !caller.ctx.project.is_empty(), ACTION)?;
    policy::name(&body.name, "name")?;
    let expires_at = end(body.expires_at.as_deref(), caller.ctx.now)?;
    let (secret, hashed) = match body.secret {
        Some(secret) => (secret.clone(), Hashed::new(&secret)),
        None => {
            let secret = random_secret();
            (secret.clone(), Hashed::of_random(&secret))
        }
    };
    let create = |state: &mut CloudState| {
        policy::not_delegated(&caller, is_unrestricted(state, &caller), ACTION)?;
        let is_taken =
            |other: &Arc<ApplicationCredential>| other.user_id == user && other.name == body.name;
        let taken = state.keystone.application_credentials.iter().any(is_taken);
        policy::unique(taken, "application_credential", &body.name)?;
        let created = ApplicationCredential {
            id: new_id(),
            name: body.name,
            description: body.description,
            user_id: user,
            project_id: caller.ctx.project.to_string(),
            role_ids: roles(state, &caller, body.roles.as_deref())?,
            expires_at,
            unrestricted: body.unrestricted.unwrap_or(false),
            secret: hashed,
        };
        let shown = credential(state, &created, Some(secret), &origin);
        state.keystone.application_credentials.put(created);
        Ok((StatusCode::CREATED, Json(json!({"application_credential": shown}))))
    };
    cloud.store.change(create).await
}

fn find_credential<'s>(
    state: &'s CloudState,
    user: &str,
    id: &str,
) -> Result<&'s Arc<ApplicationCredential>, ApiError> {
    let found = state
        .keystone
        .application_credentials
        .get(id)
        .filter(|credential| credential.user_id == user);
    policy::found(found, "application credential", id)
}

async fn show(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path((user, id)): Path<(String, String)>,
    origin: Origin,
) -> JsonResult {
    policy::own(&caller, &user, "get_application_credential")?;
    let show = |state: &CloudState| {
        let shown = credential(state, find_credential(state, &user, &id)?, None, &origin);
        Ok(Json(json!({"application_credential": shown})))
    };
    cloud.store.read(show).await
}

async fn delete(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path((user, id)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    const ACTION: &str = "delete_application_credential";
    policy::own(&caller, &user, ACTION)?;
    let delete = |state: &mut CloudState| {
        policy::not_delegated(&caller, is_unrestricted(state, &caller), ACTION)?;
        find_credential(state, &user, &id)?;
        state.keystone.application_credentials.remove(&id);
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(delete).await
}

#[derive(Debug, Deserialize)]
struct TrustEnvelope {
    trust: TrustBody,
}

#[derive(Debug, Deserialize)]
struct TrustBody {
    trustor_user_id: String,
    trustee_user_id: String,
    impersonation: bool,
    #[serde(default)]
    project_id: Option<String>,
    #[serde(default)]
    roles: Vec<RoleRef>,
    #[serde(default)]
    expires_at: Option<String>,
    #[serde(default)]
    remaining_uses: Option<u32>,
}

fn trust(state: &CloudState, trust: &Trust, origin: &Origin) -> Value {
    let link = format!("{origin}/identity/v3/OS-TRUST/trusts/{}", trust.id);
    json!({
        "id": trust.id,
        "trustor_user_id": trust.trustor_user_id,
        "trustee_user_id": trust.trustee_user_id,
        "project_id": trust.project_id,
        "impersonation": trust.impersonation,
        "roles": named_roles(state, &trust.role_ids),
        "expires_at": trust.expires_at.map(token::time),
        "remaining_uses": trust.remaining_uses,
        "redelegation_count": 0,
        "deleted_at": null,
        "links": {"self": link},
        "roles_links": {"self": format!("{link}/roles"), "next": null, "previous": null},
    })
}

async fn create_trust(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    origin: Origin,
    Input(TrustEnvelope { trust: body }): Input<TrustEnvelope>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    const ACTION: &str = "create_trust";
    policy::allow(*caller.ctx.user == *body.trustor_user_id, ACTION)?;
    let project_id = body.project_id.unwrap_or_default();
    policy::allow(*caller.ctx.project == *project_id && !project_id.is_empty(), ACTION)?;
    if body.roles.is_empty() {
        return Err(ApiError::forbidden("", "At least one role should be specified."));
    }
    if body.remaining_uses == Some(0) {
        return Err(ApiError::bad_request(
            "",
            "Invalid input for field 'remaining_uses': it must be a positive integer.",
        ));
    }
    let expires_at = end(body.expires_at.as_deref(), caller.ctx.now)?;
    let create = |state: &mut CloudState| {
        policy::not_delegated(&caller, is_unrestricted(state, &caller), ACTION)?;
        policy::found(
            state.keystone.users.get(&body.trustee_user_id),
            "user",
            &body.trustee_user_id,
        )?;
        let created = Trust {
            id: new_id(),
            trustor_user_id: body.trustor_user_id,
            trustee_user_id: body.trustee_user_id,
            project_id,
            role_ids: roles(state, &caller, Some(&body.roles))?,
            impersonation: body.impersonation,
            expires_at,
            remaining_uses: body.remaining_uses,
        };
        let shown = trust(state, &created, &origin);
        state.keystone.trusts.put(created);
        Ok((StatusCode::CREATED, Json(json!({"trust": shown}))))
    };
    cloud.store.change(create).await
}

async fn list_trusts(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    origin: Origin,
    query: Query,
) -> JsonResult {
    let rules = Rules::keystone("trusts", &["trustor_user_id", "trustee_user_id"]);
    let list = |state: &CloudState| {
        let rows = state
            .keystone
            .trusts
            .iter()
            .filter(|trust| is_party(&caller, trust));
        list::list(&query, &rules, rows.map(|row| trust(state, row, &origin)).collect())
    };
    cloud.store.read(list).await.map(Json)
}

fn is_party(caller: &RequestUser, trust: &Trust) -> bool {
    let user = &*caller.ctx.user;
    caller.ctx.admin || trust.trustor_user_id == user || trust.trustee_user_id == user
}

fn find_trust<'s>(
    state: &'s CloudState,
    caller: &RequestUser,
    id: &str,
) -> Result<&'s Arc<Trust>, ApiError> {
    let found = policy::found(state.keystone.trusts.get(id), "trust", id)?;
    policy::allow(is_party(caller, found), "get_trust")?;
    Ok(found)
}

async fn show_trust(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
    origin: Origin,
) -> JsonResult {
    let show = |state: &CloudState| {
        Ok(Json(json!({"trust": trust(state, find_trust(state, &caller, &id)?, &origin)})))
    };
    cloud.store.read(show).await
}

async fn trust_roles(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
    query: Query,
) -> JsonResult {
    let list = |state: &CloudState| {
        let roles = named_roles(state, &find_trust(state, &caller, &id)?.role_ids);
        list::list(
            &query,
            &Rules::keystone("roles", &["id", "name"]),
            roles.into_iter().map(|role| json!(role)).collect(),
        )
    };
    cloud.store.read(list).await.map(Json)
}

async fn delete_trust(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let delete = |state: &mut CloudState| {
        let found = find_trust(state, &caller, &id)?;
        policy::own(&caller, &found.trustor_user_id, "delete_trust")?;
        state.keystone.trusts.remove(&id);
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(delete).await
}
