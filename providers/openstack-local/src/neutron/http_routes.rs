//! HTTP routes of the network service.

use std::sync::Arc;

use crate::api::{
    neutron::{
        self as api, Extension, ExtensionEnvelope, Extensions, ExtraRoutes, InterfaceRequest,
        Quota, QuotaEnvelope, QuotaUpdate, RouterEnvelope, SubPorts,
    },
    version::{Link, Version, Versions},
};
use axum::{
    Json, Router,
    extract::{Path, State as From},
    routing,
};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::{
    Resource,
    crud::{self, Crud},
    extensions, extra_routes, floating_ips, networks, ports, quotas, router_interfaces, routers,
    security_group_rules, security_groups, subnets, trunks,
};
use crate::{
    server::{Auth, Cloud, Input, Origin},
    state::{ApiError, CloudState, RequestContext},
};

/// Returns the routes of this service.
pub fn routes() -> Router<Arc<Cloud>> {
    Router::new()
        .merge(crud::routes::<Networks>())
        .merge(crud::routes::<Subnets>())
        .merge(crud::routes::<Ports>())
        .merge(crud::routes::<Routers>())
        .merge(crud::routes::<FloatingIps>())
        .merge(crud::routes::<SecurityGroups>())
        .merge(crud::routes::<SecurityGroupRules>())
        .merge(crud::routes::<Trunks>())
        .route("/v2.0/routers/{id}/add_extraroutes", routing::put(add_routes))
        .route("/v2.0/routers/{id}/remove_extraroutes", routing::put(remove_routes))
        .route("/v2.0/routers/{id}/add_router_interface", routing::put(add_interface))
        .route("/v2.0/routers/{id}/remove_router_interface", routing::put(remove_interface))
        .route("/v2.0/trunks/{id}/get_subports", routing::get(sub_ports))
        .route("/v2.0/trunks/{id}/add_subports", routing::put(add_sub_ports))
        .route("/v2.0/trunks/{id}/remove_subports", routing::put(remove_sub_ports))
        .route("/v2.0/quotas", routing::get(all_quotas))
        .route("/v2.0/quotas/{project}", routing::get(quota).put(set_quota).delete(reset_quota))
        .route("/v2.0/quotas/{project}/default", routing::get(default_quota))
        .route("/v2.0/quotas/{project}/default.json", routing::get(default_quota))
        .route("/v2.0/quotas/{project}/details", routing::get(quota_details))
        .route("/v2.0/quotas/{project}/details.json", routing::get(quota_details))
        .route("/v2.0/extensions", routing::get(all_extensions))
        .route("/v2.0/extensions/{alias}", routing::get(one_extension))
        .route("/v2.0/availability_zones", routing::get(zones))
        .route("/v2.0", routing::get(resources))
        .route("/", routing::get(versions))
}

/// Implements [`Crud`] with the functions of a module.
macro_rules! crud {
    ($name:ident: $row:ident, $create:ident, $update:ident, $module:ident, $show:path, $delete:path,
     $path:literal, $one:literal, $many:literal, $attributes:expr $(, { $($more:item)* })?) => {
        struct $name;

        impl Crud for $name {
            type Row = api::$row;
            type Create = api::$create;
            type Update = api::$update;
            const RESOURCE: Resource = Resource::$row;
            const PATH: &'static str = $path;
            const ONE: &'static str = $one;
            const MANY: &'static str = $many;
            const ATTRIBUTES: &'static [&'static str] = $attributes;

            fn list(state: &CloudState, ctx: &RequestContext) -> Vec<Self::Row> {
                $module::list(state, ctx)
            }

            fn show(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<Self::Row, ApiError> {
                $show(state, ctx, id)
            }

            fn create(state: &mut CloudState, ctx: &RequestContext, request: Self::Create) -> Result<Self::Row, ApiError> {
                $module::create(state, ctx, request)
            }

            fn update(state: &mut CloudState, ctx: &RequestContext, id: &str, request: Self::Update) -> Result<Self::Row, ApiError> {
                $module::update(state, ctx, id, request)
            }

            fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
                $delete(state, ctx, id)
            }

            $($($more)*)?
        }
    };
}

fn subnet(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<api::Subnet, ApiError> {
    subnets::get(state, ctx, id).cloned()
}

fn router(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<api::Router, ApiError> {
    routers::get(state, ctx, id).cloned()
}

fn trunk(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<api::Trunk, ApiError> {
    trunks::get(state, ctx, id).cloned()
}

crud!(Networks: Network, NetworkCreate, NetworkUpdate, networks, networks::show, networks::delete,
    "networks", "network", "networks",
    &["status", "admin_state_up", "shared", "router:external", "mtu", "port_security_enabled", "subnets",
      "provider:network_type", "provider:physical_network", "provider:segmentation_id", "ipv4_address_scope",
      "ipv6_address_scope"]);
crud!(Subnets: Subnet, SubnetCreate, SubnetUpdate, subnets, subnet, subnets::delete,
    "subnets", "subnet", "subnets",
    &["network_id", "ip_version", "cidr", "gateway_ip", "enable_dhcp", "ipv6_address_mode", "ipv6_ra_mode",
      "segment_id", "subnetpool_id", "service_types"]);
crud!(Ports: Port, PortCreate, PortUpdate, ports, ports::show, ports::delete_by_caller,
    "ports", "port", "ports",
    &["network_id", "status", "admin_state_up", "mac_address", "fixed_ips", "device_id", "device_owner",
      "security_groups", "port_security_enabled", "binding:host_id", "binding:vnic_type"]);
crud!(Routers: Router, RouterCreate, RouterUpdate, routers, router, routers::delete,
    "routers", "router", "routers",
    &["status", "admin_state_up", "ha", "distributed", "flavor_id"]);
crud!(FloatingIps: FloatingIp, FloatingIpCreate, FloatingIpUpdate, floating_ips, floating_ips::show,
    floating_ips::delete, "floatingips", "floatingip", "floatingips",
    &["floating_ip_address", "floating_network_id", "fixed_ip_address", "port_id", "router_id", "status"]);
crud!(SecurityGroups: SecurityGroup, SecurityGroupCreate, SecurityGroupUpdate, security_groups,
security_groups::show, security_groups::delete, "security-groups", "security_group", "security_groups",
&["stateful", "shared"], {
    fn is_prepared(state: &CloudState, ctx: &RequestContext) -> bool {
        ctx.project.is_empty() || security_groups::default_of(state, &ctx.project).is_some()
    }

    fn prepare(state: &mut CloudState, ctx: &RequestContext) {
        security_groups::ensure_default(state, ctx, &ctx.project);
    }
});
crud!(Trunks: Trunk, TrunkCreate, TrunkUpdate, trunks, trunk, trunks::delete,
    "trunks", "trunk", "trunks", &["port_id", "status", "admin_state_up"]);

struct SecurityGroupRules;

impl Crud for SecurityGroupRules {
    type Row = api::SecurityGroupRule;
    type Create = api::SecurityGroupRuleCreate;
    type Update = Value;
    const RESOURCE: Resource = Resource::SecurityGroupRule;
    const PATH: &'static str = "security-group-rules";
    const ONE: &'static str = "security_group_rule";
    const MANY: &'static str = "security_group_rules";
    const ATTRIBUTES: &'static [&'static str] = &[
        "security_group_id",
        "direction",
        "ethertype",
        "protocol",
        "port_range_min",
        "port_range_max",
        "remote_ip_prefix",
        "remote_group_id",
        "remote_address_group_id",
    ];

    fn list(state: &CloudState, ctx: &RequestContext) -> Vec<Self::Row> {
        security_group_rules::list(state, ctx)
    }

    fn show(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<Self::Row, ApiError> {
        security_group_rules::get(state, ctx, id).cloned()
    }

    fn create(
        state: &mut CloudState,
        ctx: &RequestContext,
        request: Self::Create,
    ) -> Result<Self::Row, ApiError> {
        let made = security_group_rules::create(state, ctx, vec![request])?;
        made.into_iter()
            .next()
            .ok_or_else(|| crud::missing(Self::ONE))
    }

    fn create_all(
        state: &mut CloudState,
        ctx: &RequestContext,
        requests: Vec<Self::Create>,
    ) -> Result<Vec<Self::Row>, ApiError> {
        security_group_rules::create(state, ctx, requests)
    }

    fn update(
        _: &mut CloudState,
        _: &RequestContext,
        _: &str,
        _: Self::Update,
    ) -> Result<Self::Row, ApiError> {
        let message = "The server could not comply with the request since rules cannot be changed.";
        Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "HTTPMethodNotAllowed", message))
    }

    fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
        security_group_rules::delete(state, ctx, id)
    }
}

/// Rejects requests to an extension that the cloud does not offer.
fn offered(cloud: &Cloud, alias: &str) -> Result<(), ApiError> {
    if cloud.settings().hidden_extensions.contains(alias) {
        Err(ApiError::not_found("HTTPNotFound", "The resource could not be found."))
    } else {
        Ok(())
    }
}

async fn add_routes(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    headers: HeaderMap,
    Input(body): Input<RouterEnvelope<ExtraRoutes>>,
) -> Result<Json<RouterEnvelope>, ApiError> {
    offered(&cloud, "extraroute-atomic")?;
    let revision = crud::revision(&headers)?;
    let router = cloud.store.change(|state| {
        Resource::Router.check_revision(state, &ctx, &id, revision)?;
        extra_routes::add(state, &ctx, &id, body.router.routes)
    });
    Ok(Json(RouterEnvelope { router: router.await? }))
}

async fn remove_routes(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    headers: HeaderMap,
    Input(body): Input<RouterEnvelope<ExtraRoutes>>,
) -> Result<Json<RouterEnvelope>, ApiError> {
    offered(&cloud, "extraroute-atomic")?;
    let revision = crud::revision(&headers)?;
    let router = cloud.store.change(|state| {
        Resource::Router.check_revision(state, &ctx, &id, revision)?;
        extra_routes::remove(state, &ctx, &id, &body.router.routes)
    });
    Ok(Json(RouterEnvelope { router: router.await? }))
}

async fn add_interface(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    Input(body): Input<InterfaceRequest>,
) -> Result<Json<api::RouterInterface>, ApiError> {
    cloud
        .store
        .change(|state| router_interfaces::add(state, &ctx, &id, &body))
        .await
        .map(Json)
}

async fn remove_interface(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    Input(body): Input<InterfaceRequest>,
) -> Result<Json<api::RouterInterface>, ApiError> {
    cloud
        .store
        .change(|state| router_interfaces::remove(state, &ctx, &id, &body))
        .await
        .map(Json)
}

async fn sub_ports(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
) -> Result<Json<SubPorts>, ApiError> {
    let sub_ports = cloud
        .store
        .read(|state| Ok(trunks::get(state, &ctx, &id)?.sub_ports.clone()))
        .await?;
    Ok(Json(SubPorts { sub_ports }))
}

async fn add_sub_ports(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    Input(body): Input<SubPorts>,
) -> Result<Json<api::Trunk>, ApiError> {
    cloud
        .store
        .change(|state| trunks::add(state, &ctx, &id, body.sub_ports))
        .await
        .map(Json)
}

async fn remove_sub_ports(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(id): Path<String>,
    Input(body): Input<SubPorts>,
) -> Result<Json<api::Trunk>, ApiError> {
    cloud
        .store
        .change(|state| trunks::remove(state, &ctx, &id, body.sub_ports))
        .await
        .map(Json)
}

async fn all_quotas(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
) -> Result<Json<Value>, ApiError> {
    let rows = cloud.store.read(|state| {
        let rows = state
            .neutron
            .quotas
            .iter()
            .filter(|row| ctx.sees(&row.project));
        Ok(rows
            .map(|row| (row.project.clone(), row.quota))
            .collect::<Vec<_>>())
    });
    let rows = rows.await?.into_iter().map(|(project, quota)| {
        let mut row = json!(quota);
        row["project_id"] = project.clone().into();
        row["tenant_id"] = project.into();
        row
    });
    Ok(Json(json!({"quotas": rows.collect::<Vec<_>>()})))
}

async fn quota(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(project): Path<String>,
) -> Result<Json<QuotaEnvelope>, ApiError> {
    quotas::visible(&ctx, &project)?;
    let quota = cloud
        .store
        .read(|state| Ok(quotas::get(state, &project)))
        .await?;
    Ok(Json(QuotaEnvelope { quota }))
}

async fn set_quota(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(project): Path<String>,
    Input(mut body): Input<Value>,
) -> Result<Json<QuotaEnvelope>, ApiError> {
    let mut asked = body
        .get_mut("quota")
        .map(Value::take)
        .ok_or_else(|| crud::missing("quota"))?;
    // True when limits below the current use are rejected; newer clients always send this.
    let mut word = |name: &str| {
        asked
            .as_object_mut()
            .and_then(|asked| asked.remove(name))
            .unwrap_or_default()
    };
    let check = word("check_limit") == json!(true);
    let _force = word("force");
    let update: QuotaUpdate = crud::read(asked)?;
    let change = |state: &mut CloudState| {
        let quota = quotas::update(state, &ctx, &project, &update)?;
        if check {
            quotas::check_use(state, &project)?;
        }
        Ok(quota)
    };
    let quota = cloud.store.change(change).await?;
    Ok(Json(QuotaEnvelope { quota }))
}

async fn reset_quota(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(project): Path<String>,
) -> Result<StatusCode, ApiError> {
    cloud
        .store
        .change(|state| quotas::reset(state, &ctx, &project))
        .await
        .map(|()| StatusCode::NO_CONTENT)
}

async fn default_quota(
    Auth(ctx): Auth,
    Path(project): Path<String>,
) -> Result<Json<QuotaEnvelope>, ApiError> {
    quotas::visible(&ctx, &project)?;
    Ok(Json(QuotaEnvelope { quota: Quota::default() }))
}

async fn quota_details(
    From(cloud): From<Arc<Cloud>>,
    Auth(ctx): Auth,
    Path(project): Path<String>,
) -> Result<Json<api::QuotaDetailEnvelope>, ApiError> {
    quotas::visible(&ctx, &project)?;
    let quota = cloud
        .store
        .read(|state| Ok(quotas::details(state, &project)))
        .await?;
    Ok(Json(QuotaEnvelope { quota }))
}

async fn all_extensions(From(cloud): From<Arc<Cloud>>, Auth(_): Auth) -> Json<Extensions> {
    let extensions = extensions::list(&cloud.settings().hidden_extensions);
    Json(Extensions { extensions, ..Extensions::default() })
}

async fn one_extension(
    From(cloud): From<Arc<Cloud>>,
    Auth(_): Auth,
    Path(alias): Path<String>,
) -> Result<Json<ExtensionEnvelope>, ApiError> {
    let mut all = extensions::list(&cloud.settings().hidden_extensions).into_iter();
    let extension: Option<Extension> = all.find(|extension| extension.alias == alias);
    let gone = || {
        ApiError::not_found("HTTPNotFound", format!("Extension with alias {alias} does not exist"))
    };
    Ok(Json(ExtensionEnvelope { extension: extension.ok_or_else(gone)? }))
}

async fn zones(Auth(_): Auth) -> Json<Value> {
    let zone = |resource| json!({"name": "nova", "resource": resource, "state": "available"});
    Json(json!({"availability_zones": [zone("network"), zone("router")]}))
}

async fn resources(origin: Origin) -> Json<Value> {
    let kinds = [
        ("network", "networks"),
        ("subnet", "subnets"),
        ("port", "ports"),
        ("router", "routers"),
        ("floatingip", "floatingips"),
        ("security_group", "security-groups"),
        ("security_group_rule", "security-group-rules"),
        ("trunk", "trunks"),
        ("quota", "quotas"),
        ("extension", "extensions"),
    ];
    let resources = kinds.map(|(name, path)| {
        let href = format!("{origin}/network/v2.0/{path}");
        json!({"name": name, "collection": path.replace('-', "_"), "links": [{"rel": "self", "href": href}]})
    });
    Json(json!({ "resources": resources }))
}

async fn versions(origin: Origin) -> Json<Versions> {
    let version = Version {
        id: "v2.0".to_owned(),
        status: "CURRENT".to_owned(),
        links: vec![Link {
            rel: "self".to_owned(),
            href: format!("{origin}/network/v2.0/"),
        }],
        ..Version::default()
    };
    Json(Versions { versions: vec![version] })
}
