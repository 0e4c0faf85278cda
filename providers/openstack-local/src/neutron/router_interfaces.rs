//! Interfaces of routers.

use crate::api::neutron::{
    FixedIp, FixedIpRequest, InterfaceRequest, Port, PortCreate, PortUpdate, RouterInterface,
    Subnet,
};

use super::{
    ROUTER_INTERFACE, Resource, common::bad_request, ports, routers, subnet_plan::overlap, subnets,
};
use crate::state::{ApiError, CloudState, RequestContext};

/// Attaches a router to a subnet, where it gets the gateway's address, or to a port.
///
/// # Errors
/// The router, the subnet or the port does not exist; both or neither are named; the subnet has no
/// gateway; the router has an interface on it already, or on one that overlaps; the port is in use.
pub fn add(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    request: &InterfaceRequest,
) -> Result<RouterInterface, ApiError> {
    routers::get(state, ctx, id)?;
    let port = match (&request.subnet_id, &request.port_id) {
        (Some(subnet), None) => add_subnet(state, ctx, id, subnet)?,
        (None, Some(port)) => add_port(state, ctx, id, port)?,
        (Some(_), Some(_)) => {
            return Err(bad_request("router", "Cannot specify both subnet-id and port-id"));
        }
        (None, None) => {
            return Err(bad_request("router", "Either subnet_id or port_id must be specified"));
        }
    };
    Resource::Router.touch(state, ctx, id);
    answer(state, ctx, id, &port)
}

fn add_subnet(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    subnet: &str,
) -> Result<Port, ApiError> {
    let subnet = subnets::get(state, ctx, subnet)?.clone();
    let Some(gateway) = subnet.gateway_ip else {
        return Err(bad_request("router", "Subnet for router interface must have a gateway IP"));
    };
    check_subnet(state, id, &subnet)?;
    let project = routers::get(state, ctx, id)?.standard.project_id.clone();
    let request = PortCreate {
        network_id: subnet.network_id.clone(),
        fixed_ips: Some(vec![FixedIpRequest {
            subnet_id: Some(subnet.id),
            ip_address: Some(gateway),
        }]),
        device_id: Some(id.to_owned()),
        device_owner: Some(ROUTER_INTERFACE.into()),
        security_groups: Some(Vec::new()),
        project_id: Some(project),
        ..PortCreate::default()
    };
    ports::create(state, ctx, request)
}

fn add_port(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    port: &str,
) -> Result<Port, ApiError> {
    let row = ports::get(state, ctx, port)?.clone();
    if !row.device_id.is_empty() {
        return Err(ApiError::conflict(
            "PortInUse",
            format!(
                "Unable to complete operation on port {port} for network {}. Port already has an attached device {}.",
                row.network_id, row.device_id
            ),
        ));
    }
    if row.fixed_ips.is_empty() {
        return Err(bad_request("router", "Router port must have at least one fixed IP"));
    }
    if row
        .fixed_ips
        .iter()
        .filter(|ip| ip.ip_address.is_ipv4())
        .count()
        > 1
    {
        return Err(bad_request("router", "Cannot have multiple IPv4 subnets on router port"));
    }
    for FixedIp { subnet_id, .. } in &row.fixed_ips {
        let subnet = subnets::get(state, ctx, subnet_id)?.clone();
        check_subnet(state, id, &subnet)?;
    }
    let update = PortUpdate {
        device_id: Some(Some(id.to_owned())),
        device_owner: Some(Some(ROUTER_INTERFACE.into())),
        security_groups: Some(Vec::new()),
        ..PortUpdate::default()
    };
    ports::update(state, ctx, port, update)
}

/// Rejects a subnet on which the router has an interface already, or that overlaps one.
fn check_subnet(state: &CloudState, id: &str, subnet: &Subnet) -> Result<(), ApiError> {
    for fixed in ports::of_device(state, id)
        .into_iter()
        .flat_map(|port| &port.fixed_ips)
    {
        if fixed.subnet_id == subnet.id {
            return Err(bad_request(
                "router",
                format!("Router already has a port on subnet {}", subnet.id),
            ));
        }
        let other = state.neutron.subnets.get(&fixed.subnet_id);
        if let Some(other) =
            other.filter(|other| overlap(subnets::range(other), subnets::range(subnet)))
        {
            return Err(overlaps(subnet, other));
        }
    }
    Ok(())
}

pub(super) fn overlaps(subnet: &Subnet, other: &Subnet) -> ApiError {
    bad_request(
        "router",
        format!(
            "Cidr {} of subnet {} overlaps with cidr {} of subnet {}",
            subnet.cidr, subnet.id, other.cidr, other.id
        ),
    )
}

/// Detaches a router from a subnet or a port.
///
/// # Errors
/// The router or the interface does not exist, or floating IPs or routes need it.
pub fn remove(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    request: &InterfaceRequest,
) -> Result<RouterInterface, ApiError> {
    // First, find the interface.
    routers::get(state, ctx, id)?;
    let interfaces = ports::of_device(state, id)
        .into_iter()
        .filter(|port| port.device_owner == ROUTER_INTERFACE);
    let mut interfaces: Vec<Port> = interfaces.cloned().collect();
    if let Some(port) = &request.port_id {
        interfaces.retain(|interface| interface.id == *port);
        if interfaces.is_empty() {
            return Err(ApiError::not_found(
                "RouterInterfaceNotFound",
                format!("Router {id} does not have an interface with id {port}"),
            ));
        }
    }
    match (&request.subnet_id, &request.port_id) {
        (None, None) => {
            return Err(bad_request("router", "Either subnet_id or port_id must be specified"));
        }
        (Some(subnet), port) => {
            interfaces
                .retain(|interface| interface.fixed_ips.iter().any(|ip| ip.subnet_id == *subnet));
            if interfaces.is_empty() {
                return Err(match port {
                    Some(port) => ApiError::bad_request(
                        "SubnetMismatchForPort",
                        format!(
                            "Subnet on port {port} does not match the requested subnet {subnet}."
                        ),
                    ),
                    None => ApiError::not_found(
                        "RouterInterfaceNotFoundForSubnet",
                        format!("Router {id} has no interface on subnet {subnet}"),
                    ),
                });
            }
        }
        (None, Some(_)) => {}
    }
    // Never empty, because both filters above have rejected that.
    let Some(port) = interfaces.into_iter().next() else {
        return Err(Resource::Port.not_found(request.port_id.as_deref().unwrap_or_default()));
    };
    // Then check that nothing needs it, and delete it.
    for fixed in &port.fixed_ips {
        check_unused(state, id, &fixed.subnet_id)?;
    }
    let answer = answer(state, ctx, id, &port)?;
    ports::delete(state, ctx, &port.id)?;
    Resource::Router.touch(state, ctx, id);
    Ok(answer)
}

/// Rejects removal from a subnet that floating IPs or routes need.
fn check_unused(state: &CloudState, id: &str, subnet: &str) -> Result<(), ApiError> {
    let needed = state.neutron.floating_ips.iter().any(|floating| {
        floating.router_id.as_deref() == Some(id)
            && floating
                .port_id
                .as_deref()
                .and_then(|port| state.neutron.ports.get(port))
                .is_some_and(|port| {
                    let mut fixed = port.fixed_ips.iter();
                    fixed.any(|ip| {
                        Some(ip.ip_address) == floating.fixed_ip_address && ip.subnet_id == subnet
                    })
                })
    });
    if needed {
        return Err(ApiError::conflict(
            "RouterInterfaceInUseByFloatingIP",
            format!(
                "Router interface for subnet {subnet} on router {id} cannot be deleted, \
                 as it is required by one or more floating IPs."
            ),
        ));
    }
    let range = state
        .neutron
        .subnets
        .get(subnet)
        .map(|subnet| subnets::range(subnet));
    let routes = state
        .neutron
        .routers
        .get(id)
        .into_iter()
        .flat_map(|router| &router.routes);
    for route in routes {
        let nexthop: Option<std::net::IpAddr> = route.nexthop.parse().ok();
        if nexthop
            .zip(range)
            .is_some_and(|(nexthop, range)| range.contains(&nexthop))
        {
            return Err(ApiError::conflict(
                "RouterInterfaceInUseByRoute",
                format!(
                    "Router interface for subnet {subnet} on router {id} cannot be deleted, \
                     as it is required by one or more routes."
                ),
            ));
        }
    }
    Ok(())
}

fn answer(
    state: &CloudState,
    ctx: &RequestContext,
    id: &str,
    port: &Port,
) -> Result<RouterInterface, ApiError> {
    let router = routers::get(state, ctx, id)?;
    let subnet_ids: Vec<_> = port
        .fixed_ips
        .iter()
        .map(|ip| ip.subnet_id.clone())
        .collect();
    Ok(RouterInterface {
        id: id.to_owned(),
        tenant_id: router.standard.tenant_id.clone(),
        project_id: router.standard.project_id.clone(),
        port_id: port.id.clone(),
        network_id: port.network_id.clone(),
        subnet_id: subnet_ids.first().cloned().unwrap_or_default(),
        subnet_ids,
        tags: router.standard.tags.clone(),
    })
}
