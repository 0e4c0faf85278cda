//! Users, roles, and role assignments.

use std::sync::Arc;

use crate::api::Secret;
use axum::{
    Json, Router,
    extract::{Path, State as From},
    routing,
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Assignment, RequestUser, Role, Target, User, policy,
    secret::Hashed,
    seed::{DOMAIN, new_id},
};
use crate::{
    server::{
        Cloud, Input, Origin,
        list::{self, Query, Rules},
        unauthorized,
    },
    state::{ApiError, CloudState},
};

pub(super) fn routes() -> Router<Arc<Cloud>> {
    let role = routing::put(assign).head(check).get(check).delete(unassign);
    Router::new()
        .route("/v3/users", routing::get(list_users).post(create))
        .route("/v3/users/{id}", routing::get(show).patch(update).delete(delete))
        .route("/v3/users/{id}/password", routing::post(change_password))
        .route("/v3/roles", routing::get(list_roles))
        .route("/v3/roles/{id}", routing::get(show_role))
        .route("/v3/role_assignments", routing::get(assignments))
        .route("/v3/projects/{project}/users/{user}/roles", routing::get(roles_in_project))
        .route("/v3/projects/{project}/users/{user}/roles/{role}", role)
}

type JsonResult = Result<Json<Value>, ApiError>;

#[derive(Debug, Deserialize)]
struct Envelope {
    user: Body,
}

#[derive(Debug, Deserialize)]
struct Body {
    name: Option<String>,
    domain_id: Option<String>,
    description: Option<String>,
    enabled: Option<bool>,
    default_project_id: Option<String>,
    password: Option<Secret>,
}

fn user(user: &User, origin: &Origin) -> Value {
    let mut shown = json!({
        "id": user.id,
        "name": user.name,
        "domain_id": user.domain_id,
        "description": user.description,
        "enabled": user.enabled,
        "password_expires_at": null,
        "options": {},
        "links": {"self": format!("{origin}/identity/v3/users/{}", user.id)},
    });
    if let Some(project) = &user.default_project_id {
        shown["default_project_id"] = project.as_str().into();
    }
    shown
}

fn role(role: &Role, origin: &Origin) -> Value {
    json!({
        "id": role.id,
        "name": role.name,
        "domain_id": null,
        "description": null,
        "options": {},
        "links": {"self": format!("{origin}/identity/v3/roles/{}", role.id)},
    })
}

async fn list_users(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    origin: Origin,
    query: Query,
) -> JsonResult {
    policy::admin(&caller, "list_users")?;
    let rules = Rules::keystone("users", &["id", "name", "domain_id", "enabled"]);
    let list = |state: &CloudState| {
        list::list(
            &query,
            &rules,
            state
                .keystone
                .users
                .iter()
                .map(|row| user(row, &origin))
                .collect(),
        )
    };
    cloud.store.read(list).await.map(Json)
}

async fn show(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
    origin: Origin,
) -> JsonResult {
    policy::own(&caller, &id, "get_user")?;
    let show = |state: &CloudState| {
        Ok(Json(
            json!({"user": user(policy::found(state.keystone.users.get(&id), "user", &id)?, &origin)}),
        ))
    };
    cloud.store.read(show).await
}

fn is_taken(state: &CloudState, domain: &str, name: &str, but: &str) -> bool {
    let mut users = state.keystone.users.iter();
    users.any(|user| user.domain_id == domain && user.name == name && user.id != but)
}

fn check_project(state: &CloudState, id: Option<&str>) -> Result<(), ApiError> {
    id.map_or(Ok(()), |id| {
        policy::found(state.keystone.projects.get(id), "project", id).map(|_| ())
    })
}

async fn create(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    origin: Origin,
    Input(Envelope { user: body }): Input<Envelope>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    policy::admin(&caller, "create_user")?;
    let name = body.name.unwrap_or_default();
    policy::name(&name, "name")?;
    let created = User {
        id: new_id(),
        name,
        domain_id: body.domain_id.unwrap_or_else(|| DOMAIN.to_owned()),
        description: body.description.unwrap_or_default(),
        enabled: body.enabled.unwrap_or(true),
        default_project_id: body.default_project_id,
        password: body.password.as_ref().map(Hashed::new),
    };
    let shown = user(&created, &origin);
    let create = |state: &mut CloudState| {
        policy::found(
            state.keystone.domains.get(&created.domain_id),
            "domain",
            &created.domain_id,
        )?;
        check_project(state, created.default_project_id.as_deref())?;
        policy::unique(
            is_taken(state, &created.domain_id, &created.name, ""),
            "user",
            &created.name,
        )?;
        state.keystone.users.put(created);
        Ok(())
    };
    cloud.store.change(create).await?;
    Ok((StatusCode::CREATED, Json(json!({"user": shown}))))
}

async fn update(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
    origin: Origin,
    Input(Envelope { user: body }): Input<Envelope>,
) -> JsonResult {
    policy::admin(&caller, "update_user")?;
    if let Some(name) = &body.name {
        policy::name(name, "name")?;
    }
    let password = body.password.as_ref().map(Hashed::new);
    let update = |state: &mut CloudState| {
        check_project(state, body.default_project_id.as_deref())?;
        let mut changed = User::clone(policy::found(state.keystone.users.get(&id), "user", &id)?);
        changed.name = body.name.unwrap_or(changed.name);
        changed.description = body.description.unwrap_or(changed.description);
        changed.enabled = body.enabled.unwrap_or(changed.enabled);
        changed.default_project_id = body.default_project_id.or(changed.default_project_id);
        if password.is_some() {
            changed.password = password;
            end_tokens(state, &id);
        }
        policy::unique(
            is_taken(state, &changed.domain_id, &changed.name, &id),
            "user",
            &changed.name,
        )?;
        let shown = user(&changed, &origin);
        state.keystone.users.put(changed);
        Ok(Json(json!({"user": shown})))
    };
    cloud.store.change(update).await
}

/// Removes all tokens of a user, because they were issued for the old password.
fn end_tokens(state: &mut CloudState, user: &str) {
    state
        .keystone
        .tokens
        .remove_where(|token| token.user_id == user);
}

#[derive(Debug, Deserialize)]
struct PasswordEnvelope {
    user: PasswordBody,
}

#[derive(Debug, Deserialize)]
struct PasswordBody {
    password: Secret,
    original_password: Secret,
}

async fn change_password(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
    Input(PasswordEnvelope { user: body }): Input<PasswordEnvelope>,
) -> Result<StatusCode, ApiError> {
    policy::own(&caller, &id, "change_password")?;
    let find =
        |state: &CloudState| policy::found(state.keystone.users.get(&id), "user", &id).cloned();
    let found = cloud.store.read(find).await?;
    if !found
        .password
        .as_ref()
        .is_some_and(|hash| hash.verify(&body.original_password))
    {
        return Err(unauthorized());
    }
    let new = Hashed::new(&body.password);
    let change = |state: &mut CloudState| {
        // The password may have been changed meanwhile.
        let current = state
            .keystone
            .users
            .get(&id)
            .filter(|user| user.password == found.password);
        policy::found(current, "user", &id)?;
        state
            .keystone
            .users
            .update(&id, |user| user.password = Some(new));
        end_tokens(state, &id);
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(change).await
}

async fn delete(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    policy::admin(&caller, "delete_user")?;
    let delete = |state: &mut CloudState| {
        policy::found(state.keystone.users.get(&id), "user", &id)?;
        let tables = &mut state.keystone;
        tables.users.remove(&id);
        tables
            .assignments
            .remove_where(|assignment| assignment.user_id == id);
        tables
            .application_credentials
            .remove_where(|credential| credential.user_id == id);
        tables
            .trusts
            .remove_where(|trust| trust.trustor_user_id == id || trust.trustee_user_id == id);
        tables.tokens.remove_where(|token| token.user_id == id);
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(delete).await
}

fn listed_roles<'a>(
    query: &Query,
    roles: impl Iterator<Item = &'a Arc<Role>>,
    origin: &Origin,
) -> JsonResult {
    let rules = Rules::keystone("roles", &["id", "name", "domain_id"]);
    list::list(query, &rules, roles.map(|row| role(row, origin)).collect()).map(Json)
}

async fn list_roles(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    origin: Origin,
    query: Query,
) -> JsonResult {
    policy::admin(&caller, "list_roles")?;
    cloud
        .store
        .read(|state| listed_roles(&query, state.keystone.roles.iter(), &origin))
        .await
}

async fn show_role(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
    origin: Origin,
) -> JsonResult {
    policy::admin(&caller, "get_role")?;
    let show = |state: &CloudState| {
        Ok(Json(
            json!({"role": role(policy::found(state.keystone.roles.get(&id), "role", &id)?, &origin)}),
        ))
    };
    cloud.store.read(show).await
}

async fn assignments(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    query: Query,
) -> JsonResult {
    policy::admin(&caller, "list_role_assignments")?;
    let list = |state: &CloudState| {
        let project = query
            .get("scope.project.id")
            .map(|id| Target::Project(id.to_owned()));
        let wanted = |assignment: &&Arc<Assignment>| {
            project
                .as_ref()
                .is_none_or(|project| assignment.target == *project)
                && query
                    .get("user.id")
                    .is_none_or(|id| assignment.user_id == id)
                && query
                    .get("role.id")
                    .is_none_or(|id| assignment.role_id == id)
        };
        let rows = state.keystone.assignments.iter().filter(wanted);
        let rows =
            rows.map(|assignment| shown_assignment(state, assignment, query.flag("include_names")));
        list::list(&query, &Rules::keystone("role_assignments", &[]), rows.collect())
    };
    cloud.store.read(list).await.map(Json)
}

/// Returns an assignment with IDs, and with names if requested.
fn shown_assignment(state: &CloudState, assignment: &Assignment, names: bool) -> Value {
    let tables = &state.keystone;
    let domain =
        |id: &str| json!({"id": id, "name": tables.domains.get(id).map(|domain| &domain.name)});
    let user_id = &assignment.user_id;
    let role_id = &assignment.role_id;
    let mut user = json!({"id": user_id});
    let mut role = json!({"id": role_id});
    let mut scope = match &assignment.target {
        Target::Project(id) => json!({"project": {"id": id}}),
        Target::Domain(id) => json!({"domain": {"id": id}}),
        Target::System => json!({"system": {"all": true}}),
    };
    if names {
        if let Some(found) = tables.users.get(user_id) {
            user = json!({"id": found.id, "name": found.name, "domain": domain(&found.domain_id)});
        }
        if let Some(found) = tables.roles.get(role_id) {
            role = json!({"id": found.id, "name": found.name});
        }
        match &assignment.target {
            Target::Project(id) => {
                if let Some(found) = tables.projects.get(id) {
                    let domain = domain(&found.domain_id);
                    scope =
                        json!({"project": {"id": found.id, "name": found.name, "domain": domain}});
                }
            }
            Target::Domain(id) => scope = json!({"domain": domain(id)}),
            Target::System => {}
        }
    }
    json!({"scope": scope, "user": user, "role": role, "links": {}})
}

type RolePath = Path<(String, String, String)>;

/// Checks the parts of an assignment, and returns it.
fn assignment(
    state: &CloudState,
    (project, user, role): &(String, String, String),
) -> Result<Assignment, ApiError> {
    policy::found(state.keystone.projects.get(project), "project", project)?;
    policy::found(state.keystone.users.get(user), "user", user)?;
    policy::found(state.keystone.roles.get(role), "role", role)?;
    Ok(Assignment::new(user, role, Target::Project(project.clone())))
}

async fn assign(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(path): RolePath,
) -> Result<StatusCode, ApiError> {
    policy::admin(&caller, "create_grant")?;
    let assign = |state: &mut CloudState| {
        let assignment = assignment(state, &path)?;
        state.keystone.assignments.put(assignment);
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(assign).await
}

/// Finds an assignment by its parts.
fn assigned(state: &CloudState, path: &(String, String, String)) -> Result<Assignment, ApiError> {
    let wanted = assignment(state, path)?;
    let found = state
        .keystone
        .assignments
        .iter()
        .any(|assignment| **assignment == wanted);
    let missing = || {
        ApiError::not_found("", format!("Could not find role assignment with role: {}.", path.2))
    };
    if found { Ok(wanted) } else { Err(missing()) }
}

async fn check(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(path): RolePath,
) -> Result<StatusCode, ApiError> {
    policy::admin(&caller, "check_grant")?;
    cloud.store.read(|state| assigned(state, &path)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn unassign(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(path): RolePath,
) -> Result<StatusCode, ApiError> {
    policy::admin(&caller, "revoke_grant")?;
    let unassign = |state: &mut CloudState| {
        let wanted = assigned(state, &path)?;
        state
            .keystone
            .assignments
            .remove_where(|assignment| *assignment == wanted);
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(unassign).await
}

async fn roles_in_project(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path((project, user)): Path<(String, String)>,
    origin: Origin,
    query: Query,
) -> JsonResult {
    policy::admin(&caller, "list_grants")?;
    let list = |state: &CloudState| {
        let target = Target::Project(project.clone());
        listed_roles(&query, super::token::roles_of(state, &user, &target).into_iter(), &origin)
    };
    cloud.store.read(list).await
}
