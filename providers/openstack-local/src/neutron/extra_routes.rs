//! Routes of a router in addition to those to its subnets.

use std::net::IpAddr;

use crate::api::neutron::{Route, Router};

use super::{
    common::{invalid, touch},
    ports, routers,
    rows::Limits,
    subnet_plan, subnets,
};
use crate::state::{ApiError, CloudState, RequestContext};

/// Sets all routes.
///
/// # Errors
/// The router does not exist; a route is given twice; there are too many; a next hop is on no
/// subnet of the router, or is the router's own address.
pub fn replace(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    routes: Vec<Route>,
) -> Result<Router, ApiError> {
    let router = routers::get(state, ctx, id)?;
    for (at, route) in routes.iter().enumerate() {
        if routes[..at].contains(route) {
            return Err(invalid(
                "routes",
                format!(
                    "Duplicate items in the list: '{} via {}'",
                    route.destination, route.nexthop
                ),
            ));
        }
    }
    check(state, id, &routes)?;
    if router.routes != routes {
        state.neutron.routers.update(id, |row| {
            row.routes = routes;
            touch(ctx, &mut row.standard);
        });
    }
    routers::get(state, ctx, id).cloned()
}

/// Adds routes, all or none; an existing one is no error.
///
/// # Errors
/// As for [`replace`].
pub fn add(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    routes: Vec<Route>,
) -> Result<Router, ApiError> {
    let mut all = routers::get(state, ctx, id)?.routes.clone();
    for route in routes {
        if !all.contains(&route) {
            all.push(route);
        }
    }
    replace(state, ctx, id, all)
}

/// Removes routes; a missing one is no error.
///
/// # Errors
/// The router does not exist.
pub fn remove(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    routes: &[Route],
) -> Result<Router, ApiError> {
    let mut all = routers::get(state, ctx, id)?.routes.clone();
    all.retain(|route| !routes.contains(route));
    replace(state, ctx, id, all)
}

fn check(state: &CloudState, id: &str, routes: &[Route]) -> Result<(), ApiError> {
    let most = Limits::of(state).routes;
    if routes.len() > most {
        return Err(ApiError::bad_request(
            "RoutesExhausted",
            format!(
                "Unable to complete operation for {id}. The number of routes exceeds the maximum {most}."
            ),
        ));
    }
    let own: Vec<_> = ports::of_device(state, id)
        .into_iter()
        .flat_map(|port| &port.fixed_ips)
        .collect();
    let ranges: Vec<_> = own
        .iter()
        .filter_map(|ip| state.neutron.subnets.get(&ip.subnet_id))
        .map(|s| subnets::range(s))
        .collect();
    for Route { destination, nexthop } in routes {
        subnet_plan::proper(destination).map_err(|reason| invalid("routes", reason))?;
        let hop: IpAddr = nexthop
            .parse()
            .map_err(|_| invalid("routes", format!("'{nexthop}' is not a valid IP address")))?;
        let reason = if !ranges.iter().any(|range| range.contains(&hop)) {
            "the nexthop is not connected with router"
        } else if own.iter().any(|ip| ip.ip_address == hop) {
            "the nexthop is used by router"
        } else {
            continue;
        };
        let shown: Vec<_> = routes
            .iter()
            .map(|r| format!("{{'destination': '{}', 'nexthop': '{}'}}", r.destination, r.nexthop))
            .collect();
        return Err(ApiError::bad_request(
            "InvalidRoutes",
            format!("Invalid format for routes: [{}], {reason}", shown.join(", ")),
        ));
    }
    Ok(())
}
