//! Routers.

use crate::api::neutron::{Router, RouterCreate, RouterUpdate};

use super::{
    ROUTER_GATEWAY, Resource,
    common::{admin_only, owner, standard, touch},
    extra_routes, gateways, ports,
    quotas::{self, Quotable},
};
use crate::state::{ApiError, CloudState, RequestContext, new_id};

/// Returns the routers that the user may see.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<Router> {
    let rows = state
        .neutron
        .routers
        .iter()
        .filter(|router| ctx.sees(&router.standard.project_id));
    rows.map(|router| Router::clone(router)).collect()
}

/// Returns one.
///
/// # Errors
/// It does not exist, or the user may not see it.
pub fn get<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s Router, ApiError> {
    let row = state
        .neutron
        .routers
        .get(id)
        .filter(|router| ctx.sees(&router.standard.project_id));
    row.map(|row| &**row)
        .ok_or_else(|| Resource::Router.not_found(id))
}

/// Creates one.
///
/// # Errors
/// The external network cannot be used; the quota is used up.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    request: RouterCreate,
) -> Result<Router, ApiError> {
    admin_only(ctx, "create_router:ha", request.ha == Some(true))?;
    admin_only(ctx, "create_router:distributed", request.distributed == Some(true))?;
    let project = owner(ctx, request.project_id)?;
    quotas::check(state, &project, Quotable::Router, 1)?;
    let id = new_id();
    state.neutron.routers.put(Router {
        id: id.clone(),
        name: request.name.unwrap_or_default(),
        status: "ACTIVE".into(),
        admin_state_up: request.admin_state_up.unwrap_or(true),
        ha: Some(request.ha.unwrap_or(false)),
        distributed: Some(request.distributed.unwrap_or(false)),
        availability_zones: vec!["nova".into()],
        availability_zone_hints: request.availability_zone_hints.unwrap_or_default(),
        standard: standard(ctx, project, request.description, request.tags),
        ..Router::default()
    });
    if let Some(gateway) = request.external_gateway_info {
        gateways::set(state, ctx, &id, Some(gateway))?;
    }
    get(state, ctx, &id).cloned()
}

/// Changes one.
///
/// # Errors
/// It does not exist; the new gateway or a route is not possible; floating IPs need the current
/// gateway.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    request: RouterUpdate,
) -> Result<Router, ApiError> {
    get(state, ctx, id)?;
    admin_only(ctx, "update_router:ha", request.ha.is_some())?;
    admin_only(ctx, "update_router:distributed", request.distributed.is_some())?;
    if let Some(gateway) = request.external_gateway_info {
        gateways::set(state, ctx, id, gateway)?;
    }
    if let Some(routes) = request.routes {
        extra_routes::replace(state, ctx, id, routes.unwrap_or_default())?;
    }
    state.neutron.routers.update(id, |row| {
        let before = row.clone();
        row.name = request.name.unwrap_or_else(|| row.name.clone());
        row.admin_state_up = request.admin_state_up.unwrap_or(row.admin_state_up);
        row.ha = request.ha.or(row.ha);
        row.distributed = request.distributed.or(row.distributed);
        if let Some(description) = request.description {
            row.standard.description = description;
        }
        if *row != before {
            touch(ctx, &mut row.standard);
        }
    });
    get(state, ctx, id).cloned()
}

/// Deletes one with its gateway.
///
/// # Errors
/// It does not exist, or it still has interfaces.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    get(state, ctx, id)?;
    if ports::of_device(state, id)
        .iter()
        .any(|port| port.device_owner != ROUTER_GATEWAY)
    {
        return Err(ApiError::conflict("RouterInUse", format!("Router {id} still has ports")));
    }
    gateways::set(state, ctx, id, None)?;
    state.neutron.routers.remove(id);
    Ok(())
}
