//! Floating IPs.

use std::net::IpAddr;

use crate::api::neutron::{
    FixedIpRequest, FloatingIp, FloatingIpCreate, FloatingIpUpdate, Port, PortCreate, PortDetails,
};

use super::{
    FLOATING_IP, ROUTER_INTERFACE, Resource,
    common::{admin_only, bad_request, owner, service, standard, touch},
    networks, ports,
    quotas::{self, Quotable},
};
use crate::state::{ApiError, CloudState, RequestContext, new_id};

/// Returns the floating IPs that the user may see.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<FloatingIp> {
    let rows = state
        .neutron
        .floating_ips
        .iter()
        .filter(|ip| ctx.sees(&ip.standard.project_id));
    rows.map(|row| show_row(state, row)).collect()
}

/// Returns one as the API shows it.
///
/// # Errors
/// It does not exist, or the user may not see it.
pub fn show(state: &CloudState, ctx: &RequestContext, id: &str) -> Result<FloatingIp, ApiError> {
    get(state, ctx, id).map(|row| show_row(state, row))
}

fn get<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s FloatingIp, ApiError> {
    let row = state
        .neutron
        .floating_ips
        .get(id)
        .filter(|ip| ctx.sees(&ip.standard.project_id));
    row.map(|row| &**row)
        .ok_or_else(|| Resource::FloatingIp.not_found(id))
}

fn show_row(state: &CloudState, row: &FloatingIp) -> FloatingIp {
    let port = row
        .port_id
        .as_deref()
        .and_then(|port| state.neutron.ports.get(port));
    let port_details = port.map(|port| PortDetails {
        name: port.name.clone(),
        network_id: port.network_id.clone(),
        mac_address: port.mac_address.clone(),
        admin_state_up: port.admin_state_up,
        status: port.status.clone(),
        device_id: port.device_id.clone(),
        device_owner: port.device_owner.clone(),
    });
    FloatingIp { port_details, ..row.clone() }
}

/// Creates one.
///
/// # Errors
/// The network is not external; no address is left, or the requested one is in use or needs an
/// administrator; the port cannot be reached; the quota is used up.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    request: FloatingIpCreate,
) -> Result<FloatingIp, ApiError> {
    admin_only(
        ctx,
        "create_floatingip:floating_ip_address",
        request.floating_ip_address.is_some(),
    )?;
    let project = owner(ctx, request.project_id)?;
    let network = request.floating_network_id;
    if !networks::get(state, ctx, &network)?.external {
        return Err(bad_request(
            "floatingip",
            format!("Network {network} is not a valid external network"),
        ));
    }
    quotas::check(state, &project, Quotable::FloatingIp, 1)?;
    let id = new_id();
    let address = FixedIpRequest {
        subnet_id: request.subnet_id,
        ip_address: request.floating_ip_address,
    };
    let address = allocate(state, ctx, &network, &id, address)?;
    state.neutron.floating_ips.put(FloatingIp {
        id: id.clone(),
        floating_ip_address: Some(address),
        floating_network_id: network,
        status: "DOWN".into(),
        standard: standard(ctx, project, request.description, request.tags),
        ..FloatingIp::default()
    });
    if let Some(port) = request.port_id {
        attach(state, ctx, &id, &port, request.fixed_ip_address)?;
    } else if request.fixed_ip_address.is_some() {
        return Err(bad_request(
            "floatingip",
            "fixed_ip_address cannot be specified without a port_id",
        ));
    }
    show(state, ctx, &id)
}

/// Allocates an address on the external network, held by a port that belongs to no project.
fn allocate(
    state: &mut CloudState,
    ctx: &RequestContext,
    network: &str,
    id: &str,
    address: FixedIpRequest,
) -> Result<IpAddr, ApiError> {
    let fixed_ips = if address == FixedIpRequest::default() {
        None
    } else {
        Some(vec![address])
    };
    let request = PortCreate {
        network_id: network.to_owned(),
        fixed_ips,
        device_id: Some(id.to_owned()),
        device_owner: Some(FLOATING_IP.into()),
        security_groups: Some(Vec::new()),
        project_id: Some(String::new()),
        ..PortCreate::default()
    };
    let port = ports::create(state, &service(ctx), request)?;
    let mut addresses = port.fixed_ips.iter().map(|ip| ip.ip_address);
    addresses
        .clone()
        .find(IpAddr::is_ipv4)
        .or_else(|| addresses.next())
        .ok_or_else(|| {
            ApiError::bad_request(
                "ExternalIpAddressExhausted",
                format!("Unable to find any IP address on external network {network}."),
            )
        })
}

/// Attaches a floating IP to a port.
fn attach(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    port: &str,
    fixed: Option<IpAddr>,
) -> Result<(), ApiError> {
    let port = ports::get(state, ctx, port)?.clone();
    let floating = get(state, ctx, id)?.clone();
    let fixed = fixed_address(&port, fixed)?;
    let network = &floating.floating_network_id;
    let taken = state.neutron.floating_ips.iter().find(|other| {
        other.id != id
            && other.port_id.as_deref() == Some(&*port.id)
            && other.fixed_ip_address == Some(fixed)
            && other.floating_network_id == *network
    });
    if taken.is_some() {
        let address = floating
            .floating_ip_address
            .map(|address| address.to_string())
            .unwrap_or_default();
        return Err(ApiError::conflict(
            "FloatingIPPortAlreadyAssociated",
            format!(
                "Cannot associate floating IP {address} ({id}) with port {} using fixed IP {fixed}, \
                 as that fixed IP already has a floating IP on external network {network}.",
                port.id
            ),
        ));
    }
    let router = router_between(state, &port, fixed, network)?;
    state.neutron.floating_ips.update(id, |row| {
        let before = row.clone();
        row.port_id = Some(port.id.clone());
        row.fixed_ip_address = Some(fixed);
        row.router_id = Some(router);
        row.status = "ACTIVE".into();
        if *row != before {
            touch(ctx, &mut row.standard);
        }
    });
    Ok(())
}

/// Returns the requested address of a port, or its only one.
fn fixed_address(port: &Port, asked: Option<IpAddr>) -> Result<IpAddr, ApiError> {
    let id = &port.id;
    if let Some(asked) = asked {
        if port.fixed_ips.iter().any(|ip| ip.ip_address == asked) {
            return Ok(asked);
        }
        return Err(bad_request("floatingip", format!("Port {id} does not have fixed ip {asked}")));
    }
    let mut v4 = port
        .fixed_ips
        .iter()
        .map(|ip| ip.ip_address)
        .filter(IpAddr::is_ipv4);
    let Some(first) = v4.next() else {
        return Err(bad_request(
            "floatingip",
            format!("Cannot add floating IP to port {id} that has no fixed IPv4 addresses"),
        ));
    };
    if v4.next().is_some() {
        return Err(bad_request(
            "floatingip",
            format!(
                "Port {id} has multiple fixed IPv4 addresses.  Must provide a specific IPv4 address \
                 when assigning a floating IP"
            ),
        ));
    }
    Ok(first)
}

/// Returns the router between the subnet of an address and the external network.
fn router_between(
    state: &CloudState,
    port: &Port,
    fixed: IpAddr,
    network: &str,
) -> Result<String, ApiError> {
    let subnet = port
        .fixed_ips
        .iter()
        .find(|ip| ip.ip_address == fixed)
        .map(|ip| &*ip.subnet_id)
        .unwrap_or_default();
    let mut interfaces = state.neutron.ports.iter().filter(|interface| {
        interface.device_owner == ROUTER_INTERFACE
            && interface.fixed_ips.iter().any(|ip| ip.subnet_id == subnet)
    });
    let router = interfaces.find_map(|interface| {
        let router = state.neutron.routers.get(&interface.device_id)?;
        (router.external_gateway_info.as_ref()?.network_id == network).then(|| router.id.clone())
    });
    router.ok_or_else(|| {
        ApiError::not_found(
            "ExternalGatewayForFloatingIPNotFound",
            format!(
                "External network {network} is not reachable from subnet {subnet}.  \
                 Therefore, cannot associate Port {} with a Floating IP.",
                port.id
            ),
        )
    })
}

/// Detaches a floating IP.
fn detach(state: &mut CloudState, ctx: &RequestContext, id: &str) {
    state.neutron.floating_ips.update(id, |row| {
        if row.port_id.is_some() {
            row.port_id = None;
            row.fixed_ip_address = None;
            row.router_id = None;
            row.status = "DOWN".into();
            touch(ctx, &mut row.standard);
        }
    });
}

/// Changes one. An empty body detaches it, as null for the port does.
///
/// # Errors
/// It does not exist, or the port cannot be reached.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    request: FloatingIpUpdate,
) -> Result<FloatingIp, ApiError> {
    let row = get(state, ctx, id)?.clone();
    let empty = request == FloatingIpUpdate::default();
    if let Some(description) = request
        .description
        .filter(|description| *description != row.standard.description)
    {
        state.neutron.floating_ips.update(id, |row| {
            row.standard.description = description;
            touch(ctx, &mut row.standard);
        });
    }
    match (request.port_id, request.fixed_ip_address) {
        (Some(Some(port)), fixed) => attach(state, ctx, id, &port, fixed)?,
        (None, Some(fixed)) => match row.port_id {
            Some(port) => attach(state, ctx, id, &port, Some(fixed))?,
            None => {
                return Err(bad_request(
                    "floatingip",
                    "fixed_ip_address cannot be specified without a port_id",
                ));
            }
        },
        (Some(None), Some(_)) => {
            return Err(bad_request(
                "floatingip",
                "fixed_ip_address cannot be specified without a port_id",
            ));
        }
        (Some(None), None) => detach(state, ctx, id),
        (None, None) if empty => detach(state, ctx, id),
        (None, None) => {}
    }
    show(state, ctx, id)
}

/// Detaches floating IPs from addresses that a port does not have any more.
pub(super) fn follow_port(state: &mut CloudState, ctx: &RequestContext, port: &str) {
    let fixed = state
        .neutron
        .ports
        .get(port)
        .map(|port| port.fixed_ips.clone())
        .unwrap_or_default();
    let gone = |ip: &FloatingIp| {
        ip.port_id.as_deref() == Some(port)
            && !fixed
                .iter()
                .any(|f| Some(f.ip_address) == ip.fixed_ip_address)
    };
    let lost: Vec<_> = state
        .neutron
        .floating_ips
        .iter()
        .filter(|ip| gone(ip))
        .map(|ip| ip.id.clone())
        .collect();
    for id in lost {
        detach(state, ctx, &id);
    }
}

/// Deletes one, and releases its address.
///
/// # Errors
/// It does not exist.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    get(state, ctx, id)?;
    let port = ports::of_device(state, id)
        .into_iter()
        .find(|port| port.device_owner == FLOATING_IP);
    if let Some(port) = port.map(|port| port.id.clone()) {
        ports::delete(state, &service(ctx), &port)?;
    }
    state.neutron.floating_ips.remove(id);
    Ok(())
}

/// Returns the floating IPs that are attached to ports: port, address of the port, floating
/// address.
pub fn of_ports(state: &CloudState) -> Vec<(&str, IpAddr, IpAddr)> {
    let rows = state.neutron.floating_ips.iter();
    rows.filter_map(|ip| {
        Some((ip.port_id.as_deref()?, ip.fixed_ip_address?, ip.floating_ip_address?))
    })
    .collect()
}
