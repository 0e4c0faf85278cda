//! HTTP routes of the load-balancer service.

use std::sync::Arc;

use crate::api::octavia::{QuotaUpdate, StatsBody};
use axum::{
    Json, Router,
    extract::{Path, State as From},
    routing::{get, put},
};
use http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    catalog,
    error::{not_found, unsupported_option},
    listeners, load_balancers, members, monitors,
    offers::{flavor_profiles, flavors, zone_profiles, zones},
    pools, quotas, schema,
    settings::Settings,
    transactions::{change, read},
};
use crate::{
    server::{
        Auth, Cloud, Input, Origin,
        list::{self, Query, Rules},
    },
    state::{ApiError, CloudState, RequestContext},
};

type SharedCloud = From<Arc<Cloud>>;
type JsonResult = Result<Json<Value>, ApiError>;

/// Returns the routes of this service.
pub fn routes() -> Router<Arc<Cloud>> {
    let lbaas = load_balancer_routes::routes()
        .merge(listener_routes::routes())
        .merge(pool_routes::routes())
        .merge(monitor_routes::routes())
        .merge(flavor_routes::routes())
        .merge(flavor_profile_routes::routes())
        .merge(zone_routes::routes())
        .merge(zone_profile_routes::routes())
        .merge(member_routes())
        .merge(other_routes());
    let amphorae = get(async |Auth(_): Auth| Json(json!({"amphorae": [], "amphorae_links": []})));
    Router::new()
        .route("/", get(versions))
        .nest("/v2.0/lbaas", lbaas.clone())
        .nest("/v2/lbaas", lbaas)
        .route("/v2.0/octavia/amphorae", amphorae.clone())
        .route("/v2/octavia/amphorae", amphorae)
}

async fn versions(From(cloud): SharedCloud, origin: Origin) -> JsonResult {
    let base = format!("{origin}/load-balancer");
    read(&cloud, |state| Ok(Json(json!(catalog::versions(state, &base))))).await
}

/// Attributes by which all resources with a state can be filtered and sorted.
macro_rules! attributes {
    ($($more:literal),* $(,)?) => {
        &[
            "id", "name", "provisioning_status", "operating_status", "admin_state_up", "project_id", "created_at",
            "updated_at", "tags", $($more),*
        ]
    };
}

const LOAD_BALANCER: &[&str] = attributes![
    "description",
    "vip_address",
    "vip_port_id",
    "vip_subnet_id",
    "vip_network_id",
    "vip_qos_policy_id",
    "provider",
    "flavor_id",
    "availability_zone",
    "listeners",
    "pools",
];
const LISTENER: &[&str] = attributes![
    "description",
    "protocol",
    "protocol_port",
    "connection_limit",
    "default_pool_id",
    "default_tls_container_ref",
    "loadbalancer_id",
    "loadbalancers",
    "timeout_client_data",
    "timeout_member_connect",
    "timeout_member_data",
    "timeout_tcp_inspect",
    "client_authentication",
    "allowed_cidrs",
];
const POOL: &[&str] = attributes![
    "description",
    "protocol",
    "lb_algorithm",
    "loadbalancer_id",
    "loadbalancers",
    "listeners",
    "healthmonitor_id",
    "members",
    "tls_enabled",
];
const MEMBER: &[&str] = attributes![
    "address",
    "protocol_port",
    "weight",
    "backup",
    "subnet_id",
    "monitor_address",
    "monitor_port"
];
const MONITOR: &[&str] = attributes![
    "type",
    "delay",
    "timeout",
    "max_retries",
    "max_retries_down",
    "http_method",
    "url_path",
    "expected_codes",
    "pool_id",
    "pools",
    "domain_name",
    "http_version",
];

/// Returns one page. `parent`: attribute of a parent to filter by, and the attribute with the
/// references to it.
fn page(
    cloud: &Cloud,
    query: &Query,
    collection: &str,
    attributes: &[&str],
    parent: Option<(&str, &str)>,
    rows: Vec<impl Serialize>,
) -> JsonResult {
    let mut values = Vec::new();
    for row in rows {
        let mut value = json!(row);
        if let Some((name, references)) = parent {
            value[name] = value[references][0]["id"].clone();
        }
        values.push(value);
    }
    let hidden: Vec<&str> = parent.map(|(name, _)| name).into_iter().collect();
    let settings = cloud.settings();
    let page_max = cloud.store.peek(|state| Settings::of(state).page_max);
    let rules = Rules {
        hidden: &hidden,
        page_size: Some(page_max),
        ..Rules::octavia(collection, attributes, &settings)
    };
    list::list(query, &rules, values).map(Json)
}

/// Returns a resource in its envelope, with the requested fields.
fn one(name: &str, query: &Query, body: impl Serialize) -> Json<Value> {
    Json(Value::Object(
        [(name.to_owned(), query.select(json!(body)))]
            .into_iter()
            .collect(),
    ))
}

fn minor(state: &CloudState) -> u8 {
    Settings::of(state).newest_minor
}

/// Defines the routes of a resource with a collection of its own.
macro_rules! resource {
    ($routes:ident, $module:ident, $path:literal, $one:literal, $many:literal, $attributes:expr, $parent:expr, $create:ident, $update:ident) => {
        mod $routes {
            use super::*;

            pub(super) fn routes() -> Router<Arc<Cloud>> {
                Router::new()
                    .route(concat!("/", $path), get(list).post(create))
                    .route(concat!("/", $path, "/{id}"), get(show).put(update).delete(delete))
            }

            async fn list(From(cloud): SharedCloud, Auth(ctx): Auth, query: Query) -> JsonResult {
                let rows = read(&cloud, |state| Ok($module::list(state, &ctx))).await?;
                page(&cloud, &query, $many, $attributes, $parent, rows)
            }

            async fn create(
                From(cloud): SharedCloud,
                Auth(ctx): Auth,
                Input(body): Input<Value>,
            ) -> Result<(StatusCode, Json<Value>), ApiError> {
                let create = |state: &mut CloudState| {
                    let body = schema::read(body, $one, schema::$create, minor(state))?;
                    $module::create(state, &ctx, body).map(|made| Json(json!({$one: made})))
                };
                change(&cloud, create).await.map(|made| (StatusCode::CREATED, made))
            }

            async fn show(From(cloud): SharedCloud, Auth(ctx): Auth, Path(id): Path<String>, query: Query) -> JsonResult {
                read(&cloud, |state| $module::show(state, &ctx, &id)).await.map(|found| one($one, &query, found))
            }

            async fn update(
                From(cloud): SharedCloud,
                Auth(ctx): Auth,
                Path(id): Path<String>,
                Input(body): Input<Value>,
            ) -> JsonResult {
                let update = |state: &mut CloudState| {
                    let body = schema::read(body, $one, schema::$update, minor(state))?;
                    $module::update(state, &ctx, &id, body).map(|made| Json(json!({$one: made})))
                };
                change(&cloud, update).await
            }

            async fn delete(
                From(cloud): SharedCloud,
                Auth(ctx): Auth,
                Path(id): Path<String>,
                query: Query,
            ) -> Result<StatusCode, ApiError> {
                change(&cloud, |state| super::delete_one(state, &ctx, &id, &query, $one)).await?;
                Ok(StatusCode::NO_CONTENT)
            }
        }
    };
}

resource!(
    load_balancer_routes,
    load_balancers,
    "loadbalancers",
    "loadbalancer",
    "loadbalancers",
    LOAD_BALANCER,
    None,
    LOAD_BALANCER_CREATE,
    LOAD_BALANCER_UPDATE
);
resource!(
    listener_routes,
    listeners,
    "listeners",
    "listener",
    "listeners",
    LISTENER,
    Some(("loadbalancer_id", "loadbalancers")),
    LISTENER_CREATE,
    LISTENER_UPDATE
);
resource!(
    pool_routes,
    pools,
    "pools",
    "pool",
    "pools",
    POOL,
    Some(("loadbalancer_id", "loadbalancers")),
    POOL_CREATE,
    POOL_UPDATE
);
resource!(
    monitor_routes,
    monitors,
    "healthmonitors",
    "healthmonitor",
    "healthmonitors",
    MONITOR,
    Some(("pool_id", "pools")),
    MONITOR_CREATE,
    MONITOR_UPDATE
);

resource!(
    flavor_routes,
    flavors,
    "flavors",
    "flavor",
    "flavors",
    &["id", "name", "description", "enabled", "flavor_profile_id"],
    None,
    FLAVOR_CREATE,
    FLAVOR_UPDATE
);
resource!(
    flavor_profile_routes,
    flavor_profiles,
    "flavorprofiles",
    "flavorprofile",
    "flavorprofiles",
    &["id", "name", "provider_name", "flavor_data"],
    None,
    FLAVOR_PROFILE_CREATE,
    FLAVOR_PROFILE_UPDATE
);
resource!(
    zone_routes,
    zones,
    "availabilityzones",
    "availability_zone",
    "availability_zones",
    &["name", "description", "enabled", "availability_zone_profile_id"],
    None,
    ZONE_CREATE,
    ZONE_UPDATE
);
resource!(
    zone_profile_routes,
    zone_profiles,
    "availabilityzoneprofiles",
    "availability_zone_profile",
    "availability_zone_profiles",
    &["id", "name", "provider_name", "availability_zone_data"],
    None,
    ZONE_PROFILE_CREATE,
    ZONE_PROFILE_UPDATE
);

/// Deletes a resource of a kind; only load balancers support `cascade`.
fn delete_one(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    query: &Query,
    kind: &str,
) -> Result<(), ApiError> {
    match kind {
        "loadbalancer" => load_balancers::delete(state, ctx, id, query.flag("cascade")),
        "listener" => listeners::delete(state, ctx, id),
        "pool" => pools::delete(state, ctx, id),
        "flavor" => flavors::delete(state, ctx, id),
        "flavorprofile" => flavor_profiles::delete(state, ctx, id),
        "availability_zone" => zones::delete(state, ctx, id),
        "availability_zone_profile" => zone_profiles::delete(state, ctx, id),
        _ => monitors::delete(state, ctx, id),
    }
}

fn member_routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/pools/{pool}/members", get(list_members).post(create_member).put(batch_members))
        .route(
            "/pools/{pool}/members/{id}",
            get(show_member).put(update_member).delete(delete_member),
        )
}

async fn list_members(
    From(cloud): SharedCloud,
    Auth(ctx): Auth,
    Path(pool): Path<String>,
    query: Query,
) -> JsonResult {
    let rows = read(&cloud, |state| members::list(state, &ctx, &pool)).await?;
    page(&cloud, &query, "members", MEMBER, None, rows)
}

async fn create_member(
    From(cloud): SharedCloud,
    Auth(ctx): Auth,
    Path(pool): Path<String>,
    Input(body): Input<Value>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let create = |state: &mut CloudState| {
        let body = schema::read(body, "member", schema::MEMBER_CREATE, minor(state))?;
        members::create(state, &ctx, &pool, body).map(|made| Json(json!({"member": made})))
    };
    change(&cloud, create)
        .await
        .map(|made| (StatusCode::CREATED, made))
}

async fn batch_members(
    From(cloud): SharedCloud,
    Auth(ctx): Auth,
    Path(pool): Path<String>,
    query: Query,
    Input(body): Input<Value>,
) -> Result<StatusCode, ApiError> {
    let replace = |state: &mut CloudState| {
        let newest = minor(state);
        // The parameter exists since 2.11.
        let additive = newest >= 11 && query.flag("additive_only");
        members::batch(state, &ctx, &pool, schema::read_batch(body, newest)?, additive)
    };
    change(&cloud, replace).await?;
    Ok(StatusCode::ACCEPTED)
}

async fn show_member(
    From(cloud): SharedCloud,
    Auth(ctx): Auth,
    Path((pool, id)): Path<(String, String)>,
    query: Query,
) -> JsonResult {
    read(&cloud, |state| members::show(state, &ctx, &pool, &id))
        .await
        .map(|found| one("member", &query, found))
}

async fn update_member(
    From(cloud): SharedCloud,
    Auth(ctx): Auth,
    Path((pool, id)): Path<(String, String)>,
    Input(body): Input<Value>,
) -> JsonResult {
    let update = |state: &mut CloudState| {
        let body = schema::read(body, "member", schema::MEMBER_UPDATE, minor(state))?;
        members::update(state, &ctx, &pool, &id, body).map(|made| Json(json!({"member": made})))
    };
    change(&cloud, update).await
}

async fn delete_member(
    From(cloud): SharedCloud,
    Auth(ctx): Auth,
    Path((pool, id)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    change(&cloud, |state| members::delete(state, &ctx, &pool, &id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn other_routes() -> Router<Arc<Cloud>> {
    Router::new()
        .route("/loadbalancers/{id}/status", get(status))
        .route("/loadbalancers/{id}/statuses", get(status))
        .route("/loadbalancers/{id}/stats", get(stats))
        .route("/loadbalancers/{id}/failover", put(failover))
        .route("/listeners/{id}/stats", get(listener_stats))
        .route("/quotas", get(list_quotas))
        .route("/quotas/defaults", get(own_default_quota))
        .route("/quotas/{project}", get(show_quota).put(update_quota).delete(reset_quota))
        .route("/quotas/{project}/default", get(default_quota))
        .route("/providers", get(providers))
        .route("/l7policies", get(async |_: Auth| nothing("l7policies")).post(no_policies))
        .route("/l7policies/{id}", get(no_policy))
        .route("/l7policies/{id}/rules", get(no_policy))
}

async fn status(From(cloud): SharedCloud, Auth(ctx): Auth, Path(id): Path<String>) -> JsonResult {
    read(&cloud, |state| load_balancers::status(state, &ctx, &id))
        .await
        .map(|tree| Json(json!(tree)))
}

async fn stats(From(cloud): SharedCloud, Auth(ctx): Auth, Path(id): Path<String>) -> JsonResult {
    let stats = read(&cloud, |state| load_balancers::stats(state, &ctx, &id)).await?;
    Ok(Json(json!(StatsBody { stats })))
}

async fn listener_stats(
    From(cloud): SharedCloud,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> JsonResult {
    let stats = read(&cloud, |state| listeners::stats(state, &ctx, &id)).await?;
    Ok(Json(json!(StatsBody { stats })))
}

async fn failover(
    From(cloud): SharedCloud,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    change(&cloud, |state| load_balancers::failover(state, &ctx, &id)).await?;
    Ok(StatusCode::ACCEPTED)
}

const QUOTA: &[&str] = &[
    "project_id",
    "loadbalancer",
    "listener",
    "member",
    "pool",
    "healthmonitor",
    "l7policy",
    "l7rule",
];

async fn list_quotas(From(cloud): SharedCloud, Auth(ctx): Auth, query: Query) -> JsonResult {
    let rows = read(&cloud, |state| Ok(quotas::list(state, &ctx))).await?;
    page(&cloud, &query, "quotas", QUOTA, None, rows)
}

async fn show_quota(
    From(cloud): SharedCloud,
    Auth(ctx): Auth,
    Path(project): Path<String>,
    query: Query,
) -> JsonResult {
    read(&cloud, |state| quotas::show(state, &ctx, &project))
        .await
        .map(|quota| one("quota", &query, quota))
}

async fn default_quota(
    From(cloud): SharedCloud,
    Auth(ctx): Auth,
    Path(project): Path<String>,
    query: Query,
) -> JsonResult {
    read(&cloud, |state| quotas::show_default(state, &ctx, &project))
        .await
        .map(|quota| one("quota", &query, quota))
}

async fn own_default_quota(From(cloud): SharedCloud, Auth(ctx): Auth, query: Query) -> JsonResult {
    read(&cloud, |state| quotas::show_default(state, &ctx, &ctx.project))
        .await
        .map(|quota| one("quota", &query, quota))
}

async fn update_quota(
    From(cloud): SharedCloud,
    Auth(ctx): Auth,
    Path(project): Path<String>,
    Input(body): Input<Value>,
) -> Result<(StatusCode, Json<Value>), ApiError> {
    let update = |state: &mut CloudState| {
        let body: QuotaUpdate = schema::read(body, "quota", schema::QUOTA_UPDATE, minor(state))?;
        quotas::update(state, &ctx, &project, &body).map(|quota| Json(json!({"quota": quota})))
    };
    change(&cloud, update)
        .await
        .map(|quota| (StatusCode::ACCEPTED, quota))
}

async fn reset_quota(
    From(cloud): SharedCloud,
    Auth(ctx): Auth,
    Path(project): Path<String>,
) -> Result<StatusCode, ApiError> {
    change(&cloud, |state| quotas::reset(state, &ctx, &project)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn providers(From(cloud): SharedCloud, Auth(_): Auth, query: Query) -> JsonResult {
    let rows = read(&cloud, |state| Ok(catalog::providers(state))).await?;
    page(&cloud, &query, "providers", &["name", "description"], None, rows)
}

/// Returns a list of resources that do not exist here.
fn nothing(collection: &str) -> Json<Value> {
    let mut body = serde_json::Map::new();
    body.insert(collection.to_owned(), json!([]));
    body.insert(format!("{collection}_links"), json!([]));
    Json(body.into())
}

async fn no_policies(From(cloud): SharedCloud, Auth(_): Auth) -> Result<StatusCode, ApiError> {
    let provider = read(&cloud, |state| Ok(Settings::of(state).default_provider)).await?;
    Err(unsupported_option(&provider, "L7 policies are not to be had here"))
}

async fn no_policy(Auth(_): Auth, Path(id): Path<String>) -> JsonResult {
    Err(not_found("L7 Policy", &id))
}
