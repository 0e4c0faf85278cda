//! Addresses of a Node, in upstream's order.

use std::{cmp::Reverse, net::IpAddr};

use ccm_core::k8s::{AddressType, NodeAddress};
use ipnet::IpNet;

use super::server::{NetworkAddress, NovaServer, ServerPort};

/// Which addresses a Node has, and in which order: section `[Networking]` of `cloud.conf`.
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

/// Returns the addresses of a server's Node. `sub_ports`: fixed addresses of trunks' sub-ports.
///
/// The order is: fixed addresses of active ports, the access addresses, the host name, and then
/// what Nova shows, by network name. An address on a network that `rules` call public is external.
/// If `rules` name internal networks, addresses on networks that are neither are left out.
pub fn of(
    machine: &NovaServer,
    ports: &[ServerPort],
    sub_ports: &[NetworkAddress],
    rules: &AddressRules,
) -> Vec<NodeAddress> {
    let mut list = AddressList { rules, found: Vec::new() };
    for address in ports
        .iter()
        .filter(|nic| nic.active)
        .flat_map(|nic| &nic.fixed)
    {
        list.add(AddressType::InternalIp, address);
    }
    for address in [&machine.access_v4, &machine.access_v6]
        .into_iter()
        .flatten()
    {
        list.add(AddressType::ExternalIp, address);
    }
    if let Some(name) = &machine.hostname {
        list.put(NodeAddress::new(AddressType::Hostname, name.clone()));
    }
    let mut networks: Vec<_> = machine.networks.iter().chain(sub_ports).collect();
    networks.sort_by(|a, b| a.network.cmp(&b.network));
    for NetworkAddress { network, address, floating } in networks {
        list.add_on(network, address, *floating);
    }
    let mut found = list.found;
    if !rules.sort_order.is_empty() {
        sort(&mut found, &rules.sort_order);
    }
    found
}

struct AddressList<'a> {
    rules: &'a AddressRules,
    found: Vec<NodeAddress>,
}

impl AddressList<'_> {
    /// Adds an address unless its family is disabled.
    fn add(&mut self, kind: AddressType, address: &str) {
        if !self.is_hidden(address) {
            self.put(NodeAddress::new(kind, address));
        }
    }

    /// Adds, moves or removes an address according to the rules for its network.
    fn add_on(&mut self, network: &str, address: &str, floating: bool) {
        if self.is_hidden(address) {
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

    fn put(&mut self, address: NodeAddress) {
        if !self.found.contains(&address) {
            self.found.push(address);
        }
    }

    fn remove(&mut self, address: &str) {
        self.found.retain(|known| &*known.address != address);
    }

    fn is_hidden(&self, address: &str) -> bool {
        self.rules.no_ipv6 && address.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6())
    }
}

/// Parses `address-sort-order`: networks, separated by comma or space. Also returns the words that
/// are not networks, to be reported.
pub fn parse_order(text: &str) -> (Vec<IpNet>, Vec<&str>) {
    let words = text.split([',', ' ', '\t']).filter(|word| !word.is_empty());
    let mut networks = Vec::new();
    let mut wrong = Vec::new();
    for word in words {
        match word.parse::<IpNet>() {
            Ok(network) => networks.push(network.trunc()),
            Err(_) => wrong.push(word),
        }
    }
    (networks, wrong)
}

/// Sorts addresses: those in an earlier network first, by number within one network; the rest keeps
/// its order after them.
pub fn sort(addresses: &mut [NodeAddress], order: &[IpNet]) {
    addresses.sort_by_cached_key(|address| {
        let ip = address.address.parse::<IpAddr>().ok();
        let priority = ip.map_or(0, |ip| priority(ip, order));
        (Reverse(priority), ip.filter(|_| priority > 0).map(number))
    });
}

/// Returns the priority of an address: highest in the first network, 1 in the last, 0 in none.
fn priority(ip: IpAddr, order: &[IpNet]) -> usize {
    order
        .iter()
        .position(|network| network.contains(&ip))
        .map_or(0, |place| order.len() - place)
}

/// Returns an address as 16 bytes, comparable among both families.
fn number(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;
