//! Gateways of routers to external networks.

use crate::api::neutron::{
    ExternalFixedIp, FixedIpRequest, GatewayInfo, GatewayRequest, PortCreate,
};

use super::{
    ROUTER_GATEWAY,
    common::{bad_request, service, touch},
    networks, ports, routers,
    subnet_plan::overlap,
    subnets,
};
use crate::state::{ApiError, CloudState, RequestContext};

/// Sets or removes (`None`, or a request without network) the gateway.
///
/// # Errors
/// The router or the network does not exist, the network is not external, its subnets overlap
/// internal ones, no address is left, or floating IPs need the current gateway.
pub fn set(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    request: Option<GatewayRequest>,
) -> Result<(), ApiError> {
    let router = routers::get(state, ctx, id)?.clone();
    let Some((network, request)) =
        request.and_then(|request| Some((request.network_id.clone()?, request)))
    else {
        if router.external_gateway_info.is_some() {
            drop_port(state, ctx, id)?;
            state.neutron.routers.update(id, |row| {
                row.external_gateway_info = None;
                touch(ctx, &mut row.standard);
            });
        }
        return Ok(());
    };
    if !networks::get(state, ctx, &network)?.external {
        return Err(bad_request("router", format!("Network {network} is not an external network")));
    }
    let held = router
        .external_gateway_info
        .as_ref()
        .filter(|info| info.network_id == network);
    let external_fixed_ips = match (held, request.external_fixed_ips) {
        (Some(info), None) => info.external_fixed_ips.clone(),
        (_, asked) => {
            if router.external_gateway_info.is_some() {
                drop_port(state, ctx, id)?;
            }
            check_overlap(state, id, &network)?;
            make_port(state, ctx, id, &network, asked)?
        }
    };
    let info = GatewayInfo {
        network_id: network,
        enable_snat: Some(request.enable_snat.unwrap_or(true)),
        external_fixed_ips,
    };
    if router.external_gateway_info.as_ref() != Some(&info) {
        state.neutron.routers.update(id, |row| {
            row.external_gateway_info = Some(info);
            touch(ctx, &mut row.standard);
        });
    }
    Ok(())
}

/// Creates the port of a router on an external network. It belongs to no project.
fn make_port(
    state: &mut CloudState,
    ctx: &RequestContext,
    router: &str,
    network: &str,
    asked: Option<Vec<FixedIpRequest>>,
) -> Result<Vec<ExternalFixedIp>, ApiError> {
    let request = PortCreate {
        network_id: network.to_owned(),
        fixed_ips: asked.filter(|asked| !asked.is_empty()),
        device_id: Some(router.to_owned()),
        device_owner: Some(ROUTER_GATEWAY.into()),
        security_groups: Some(Vec::new()),
        project_id: Some(String::new()),
        ..PortCreate::default()
    };
    let port = ports::create(state, &service(ctx), request)?;
    if port.fixed_ips.is_empty() {
        return Err(bad_request(
            "router",
            format!("No IPs available for external network {network}"),
        ));
    }
    let fixed = port.fixed_ips.into_iter();
    Ok(fixed
        .map(|ip| ExternalFixedIp { subnet_id: ip.subnet_id, ip_address: ip.ip_address })
        .collect())
}

/// Removes the port of a router on its external network.
fn drop_port(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    if state
        .neutron
        .floating_ips
        .iter()
        .any(|ip| ip.router_id.as_deref() == Some(id))
    {
        let network = state
            .neutron
            .routers
            .get(id)
            .and_then(|router| router.external_gateway_info.clone());
        let network = network.map(|info| info.network_id).unwrap_or_default();
        return Err(ApiError::conflict(
            "RouterExternalGatewayInUseByFloatingIp",
            format!(
                "Gateway cannot be updated for router {id}, since a gateway to external network {network} \
                 is required by one or more floating IPs."
            ),
        ));
    }
    let port = ports::of_device(state, id)
        .into_iter()
        .find(|port| port.device_owner == ROUTER_GATEWAY);
    match port.map(|port| port.id.clone()) {
        Some(port) => ports::delete(state, &service(ctx), &port),
        None => Ok(()),
    }
}

/// Rejects an external network whose subnets overlap internal ones.
fn check_overlap(state: &CloudState, router: &str, network: &str) -> Result<(), ApiError> {
    let outside = state
        .neutron
        .subnets
        .iter()
        .filter(|subnet| subnet.network_id == network);
    let outside: Vec<_> = outside.collect();
    let inside = ports::of_device(state, router);
    let inside = inside
        .iter()
        .filter(|port| port.device_owner != ROUTER_GATEWAY)
        .flat_map(|port| &port.fixed_ips);
    for subnet in inside.filter_map(|ip| state.neutron.subnets.get(&ip.subnet_id)) {
        if let Some(other) = outside
            .iter()
            .find(|other| overlap(subnets::range(other), subnets::range(subnet)))
        {
            return Err(super::router_interfaces::overlaps(other, subnet));
        }
    }
    Ok(())
}
