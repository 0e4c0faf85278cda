//! Rules for the addresses of a subnet. Pure.

use std::net::IpAddr;

use crate::api::neutron::{AllocationPool, HostRoute};
use ipnet::IpNet;

use super::{
    common::{invalid, invalid_input},
    ipam::{default_pools, hosts, number},
};
use crate::state::ApiError;

/// Parses the CIDR of a subnet.
///
/// # Errors
/// It is invalid, has host bits, covers all addresses, or is of another IP version.
pub fn range(cidr: &str, ip_version: u8) -> Result<IpNet, ApiError> {
    if !matches!(ip_version, 4 | 6) {
        return Err(invalid("ip_version", format!("'{ip_version}' is not in [4, 6]")));
    }
    let range = proper(cidr).map_err(|reason| invalid("cidr", reason))?;
    if range.prefix_len() == 0 {
        return Err(invalid_input("0 is not allowed as CIDR prefix length"));
    }
    if version(range) != ip_version {
        return Err(invalid_input(format!(
            "cidr '{cidr}' does not match the ip_version '{ip_version}'"
        )));
    }
    Ok(range)
}

/// Parses a CIDR without host bits.
///
/// # Errors
/// A description of what is wrong.
pub fn proper(cidr: &str) -> Result<IpNet, String> {
    let range: IpNet = cidr
        .parse()
        .map_err(|_| format!("'{cidr}' is not a valid IP subnet"))?;
    if range.addr() != range.network() {
        return Err(format!(
            "'{cidr}' isn't a recognized IP subnet cidr, '{}' is recommended",
            range.trunc()
        ));
    }
    Ok(range)
}

/// Returns the IP version, 4 or 6.
pub fn version(range: IpNet) -> u8 {
    if matches!(range, IpNet::V4(_)) { 4 } else { 6 }
}

/// Rejects invalid IPv6 modes.
///
/// # Errors
/// Modes on IPv4, without DHCP, that contradict each other, or that need a /64.
pub fn check_ipv6_modes(
    range: IpNet,
    enable_dhcp: bool,
    address_mode: Option<&str>,
    ra_mode: Option<&str>,
) -> Result<(), ApiError> {
    for (field, mode) in [("ipv6_address_mode", address_mode), ("ipv6_ra_mode", ra_mode)] {
        let Some(mode) = mode else { continue };
        if !["slaac", "dhcpv6-stateful", "dhcpv6-stateless"].contains(&mode) {
            return Err(invalid(
                field,
                format!("'{mode}' is not in ['dhcpv6-stateful', 'dhcpv6-stateless', 'slaac']"),
            ));
        }
        if version(range) == 4 {
            return Err(invalid_input(format!("{field} is not valid when ip_version is 4")));
        }
        if !enable_dhcp {
            return Err(invalid_input(
                "ipv6_ra_mode or ipv6_address_mode cannot be set when enable_dhcp is set to False",
            ));
        }
    }
    if let (Some(address_mode), Some(ra_mode)) = (address_mode, ra_mode)
        && address_mode != ra_mode
    {
        return Err(invalid_input(format!(
            "ipv6_ra_mode set to '{ra_mode}' with ipv6_address_mode set to '{address_mode}' is not valid. \
             If both attributes are set, they must be the same value"
        )));
    }
    if is_auto(address_mode) && range.prefix_len() != 64 {
        return Err(invalid_input(format!(
            "Invalid CIDR {range} for IPv6 address mode. OpenStack uses the EUI-64 address format, \
             which requires the prefix to be /64"
        )));
    }
    Ok(())
}

/// Returns whether hosts configure their addresses themselves.
pub fn is_auto(address_mode: Option<&str>) -> bool {
    matches!(address_mode, Some("slaac" | "dhcpv6-stateless"))
}

/// Returns the gateway: the requested one, or the first host address.
///
/// # Errors
/// It is of another IP version, or is not a host address.
pub fn gateway(range: IpNet, asked: Option<Option<IpAddr>>) -> Result<Option<IpAddr>, ApiError> {
    let Some(asked) = asked else {
        return Ok(Some(hosts(range).0));
    };
    let Some(gateway) = asked else {
        return Ok(None);
    };
    let (first, last) = hosts(range);
    if gateway.is_ipv4() != first.is_ipv4() {
        let ip_version = version(range);
        return Err(invalid_input(format!(
            "gateway_ip '{gateway}' does not match the ip_version '{ip_version}'"
        )));
    }
    if range.contains(&gateway)
        && (number(gateway) < number(first) || number(gateway) > number(last))
    {
        return Err(invalid_input("Gateway is not valid on subnet"));
    }
    Ok(Some(gateway))
}

/// Returns the pools: the requested ones, sorted, or everything except the gateway.
///
/// # Errors
/// A pool is reversed, of another IP version, outside the subnet, or overlaps another one or the
/// gateway.
pub fn pools(
    range: IpNet,
    gateway: Option<IpAddr>,
    asked: Option<Vec<AllocationPool>>,
) -> Result<Vec<AllocationPool>, ApiError> {
    let Some(mut pools) = asked else {
        return Ok(default_pools(range, gateway));
    };
    pools.sort_by_key(|pool| number(pool.start));
    let (first, last) = hosts(range);
    // First, check each pool.
    for pool in &pools {
        let text = format!("{}-{}", pool.start, pool.end);
        if pool.start.is_ipv4() != pool.end.is_ipv4()
            || pool.start.is_ipv4() != first.is_ipv4()
            || number(pool.start) > number(pool.end)
        {
            return Err(ApiError::bad_request(
                "InvalidAllocationPool",
                format!("The allocation pool {text} is not valid."),
            ));
        }
        if number(pool.start) < number(first) || number(pool.end) > number(last) {
            return Err(ApiError::bad_request(
                "OutOfBoundsAllocationPool",
                format!("The allocation pool {text} spans beyond the subnet cidr {range}."),
            ));
        }
        let inside = |address: IpAddr| {
            address.is_ipv4() == pool.start.is_ipv4()
                && (number(pool.start)..=number(pool.end)).contains(&number(address))
        };
        if let Some(gateway) = gateway.filter(|gateway| inside(*gateway)) {
            return Err(ApiError::conflict(
                "GatewayConflictWithAllocationPools",
                format!("Gateway ip {gateway} conflicts with allocation pool {text}."),
            ));
        }
    }
    // Then check that they do not overlap.
    for pair in pools.windows(2) {
        if let [one, other] = pair
            && number(one.end) >= number(other.start)
        {
            return Err(ApiError::conflict(
                "OverlappingAllocationPools",
                format!(
                    "Found overlapping allocation pools: {}-{} {}-{} for subnet {range}.",
                    one.start, one.end, other.start, other.end
                ),
            ));
        }
    }
    Ok(pools)
}

/// Rejects invalid host routes.
///
/// # Errors
/// A CIDR or an address is invalid, or both are of different IP versions.
pub fn check_host_routes(routes: &[HostRoute]) -> Result<(), ApiError> {
    for HostRoute { destination, nexthop } in routes {
        let range = proper(destination).map_err(|reason| invalid("host_routes", reason))?;
        let nexthop: IpAddr = nexthop.parse().map_err(|_| {
            invalid("host_routes", format!("'{nexthop}' is not a valid IP address"))
        })?;
        if nexthop.is_ipv4() != range.addr().is_ipv4() {
            return Err(invalid(
                "host_routes",
                format!("'{nexthop}' and '{range}' are of two IP versions"),
            ));
        }
    }
    Ok(())
}

/// Returns whether two ranges have an address in common.
pub fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}
