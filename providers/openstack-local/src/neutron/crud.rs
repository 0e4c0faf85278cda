//! What the routes of all resources share: list, show, create (one or several), update, delete,
//! tags.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, State as From},
    response::{IntoResponse, Response},
    routing,
};
use http::{HeaderMap, StatusCode, header};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Resource, resource::parse_if_match};
use crate::{
    server::{
        Auth, Cloud, Input, Settings,
        list::{Query, Rules, list as page},
    },
    state::{ApiError, CloudState, RequestContext},
};

/// A resource with routes.
pub(super) trait Crud: Send + Sync + 'static {
    /// The resource as shown.
    type Row: Serialize + Send;
    /// The create request.
    type Create: Serialize + DeserializeOwned + Send;
    /// The update request.
    type Update: Serialize + DeserializeOwned + Send;
    /// The kind of resource.
    const RESOURCE: Resource;
    /// Name of the collection in paths.
    const PATH: &'static str;
    /// Key of one in bodies.
    const ONE: &'static str;
    /// Key of several in bodies.
    const MANY: &'static str;
    /// Attributes to filter and sort by, besides those that every resource has.
    const ATTRIBUTES: &'static [&'static str];

    /// Returns those that the user may see.
    fn list(state: &CloudState, ctx: &RequestContext) -> Vec<Self::Row>;
    /// Returns one.
    fn show(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<Self::Row, ApiError>;
    /// Creates one.
    fn create(
        state: &mut CloudState,
        ctx: &RequestContext,
        request: Self::Create,
    ) -> Result<Self::Row, ApiError>;
    /// Changes one.
    fn update(
        state: &mut CloudState,
        ctx: &RequestContext,
        id: &str,
        request: Self::Update,
    ) -> Result<Self::Row, ApiError>;
    /// Deletes one.
    fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError>;

    /// Creates several, all or none.
    fn create_all(
        state: &mut CloudState,
        ctx: &RequestContext,
        requests: Vec<Self::Create>,
    ) -> Result<Vec<Self::Row>, ApiError> {
        requests
            .into_iter()
            .map(|request| Self::create(state, ctx, request))
            .collect()
    }

    /// Returns whether [`prepare`](Self::prepare) has something to do.
    fn is_prepared(_state: &CloudState, _cx: &RequestContext) -> bool {
        true
    }

    /// Creates what a list must show although no request created it.
    fn prepare(_state: &mut CloudState, _cx: &RequestContext) {}
}

/// Attributes that every resource has.
const STANDARD: [&str; 9] = [
    "id",
    "name",
    "description",
    "project_id",
    "tenant_id",
    "created_at",
    "updated_at",
    "revision_number",
    "tags",
];

/// Returns the routes of a resource.
pub(super) fn routes<C: Crud>() -> Router<Arc<Cloud>> {
    let all = format!("/v2.0/{}", C::PATH);
    Router::new()
        .route(
            &format!("{all}/{{id}}/tags/{{tag}}"),
            routing::get(has_tag::<C>)
                .put(add_tag::<C>)
                .delete(remove_tag::<C>),
        )
        .route(
            &format!("{all}/{{id}}/tags"),
            routing::get(tags::<C>)
                .put(set_tags::<C>)
                .delete(clear_tags::<C>),
        )
        .route(
            &format!("{all}/{{id}}"),
            routing::get(show::<C>).put(update::<C>).delete(delete::<C>),
        )
        .route(&all, routing::get(list::<C>).post(create::<C>))
}

async fn list<C: Crud>(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    if !cloud.store.peek(|state| C::is_prepared(state, &ctx)) {
        let prepare = |state: &mut CloudState| {
            C::prepare(state, &ctx);
            Ok(())
        };
        cloud.store.change(prepare).await?;
    }
    let rows = cloud.store.read(|state| Ok(C::list(state, &ctx))).await?;
    rows_page::<C>(&query, &cloud.settings(), &rows).map(Json)
}

fn rows_page<C: Crud>(
    query: &Query,
    settings: &Settings,
    rows: &[C::Row],
) -> Result<Value, ApiError> {
    let rows = rows.iter().map(value).collect::<Result<_, _>>()?;
    let attributes: Vec<&str> = STANDARD.iter().chain(C::ATTRIBUTES).copied().collect();
    page(query, &Rules::neutron(C::MANY, &attributes, settings), rows)
}

/// Returns a row as JSON.
fn value(row: &impl Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(row).map_err(|error| {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "",
            format!("A row cannot be shown: {error}"),
        )
    })
}

async fn show<C: Crud>(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    query: Query,
) -> Result<Json<Value>, ApiError> {
    let row = cloud.store.read(|state| C::show(state, &ctx, &id)).await?;
    Ok(Json(json!({ C::ONE: query.select(value(&row)?) })))
}

async fn create<C: Crud>(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Input(mut body): Input<Value>,
) -> Result<Response, ApiError> {
    let body = match (body.get_mut(C::MANY).map(Value::take), body.get_mut(C::ONE).map(Value::take))
    {
        (Some(Value::Array(many)), None) => {
            let requests = many
                .into_iter()
                .map(read)
                .collect::<Result<Vec<C::Create>, _>>()?;
            let rows = cloud
                .store
                .change(|state| C::create_all(state, &ctx, requests))
                .await?;
            json!({ C::MANY: rows.iter().map(value).collect::<Result<Vec<_>, _>>()? })
        }
        (None, Some(one)) => {
            let request: C::Create = read(one)?;
            let row = cloud
                .store
                .change(|state| C::create(state, &ctx, request))
                .await?;
            json!({ C::ONE: value(&row)? })
        }
        _ => return Err(missing(C::ONE)),
    };
    Ok((StatusCode::CREATED, Json(body)).into_response())
}

async fn update<C: Crud>(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    headers: HeaderMap,
    Input(mut body): Input<Value>,
) -> Result<Json<Value>, ApiError> {
    let one = body
        .get_mut(C::ONE)
        .map(Value::take)
        .ok_or_else(|| missing(C::ONE))?;
    let request: C::Update = read(one)?;
    let revision = revision(&headers)?;
    let row = cloud.store.change(|state| {
        C::RESOURCE.check_revision(state, &ctx, &id, revision)?;
        C::update(state, &ctx, &id, request)
    });
    Ok(Json(json!({ C::ONE: value(&row.await?)? })))
}

async fn delete<C: Crud>(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<StatusCode, ApiError> {
    let revision = revision(&headers)?;
    let deleted = cloud.store.change(|state| {
        C::RESOURCE.check_revision(state, &ctx, &id, revision)?;
        C::delete(state, &ctx, &id)
    });
    deleted.await.map(|()| StatusCode::NO_CONTENT)
}

/// Parses the revision that a change is meant for.
pub(super) fn revision(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let value = headers
        .get(header::IF_MATCH)
        .map(|value| value.to_str().unwrap_or_default());
    value.map(parse_if_match).transpose()
}

pub(super) fn missing(key: &str) -> ApiError {
    ApiError::bad_request("HTTPBadRequest", format!("Unable to find '{key}' in request body"))
}

/// Parses a request, and rejects unknown attributes.
pub(super) fn read<T: Serialize + DeserializeOwned>(asked: Value) -> Result<T, ApiError> {
    let invalid = |error: serde_json::Error| {
        ApiError::bad_request("HTTPBadRequest", format!("Invalid input: {error}"))
    };
    let given: Vec<String> = match &asked {
        // `tenant_id` is parsed as `project_id`; an attribute that is null may be absent from the
        // result.
        Value::Object(given) => {
            let given = given
                .iter()
                .filter(|(key, value)| !value.is_null() && *key != "tenant_id");
            given.map(|(key, _)| key.clone()).collect()
        }
        _ => return Err(ApiError::bad_request("HTTPBadRequest", "Resource body is not an object")),
    };
    let read: T = serde_json::from_value(asked).map_err(invalid)?;
    let known = serde_json::to_value(&read).map_err(invalid)?;
    let unknown: Vec<_> = given
        .iter()
        .filter(|key| known.get(key.as_str()).is_none())
        .map(String::as_str)
        .collect();
    if unknown.is_empty() {
        return Ok(read);
    }
    let message = format!("Unrecognized attribute(s) '{}'", unknown.join(", "));
    Err(ApiError::bad_request("HTTPBadRequest", message))
}

async fn tags<C: Crud>(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let tags = cloud
        .store
        .read(|state| Ok(C::RESOURCE.standard(state, &ctx, &id)?.tags.clone()))
        .await?;
    Ok(Json(json!({ "tags": tags })))
}

async fn set_tags<C: Crud>(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    Input(body): Input<crate::api::neutron::Tags>,
) -> Result<Json<Value>, ApiError> {
    let tags = cloud
        .store
        .change(|state| C::RESOURCE.change_tags(state, &ctx, &id, |tags| *tags = body.tags))
        .await?;
    Ok(Json(json!({ "tags": tags })))
}

async fn clear_tags<C: Crud>(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    cloud
        .store
        .change(|state| C::RESOURCE.change_tags(state, &ctx, &id, Vec::clear))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn has_tag<C: Crud>(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path((id, tag)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let tags = cloud
        .store
        .read(|state| Ok(C::RESOURCE.standard(state, &ctx, &id)?.tags.clone()))
        .await?;
    if tags.contains(&tag) {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::not_found("TagNotFound", format!("Tag {tag} could not be found.")))
}

async fn add_tag<C: Crud>(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path((id, tag)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    cloud
        .store
        .change(|state| C::RESOURCE.change_tags(state, &ctx, &id, |tags| tags.push(tag)))
        .await?;
    Ok(StatusCode::CREATED)
}

async fn remove_tag<C: Crud>(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path((id, tag)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    cloud
        .store
        .change(|state| C::RESOURCE.remove_tag(state, &ctx, &id, &tag))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}
