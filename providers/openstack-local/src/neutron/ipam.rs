//! Address arithmetic. Pure.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::api::neutron::AllocationPool;
use ipnet::IpNet;

/// Returns an address as a number.
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns the address of a number, of the same IP version as `like`; `None` if it is out of range.
pub fn address(number: u128, like: IpAddr) -> Option<IpAddr> {
    match like {
        IpAddr::V4(_) => u32::try_from(number)
            .ok()
            .map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
        IpAddr::V6(_) => Some(IpAddr::V6(Ipv6Addr::from_bits(number))),
    }
}

/// Returns the lowest address of the pools that is not in use.
pub fn lowest_free(pools: &[AllocationPool], used: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    pools.iter().find_map(|pool| {
        let mut candidate = number(pool.start);
        let last = number(pool.end);
        while candidate <= last {
            let address = address(candidate, pool.start)?;
            if !used.contains(&address) {
                return Some(address);
            }
            candidate = candidate.checked_add(1)?;
        }
        None
    })
}

/// Returns the first and last address that a host may have.
pub fn hosts(range: IpNet) -> (IpAddr, IpAddr) {
    let first = range.network();
    let last = range.broadcast();
    match range {
        IpNet::V4(v4) if v4.prefix_len() >= 31 => (first, last),
        IpNet::V4(_) => (step(first, 1), step(last, -1)),
        IpNet::V6(v6) if v6.prefix_len() >= 127 => (first, last),
        IpNet::V6(_) => (step(first, 1), last),
    }
}

/// Returns the next or the previous address; the same at the end of all addresses.
fn step(from: IpAddr, by: i8) -> IpAddr {
    number(from)
        .checked_add_signed(by.into())
        .and_then(|number| address(number, from))
        .unwrap_or(from)
}

/// Returns all host addresses except the gateway.
pub fn default_pools(range: IpNet, gateway: Option<IpAddr>) -> Vec<AllocationPool> {
    let (start, end) = hosts(range);
    match gateway
        .filter(|gateway| number(start) <= number(*gateway) && number(*gateway) <= number(end))
    {
        None => vec![AllocationPool { start, end }],
        Some(gateway) => {
            let mut pools = Vec::new();
            if gateway != start {
                pools.push(AllocationPool { start, end: step(gateway, -1) });
            }
            if gateway != end {
                pools.push(AllocationPool { start: step(gateway, 1), end });
            }
            pools
        }
    }
}

/// Returns the address that a host configures from its hardware address (SLAAC, modified EUI-64).
///
/// `None` when `mac` is not a hardware address or the range is not IPv6.
pub fn slaac(range: IpNet, mac: &str) -> Option<IpAddr> {
    let IpNet::V6(range) = range else { return None };
    let bytes = mac_bytes(mac)?;
    let suffix = u64::from_be_bytes([
        bytes[0] ^ 2,
        bytes[1],
        bytes[2],
        0xff,
        0xfe,
        bytes[3],
        bytes[4],
        bytes[5],
    ]);
    Some(IpAddr::V6(Ipv6Addr::from_bits(range.network().to_bits() | u128::from(suffix))))
}

/// Parses a hardware address.
pub fn mac_bytes(mac: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = mac.split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(parts.next().filter(|part| part.len() == 2)?, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}
