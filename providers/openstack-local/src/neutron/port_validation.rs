//! Checks of a port's security groups and address pairs, and allocation of its addresses.

use std::{collections::BTreeSet, net::IpAddr};

use crate::api::neutron::{AddressPair, FixedIp, FixedIpRequest, Port, Subnet};
use ipnet::IpNet;

use super::{
    Resource,
    common::{invalid, invalid_input},
    ipam,
    rows::Limits,
    subnet_plan,
    subnets::{range, used},
};
use crate::state::{ApiError, CloudState, RequestContext};

/// Maximum number of addresses of a port.
const MAX_FIXED_IPS: usize = 5;

/// Returns the groups without duplicates.
///
/// # Errors
/// A group does not exist, or the project may not use it.
pub(super) fn groups(
    state: &CloudState,
    ctx: &RequestContext,
    asked: Vec<String>,
) -> Result<Vec<String>, ApiError> {
    let groups: BTreeSet<String> = asked.into_iter().collect();
    for group in &groups {
        Resource::SecurityGroup.standard(state, ctx, group)?;
    }
    Ok(groups.into_iter().collect())
}

/// Returns the pairs, completed with hardware addresses.
///
/// # Errors
/// There are too many, a duplicate, or an invalid address.
pub(super) fn address_pairs(
    state: &CloudState,
    asked: Vec<AddressPair>,
    mac: &str,
) -> Result<Vec<AddressPair>, ApiError> {
    let most = Limits::of(state).address_pairs;
    if asked.len() > most {
        return Err(ApiError::bad_request(
            "AllowedAddressPairExhausted",
            format!("The number of allowed address pair exceeds the maximum {most}."),
        ));
    }
    let mut pairs = Vec::with_capacity(asked.len());
    for AddressPair { ip_address, mac_address } in asked {
        let known =
            ip_address.parse::<IpAddr>().is_ok() || subnet_plan::proper(&ip_address).is_ok();
        if !known {
            return Err(invalid(
                "allowed_address_pairs",
                format!("'{ip_address}' is not a valid IP address or subnet"),
            ));
        }
        let mac_address = mac_address.unwrap_or_else(|| mac.to_owned()).to_lowercase();
        if ipam::mac_bytes(&mac_address).is_none() {
            return Err(invalid(
                "allowed_address_pairs",
                format!("'{mac_address}' is not a valid MAC address"),
            ));
        }
        let pair = AddressPair { ip_address, mac_address: Some(mac_address) };
        if pairs.contains(&pair) {
            return Err(ApiError::bad_request(
                "DuplicateAddressPairInRequest",
                format!(
                    "Request contains duplicate address pair: mac_address {} ip_address {}.",
                    pair.mac_address.unwrap_or_default(),
                    pair.ip_address
                ),
            ));
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Rejects groups or pairs on a port without port security.
///
/// # Errors
/// The port has some.
pub(super) fn check_port_security(port: &Port) -> Result<(), ApiError> {
    if port.port_security_enabled != Some(false) {
        return Ok(());
    }
    if !port.security_groups.is_empty() {
        return Err(ApiError::conflict(
            "PortSecurityPortHasSecurityGroup",
            "Port has security group associated. Cannot disable port security or IP address until security group is removed.",
        ));
    }
    if !port.allowed_address_pairs.is_empty() {
        return Err(ApiError::conflict(
            "AddressPairAndPortSecurityRequired",
            "Port Security must be enabled in order to have allowed address pairs on a port.",
        ));
    }
    Ok(())
}

/// The port that addresses are allocated for.
pub(super) struct AddressRequest<'a> {
    /// Network.
    pub network: &'a str,
    /// Hardware address.
    pub mac: &'a str,
    /// Device owner of the port.
    pub device_owner: &'a str,
    /// Addresses that it has now.
    pub held: &'a [FixedIp],
}

/// Returns the addresses of a port: the requested ones, or one of each IP version.
///
/// # Errors
/// An address or a subnet that is not on the network, an address in use, or no address left.
pub(super) fn fixed_ips(
    state: &CloudState,
    wanted: &AddressRequest<'_>,
    asked: Option<Vec<FixedIpRequest>>,
) -> Result<Vec<FixedIp>, ApiError> {
    let subnets: Vec<&Subnet> = state
        .neutron
        .subnets
        .iter()
        .map(|subnet| &**subnet)
        .filter(|subnet| subnet.network_id == wanted.network)
        .collect();
    let Some(asked) = asked else {
        return automatic(state, wanted, &subnets);
    };
    if asked.len() > MAX_FIXED_IPS {
        return Err(invalid_input("Exceeded maximum amount of fixed ips per port"));
    }
    let mut fixed: Vec<FixedIp> = Vec::with_capacity(asked.len());
    // Requested addresses come first, so that none of them is given to another request.
    let (named, open): (Vec<_>, Vec<_>) = asked
        .into_iter()
        .partition(|request| request.ip_address.is_some());
    for request in named.into_iter().chain(open) {
        let subnet = subnet_of(&subnets, wanted.network, &request)?;
        let mut in_use = used(state, &subnet.id);
        in_use.retain(|address| !wanted.held.iter().any(|held| held.ip_address == *address));
        in_use.extend(fixed.iter().map(|ip| ip.ip_address));
        let ip_address = match request.ip_address {
            Some(address) if in_use.contains(&address) => {
                return Err(address_in_use(&subnet.id, address));
            }
            Some(address) => address,
            None => pick(subnet, wanted.mac, &in_use).ok_or_else(|| exhausted(wanted.network))?,
        };
        fixed.push(FixedIp { subnet_id: subnet.id.clone(), ip_address });
    }
    Ok(fixed)
}

/// Returns the subnet for a request.
fn subnet_of<'s>(
    subnets: &[&'s Subnet],
    network: &str,
    request: &FixedIpRequest,
) -> Result<&'s Subnet, ApiError> {
    let holds = |subnet: &Subnet, address: IpAddr| {
        let range: IpNet = range(subnet);
        let (first, last) = ipam::hosts(range);
        range.contains(&address)
            && (ipam::number(first)..=ipam::number(last)).contains(&ipam::number(address))
    };
    match (&request.subnet_id, request.ip_address) {
        (Some(id), address) => {
            let Some(subnet) = subnets.iter().find(|subnet| subnet.id == *id) else {
                return Err(invalid_input(format!(
                    "Failed to create port on network {network}, because fixed_ips included invalid subnet {id}"
                )));
            };
            match address.filter(|address| !holds(subnet, *address)) {
                Some(address) => Err(ApiError::bad_request(
                    "InvalidIpForSubnet",
                    format!("IP address {address} is not a valid IP for the specified subnet."),
                )),
                None => Ok(subnet),
            }
        }
        (None, Some(address)) => subnets.iter().find(|subnet| holds(subnet, address)).copied().ok_or_else(|| {
            ApiError::bad_request(
                "InvalidIpForNetwork",
                format!("IP address {address} is not a valid IP for any of the subnets on the specified network."),
            )
        }),
        (None, None) => Err(invalid_input("IP allocation requires subnet_id or ip_address")),
    }
}

/// Returns one address of each IP version that the network has, and one of each subnet with
/// automatic addresses.
fn automatic(
    state: &CloudState,
    wanted: &AddressRequest<'_>,
    subnets: &[&Subnet],
) -> Result<Vec<FixedIp>, ApiError> {
    let fits = |subnet: &&&Subnet| {
        subnet.service_types.is_empty()
            || subnet
                .service_types
                .iter()
                .any(|kind| wanted.device_owner.starts_with(&**kind))
    };
    let mut fixed = Vec::new();
    for version in [4, 6] {
        let of_version: Vec<_> = subnets
            .iter()
            .filter(fits)
            .filter(|subnet| subnet.ip_version == version)
            .collect();
        let (auto, managed): (Vec<&&Subnet>, Vec<&&Subnet>) = of_version
            .into_iter()
            .partition(|subnet| subnet_plan::is_auto(subnet.ipv6_address_mode.as_deref()));
        let free = managed.iter().find_map(|subnet| {
            let ip_address = pick(subnet, wanted.mac, &used(state, &subnet.id))?;
            Some(FixedIp { subnet_id: subnet.id.clone(), ip_address })
        });
        if free.is_none() && !managed.is_empty() {
            return Err(exhausted(wanted.network));
        }
        fixed.extend(free);
        fixed.extend(auto.iter().filter_map(|subnet| {
            let ip_address = ipam::slaac(range(subnet), wanted.mac)?;
            Some(FixedIp { subnet_id: subnet.id.clone(), ip_address })
        }));
    }
    Ok(fixed)
}

/// Returns a free address of a subnet.
fn pick(subnet: &Subnet, mac: &str, used: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    if subnet_plan::is_auto(subnet.ipv6_address_mode.as_deref()) {
        return ipam::slaac(range(subnet), mac).filter(|address| !used.contains(address));
    }
    ipam::lowest_free(&subnet.allocation_pools, used)
}

fn address_in_use(subnet: &str, address: IpAddr) -> ApiError {
    ApiError::conflict(
        "IpAddressAlreadyAllocated",
        format!("IP address {address} already allocated in subnet {subnet}"),
    )
}

fn exhausted(network: &str) -> ApiError {
    ApiError::conflict(
        "IpAddressGenerationFailure",
        format!("No more IP addresses available on network {network}."),
    )
}
