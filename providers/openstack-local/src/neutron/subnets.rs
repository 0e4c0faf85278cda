//! Subnets.

use std::{collections::BTreeSet, net::IpAddr};

use crate::api::neutron::{Subnet, SubnetCreate, SubnetUpdate};
use ipnet::IpNet;

use super::{
    Resource,
    common::{bad_request, invalid, invalid_input, owner, standard, touch},
    networks,
    quotas::{self, Quotable},
    subnet_plan as plan,
};
use crate::state::{ApiError, CloudState, RequestContext, new_id};

/// Maximum number of name servers of a subnet.
const MAX_NAMESERVERS: usize = 5;
/// Maximum number of host routes of a subnet.
const MAX_HOST_ROUTES: usize = 20;

/// Returns the subnets that the user may see: their own and those of shared networks.
pub fn list(state: &CloudState, ctx: &RequestContext) -> Vec<Subnet> {
    state
        .neutron
        .subnets
        .iter()
        .filter(|subnet| visible(state, ctx, subnet))
        .map(|subnet| Subnet::clone(subnet))
        .collect()
}

/// Returns one.
///
/// # Errors
/// It does not exist, or the user may not see it.
pub fn get<'s>(
    state: &'s CloudState,
    ctx: &RequestContext,
    id: &str,
) -> Result<&'s Subnet, ApiError> {
    let row = state
        .neutron
        .subnets
        .get(id)
        .filter(|subnet| visible(state, ctx, subnet));
    row.map(|row| &**row)
        .ok_or_else(|| Resource::Subnet.not_found(id))
}

fn visible(state: &CloudState, ctx: &RequestContext, subnet: &Subnet) -> bool {
    ctx.sees(&subnet.standard.project_id)
        || state
            .neutron
            .networks
            .get(&subnet.network_id)
            .is_some_and(|n| n.shared)
}

/// Returns the CIDR of a row.
pub(crate) fn range(subnet: &Subnet) -> IpNet {
    subnet
        .cidr
        .parse()
        .expect("the range of a row was read when it was made")
}

/// Returns the addresses in use on a subnet.
pub(super) fn used(state: &CloudState, id: &str) -> BTreeSet<IpAddr> {
    let addresses = state.neutron.ports.iter().flat_map(|port| &port.fixed_ips);
    addresses
        .filter(|fixed| fixed.subnet_id == id)
        .map(|fixed| fixed.ip_address)
        .collect()
}

/// Creates one.
///
/// # Errors
/// The network does not exist or is not the user's, values contradict each other or another subnet,
/// or the quota is used up.
pub fn create(
    state: &mut CloudState,
    ctx: &RequestContext,
    request: SubnetCreate,
) -> Result<Subnet, ApiError> {
    // First, check network and project.
    let network = networks::get(state, ctx, &request.network_id)?;
    let network_project = network.standard.project_id.clone();
    Resource::Network.writable(state, ctx, &request.network_id)?;
    let project = match request.project_id {
        None => network_project,
        asked => owner(ctx, asked)?,
    };
    // Then check the addresses.
    let cidr = request.cidr.ok_or_else(|| {
        bad_request("subnets", "a subnetpool must be specified in the absence of a cidr")
    })?;
    let range = plan::range(&cidr, request.ip_version)?;
    let enable_dhcp = request.enable_dhcp.unwrap_or(true);
    let modes = (request.ipv6_address_mode.as_deref(), request.ipv6_ra_mode.as_deref());
    plan::check_ipv6_modes(range, enable_dhcp, modes.0, modes.1)?;
    let gateway_ip = plan::gateway(range, request.gateway_ip)?;
    let allocation_pools = plan::pools(range, gateway_ip, request.allocation_pools)?;
    let dns_nameservers = request.dns_nameservers.unwrap_or_default();
    let host_routes = request.host_routes.unwrap_or_default();
    check_lists(&dns_nameservers, &host_routes)?;
    check_overlap(state, &request.network_id, range)?;
    quotas::check(state, &project, Quotable::Subnet, 1)?;
    // Finally, create the row.
    let row = Subnet {
        id: new_id(),
        name: request.name.unwrap_or_default(),
        network_id: request.network_id,
        ip_version: request.ip_version,
        cidr: range.to_string(),
        gateway_ip,
        enable_dhcp,
        allocation_pools,
        dns_nameservers,
        host_routes,
        ipv6_address_mode: request.ipv6_address_mode,
        ipv6_ra_mode: request.ipv6_ra_mode,
        service_types: request.service_types.unwrap_or_default(),
        standard: standard(ctx, project, request.description, request.tags),
        ..Subnet::default()
    };
    Resource::Network.touch(state, ctx, &row.network_id);
    state.neutron.subnets.put(row.clone());
    Ok(row)
}

/// Rejects a CIDR that overlaps another one of its network.
fn check_overlap(state: &CloudState, network: &str, range: IpNet) -> Result<(), ApiError> {
    let mut others = state
        .neutron
        .subnets
        .iter()
        .filter(|other| other.network_id == network);
    others.find(|other| plan::overlap(self::range(other), range)).map_or(Ok(()), |other| {
        Err(invalid_input(format!(
            "Requested subnet with cidr: {range} for network: {network} overlaps with another subnet: {} ({})",
            other.id, other.cidr
        )))
    })
}

fn check_lists(
    nameservers: &[String],
    routes: &[crate::api::neutron::HostRoute],
) -> Result<(), ApiError> {
    if nameservers.len() > MAX_NAMESERVERS {
        return Err(ApiError::bad_request(
            "DNSNameServersExhausted",
            format!(
                "Unable to complete operation. The number of DNS nameservers exceeds the limit {MAX_NAMESERVERS}."
            ),
        ));
    }
    for server in nameservers {
        if server.parse::<IpAddr>().is_err() {
            return Err(invalid(
                "dns_nameservers",
                format!("'{server}' is not a valid nameserver"),
            ));
        }
    }
    if routes.len() > MAX_HOST_ROUTES {
        return Err(ApiError::bad_request(
            "HostRoutesExhausted",
            format!(
                "Unable to complete operation. The number of host routes exceeds the limit {MAX_HOST_ROUTES}."
            ),
        ));
    }
    plan::check_host_routes(routes)
}

/// Changes one.
///
/// # Errors
/// It does not exist, it belongs to somebody else, values contradict each other, or the gateway
/// belongs to a router.
pub fn update(
    state: &mut CloudState,
    ctx: &RequestContext,
    id: &str,
    request: SubnetUpdate,
) -> Result<Subnet, ApiError> {
    Resource::Subnet.writable(state, ctx, id)?;
    let mut row = get(state, ctx, id)?.clone();
    let before = row.clone();
    let range = range(&row);
    if let Some(gateway) = request.gateway_ip {
        let gateway = plan::gateway(range, Some(gateway))?;
        if gateway != row.gateway_ip {
            check_gateway_unused(state, &row)?;
        }
        row.gateway_ip = gateway;
    }
    // Unchanged pools must not contain a new gateway, either.
    let pools = request
        .allocation_pools
        .unwrap_or_else(|| row.allocation_pools.clone());
    row.allocation_pools = plan::pools(range, row.gateway_ip, Some(pools))?;
    row.name = request.name.unwrap_or(row.name);
    row.enable_dhcp = request.enable_dhcp.unwrap_or(row.enable_dhcp);
    plan::check_ipv6_modes(
        range,
        row.enable_dhcp,
        row.ipv6_address_mode.as_deref(),
        row.ipv6_ra_mode.as_deref(),
    )?;
    row.dns_nameservers = request.dns_nameservers.unwrap_or(row.dns_nameservers);
    row.host_routes = request.host_routes.unwrap_or(row.host_routes);
    check_lists(&row.dns_nameservers, &row.host_routes)?;
    row.service_types = request.service_types.unwrap_or(row.service_types);
    row.standard.description = request.description.unwrap_or(row.standard.description);
    if row != before {
        touch(ctx, &mut row.standard);
        state.neutron.subnets.put(row.clone());
    }
    Ok(row)
}

fn check_gateway_unused(state: &CloudState, subnet: &Subnet) -> Result<(), ApiError> {
    let owned = state.neutron.ports.iter().find(|port| {
        port.device_owner == super::ROUTER_INTERFACE
            && port
                .fixed_ips
                .iter()
                .any(|ip| ip.subnet_id == subnet.id && Some(ip.ip_address) == subnet.gateway_ip)
    });
    owned.map_or(Ok(()), |port| {
        let gateway = subnet
            .gateway_ip
            .map(|gateway| gateway.to_string())
            .unwrap_or_default();
        Err(ApiError::conflict(
            "GatewayIpInUse",
            format!(
                "Current gateway ip {gateway} already in use by port {}. Unable to update.",
                port.id
            ),
        ))
    })
}

/// Deletes one.
///
/// # Errors
/// It does not exist, it belongs to somebody else, or ports have addresses on it.
pub fn delete(state: &mut CloudState, ctx: &RequestContext, id: &str) -> Result<(), ApiError> {
    Resource::Subnet.writable(state, ctx, id)?;
    if !used(state, id).is_empty() {
        return Err(ApiError::conflict(
            "SubnetInUse",
            format!(
                "Unable to complete operation on subnet {id}: One or more ports have an IP allocation from this subnet."
            ),
        ));
    }
    if let Some(row) = state.neutron.subnets.remove(id) {
        Resource::Network.touch(state, ctx, &row.network_id);
    }
    Ok(())
}
