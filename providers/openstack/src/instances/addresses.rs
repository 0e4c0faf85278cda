//! Collects the addresses of a Node, in upstream's order.

use std::{cmp::Reverse, net::IpAddr};

use ccm_core::k8s::{AddressType, NodeAddress};
use ipnet::IpNet;

use super::server::{NetworkAddress, NovaServer, ServerPort};

/// Rules for the choice and the order of a Node's addresses, from section `[Networking]` of
/// `cloud.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRules {
    /// True when IPv6 addresses are left out (`ipv6-support-disabled`).
    pub no_ipv6: bool,
    /// Networks whose addresses are external (`public-network-name`).
    pub public: Vec<String>,
    /// Networks whose addresses are internal. If there are any, no other network's addresses are
    /// (`internal-network-name`).
    pub internal: Vec<String>,
    /// Networks whose addresses come first, in order of preference (`address-sort-order`).
    pub sort_order: Vec<IpNet>,
}

/// Collects the addresses of a server's Node. `sub_ports` are the fixed addresses of trunks'
/// sub-ports.
///
/// First come the fixed addresses of active ports, then the access addresses, the host name, and
/// the addresses that Nova shows, by network name. An address on a public network of `rules` is
/// external. If `rules` name internal networks, addresses on all other networks are left out.
pub fn collect_addresses(
    server: &NovaServer,
    ports: &[ServerPort],
    sub_ports: &[NetworkAddress],
    rules: &AddressRules,
) -> Vec<NodeAddress> {
    let mut list = AddressList { rules, addresses: Vec::new() };
    for address in ports
        .iter()
        .filter(|port| port.active)
        .flat_map(|port| &port.fixed)
    {
        list.add(AddressType::InternalIp, address);
    }
    for address in [&server.access_v4, &server.access_v6].into_iter().flatten() {
        list.add(AddressType::ExternalIp, address);
    }
    if let Some(name) = &server.hostname {
        list.push_unique(NodeAddress::new(AddressType::Hostname, name.clone()));
    }
    let mut networks: Vec<_> = server.networks.iter().chain(sub_ports).collect();
    networks.sort_by(|a, b| a.network.cmp(&b.network));
    for NetworkAddress { network, address, floating } in networks {
        list.add_on(network, address, *floating);
    }
    let mut addresses = list.addresses;
    if !rules.sort_order.is_empty() {
        sort(&mut addresses, &rules.sort_order);
    }
    addresses
}

/// The addresses that were collected so far.
struct AddressList<'a> {
    rules: &'a AddressRules,
    addresses: Vec<NodeAddress>,
}

impl AddressList<'_> {
    /// Adds an address unless its family is disabled.
    fn add(&mut self, kind: AddressType, address: &str) {
        if !self.is_disabled(address) {
            self.push_unique(NodeAddress::new(kind, address));
        }
    }

    /// Adds an address on a network, changes it to external, or removes it, according to the rules.
    fn add_on(&mut self, network: &str, address: &str, floating: bool) {
        if self.is_disabled(address) {
            return;
        }
        let AddressRules { public, internal, .. } = self.rules;
        if floating {
            self.add(AddressType::ExternalIp, address);
        } else if public.iter().any(|name| name == network) {
            self.remove(address);
            self.add(AddressType::ExternalIp, address);
        } else if internal.is_empty() || internal.iter().any(|name| name == network) {
            self.add(AddressType::InternalIp, address);
        } else {
            self.remove(address);
        }
    }

    fn push_unique(&mut self, address: NodeAddress) {
        if !self.addresses.contains(&address) {
            self.addresses.push(address);
        }
    }

    fn remove(&mut self, address: &str) {
        self.addresses.retain(|other| &*other.address != address);
    }

    /// Returns true for IPv6 addresses if they are disabled.
    fn is_disabled(&self, address: &str) -> bool {
        self.rules.no_ipv6 && address.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6())
    }
}

/// Parses `address-sort-order`, a list of networks separated by commas or spaces. Also returns the
/// elements that are not networks.
pub fn parse_order(text: &str) -> (Vec<IpNet>, Vec<&str>) {
    let elements = text
        .split([',', ' ', '\t'])
        .filter(|element| !element.is_empty());
    let mut networks = Vec::new();
    let mut invalid = Vec::new();
    for element in elements {
        match element.parse::<IpNet>() {
            Ok(network) => networks.push(network.trunc()),
            Err(_) => invalid.push(element),
        }
    }
    (networks, invalid)
}

/// Sorts addresses by the first of these networks that contains them, and numerically within a
/// network. Addresses in none of the networks come last, in their old order.
pub fn sort(addresses: &mut [NodeAddress], order: &[IpNet]) {
    addresses.sort_by_cached_key(|address| {
        let ip = address.address.parse::<IpAddr>().ok();
        let priority = ip.map_or(0, |ip| priority(ip, order));
        (Reverse(priority), ip.filter(|_| priority > 0).map(to_sort_key))
    });
}

/// Returns the priority of an address, which is highest in the first network, 1 in the last one,
/// and 0 outside all networks.
fn priority(ip: IpAddr, order: &[IpNet]) -> usize {
    order
        .iter()
        .position(|network| network.contains(&ip))
        .map_or(0, |index| order.len() - index)
}

/// Converts an address to 16 bytes, by which addresses of both families can be compared.
fn to_sort_key(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;
