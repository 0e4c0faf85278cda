//! Projects and domains.

use std::sync::Arc;

use crate::api::keystone::{self as api, SelfLink};
use axum::{
    Json, Router,
    extract::{Path, State as From},
    routing,
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Assignment, Domain, Project, RequestUser, Target, policy,
    seed::{DOMAIN, new_id},
    token::roles_of,
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
        .route("/v3/projects", routing::get(list_projects).post(create))
        .route("/v3/projects/{id}", routing::get(show).patch(update).delete(delete))
        .route("/v3/auth/projects", routing::get(own_projects))
        .route("/v3/users/{id}/projects", routing::get(projects_of))
        .route("/v3/domains", routing::get(list_domains))
        .route("/v3/domains/{id}", routing::get(show_domain))
        .route("/v3/auth/domains", routing::get(own_domains))
}

#[derive(Debug, Deserialize)]
struct Envelope {
    project: Body,
}

#[derive(Debug, Deserialize)]
struct Body {
    name: Option<String>,
    domain_id: Option<String>,
    description: Option<String>,
    enabled: Option<bool>,
    tags: Option<Vec<String>>,
}

fn project(project: &Project, origin: &Origin) -> Value {
    let shown = api::Project {
        id: project.id.clone(),
        name: project.name.clone(),
        domain_id: project.domain_id.clone(),
        description: project.description.clone(),
        enabled: project.enabled,
        parent_id: Some(project.domain_id.clone()),
        is_domain: false,
        tags: project.tags.clone(),
        links: SelfLink {
            this: format!("{origin}/identity/v3/projects/{}", project.id),
        },
    };
    let mut shown = json!(shown);
    shown["options"] = json!({});
    shown
}

fn domain(domain: &Domain, origin: &Origin) -> Value {
    json!({
        "id": domain.id,
        "name": domain.name,
        "description": domain.description,
        "enabled": domain.enabled,
        "tags": [],
        "options": {},
        "links": {"self": format!("{origin}/identity/v3/domains/{}", domain.id)},
    })
}

type JsonResult = Result<Json<Value>, ApiError>;

async fn list_projects(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    origin: Origin,
    query: Query,
) -> JsonResult {
    policy::admin(&caller, "list_projects")?;
    cloud
        .store
        .read(|state| listed(&query, state.keystone.projects.iter(), &origin))
        .await
}

fn listed<'a>(
    query: &Query,
    projects: impl Iterator<Item = &'a Arc<Project>>,
    origin: &Origin,
) -> JsonResult {
    let rules = Rules::keystone(
        "projects",
        &["id", "name", "domain_id", "enabled", "parent_id", "is_domain", "tags"],
    );
    list::list(query, &rules, projects.map(|row| project(row, origin)).collect()).map(Json)
}

/// Returns the projects where a user has a role.
fn with_roles<'s>(state: &'s CloudState, user: &str) -> impl Iterator<Item = &'s Arc<Project>> {
    let has_role = move |project: &&Arc<Project>| {
        project.enabled && !roles_of(state, user, &Target::Project(project.id.clone())).is_empty()
    };
    state
        .keystone
        .projects
        .iter()
        .filter(has_role)
        .collect::<Vec<_>>()
        .into_iter()
}

async fn own_projects(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    origin: Origin,
    query: Query,
) -> JsonResult {
    cloud
        .store
        .read(|state| listed(&query, with_roles(state, &caller.ctx.user), &origin))
        .await
}

async fn projects_of(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
    origin: Origin,
    query: Query,
) -> JsonResult {
    policy::own(&caller, &id, "list_user_projects")?;
    let list = |state: &CloudState| {
        policy::found(state.keystone.users.get(&id), "user", &id)?;
        listed(&query, with_roles(state, &id), &origin)
    };
    cloud.store.read(list).await
}

async fn show(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
    origin: Origin,
) -> JsonResult {
    let show = |state: &CloudState| {
        let found = state.keystone.projects.get(&id);
        let target = Target::Project(id.clone());
        let may = caller.ctx.admin
            || *caller.ctx.project == *id
            || !roles_of(state, &caller.ctx.user, &target).is_empty();
        policy::allow(may, "get_project")?;
        Ok(Json(json!({"project": project(policy::found(found, "project", &id)?, &origin)})))
    };
    cloud.store.read(show).await
}

fn is_taken(state: &CloudState, domain: &str, name: &str, but: &str) -> bool {
    let mut projects = state.keystone.projects.iter();
    projects.any(|project| project.domain_id == domain && project.name == name && project.id != but)
}

async fn create(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    origin: Origin,
    Input(Envelope { project: body }): Input<Envelope>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    policy::admin(&caller, "create_project")?;
    let name = body.name.unwrap_or_default();
    policy::name(&name, "name")?;
    let created = Project {
        id: new_id(),
        name,
        domain_id: body.domain_id.unwrap_or_else(|| DOMAIN.to_owned()),
        description: body.description.unwrap_or_default(),
        enabled: body.enabled.unwrap_or(true),
        tags: body.tags.unwrap_or_default(),
    };
    let shown = project(&created, &origin);
    let create = |state: &mut CloudState| {
        policy::found(
            state.keystone.domains.get(&created.domain_id),
            "domain",
            &created.domain_id,
        )?;
        policy::unique(
            is_taken(state, &created.domain_id, &created.name, ""),
            "project",
            &created.name,
        )?;
        state.keystone.projects.put(created);
        Ok(())
    };
    cloud.store.change(create).await?;
    Ok((StatusCode::CREATED, Json(json!({"project": shown}))))
}

async fn update(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
    origin: Origin,
    Input(Envelope { project: body }): Input<Envelope>,
) -> JsonResult {
    policy::admin(&caller, "update_project")?;
    if let Some(name) = &body.name {
        policy::name(name, "name")?;
    }
    let update = |state: &mut CloudState| {
        let mut changed =
            Project::clone(policy::found(state.keystone.projects.get(&id), "project", &id)?);
        changed.name = body.name.unwrap_or(changed.name);
        changed.description = body.description.unwrap_or(changed.description);
        changed.enabled = body.enabled.unwrap_or(changed.enabled);
        changed.tags = body.tags.unwrap_or(changed.tags);
        policy::unique(
            is_taken(state, &changed.domain_id, &changed.name, &id),
            "project",
            &changed.name,
        )?;
        let shown = project(&changed, &origin);
        state.keystone.projects.put(changed);
        Ok(Json(json!({"project": shown})))
    };
    cloud.store.change(update).await
}

async fn delete(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    policy::admin(&caller, "delete_project")?;
    let delete = |state: &mut CloudState| {
        policy::found(state.keystone.projects.get(&id), "project", &id)?;
        let tables = &mut state.keystone;
        tables.projects.remove(&id);
        // Tokens are checked when they are used.
        let target = Target::Project(id.clone());
        tables
            .assignments
            .remove_where(|assignment: &Assignment| assignment.target == target);
        tables
            .application_credentials
            .remove_where(|credential| credential.project_id == id);
        tables.trusts.remove_where(|trust| trust.project_id == id);
        Ok(StatusCode::NO_CONTENT)
    };
    cloud.store.change(delete).await
}

fn listed_domains<'a>(
    query: &Query,
    domains: impl Iterator<Item = &'a Arc<Domain>>,
    origin: &Origin,
) -> JsonResult {
    let rules = Rules::keystone("domains", &["id", "name", "enabled"]);
    list::list(query, &rules, domains.map(|row| domain(row, origin)).collect()).map(Json)
}

async fn list_domains(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    origin: Origin,
    query: Query,
) -> JsonResult {
    policy::admin(&caller, "list_domains")?;
    cloud
        .store
        .read(|state| listed_domains(&query, state.keystone.domains.iter(), &origin))
        .await
}

async fn own_domains(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    origin: Origin,
    query: Query,
) -> JsonResult {
    let list = |state: &CloudState| {
        let has_role = |domain: &&Arc<Domain>| {
            domain.enabled
                && !roles_of(state, &caller.ctx.user, &Target::Domain(domain.id.clone())).is_empty()
        };
        listed_domains(&query, state.keystone.domains.iter().filter(has_role), &origin)
    };
    cloud.store.read(list).await
}

async fn show_domain(
    From(cloud): From<Arc<Cloud>>,
    caller: RequestUser,
    Path(id): Path<String>,
    origin: Origin,
) -> JsonResult {
    let show = |state: &CloudState| {
        let own = state
            .keystone
            .users
            .get(&caller.ctx.user)
            .is_some_and(|user| user.domain_id == id);
        policy::allow(caller.ctx.admin || own, "get_domain")?;
        Ok(Json(
            json!({"domain": domain(policy::found(state.keystone.domains.get(&id), "domain", &id)?, &origin)}),
        ))
    };
    cloud.store.read(show).await
}
