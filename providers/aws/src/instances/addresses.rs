//! Addresses of a Node: pure.

use std::net::{Ipv4Addr, Ipv6Addr};

use ccm_core::{
    k8s::{AddressType, IpFamily, NodeAddress},
    provider::{CloudError, ErrorKind},
};

use super::instance::Instance;
use crate::api::ec2::NetworkInterface;

/// Returns the addresses of an instance: family by family in the order of the configuration. IPv4: every private address of
/// every interface in use, by device index, then public address and DNS names; IPv6: the first address of each interface in
/// use. DNS names come with IPv4 alone, as upstream has it.
///
/// # Errors
/// An address of the answer is none.
pub fn of_instance(instance: &Instance, families: &[IpFamily]) -> Result<Vec<NodeAddress>, CloudError> {
    let mut list = List { owner: &instance.id, addresses: Vec::new() };
    for family in families {
        match family {
            IpFamily::V4 => list.ipv4(instance)?,
            IpFamily::V6 => list.ipv6(instance)?,
        }
    }
    Ok(list.addresses)
}

/// Returns the addresses of a Fargate node: one of each family, and its DNS name.
///
/// # Errors
/// An address of the answer is none.
pub fn of_interface(interface: &NetworkInterface, families: &[IpFamily]) -> Result<Vec<NodeAddress>, CloudError> {
    let mut list = List { owner: &interface.id, addresses: Vec::new() };
    for family in families {
        match family {
            IpFamily::V4 => list.private_ipv4(&interface.private_ip)?,
            IpFamily::V6 => list.private_ipv6(interface.ipv6_addresses.first().map_or("", |ip| ip))?,
        }
    }
    list.add(AddressType::InternalDns, &interface.private_dns_name);
    Ok(list.addresses)
}

struct List<'a> {
    owner: &'a str,
    addresses: Vec<NodeAddress>,
}

impl List<'_> {
    fn ipv4(&mut self, instance: &Instance) -> Result<(), CloudError> {
        for ip in instance.interfaces.iter().filter(|i| i.in_use).flat_map(|i| &i.private_ips) {
            self.private_ipv4(ip)?;
        }
        if !instance.public_ip.is_empty() {
            self.check::<Ipv4Addr>("public", &instance.public_ip)?;
            self.add(AddressType::ExternalIp, &instance.public_ip);
        }
        self.add(AddressType::InternalDns, &instance.private_dns_name);
        self.add(AddressType::Hostname, &instance.private_dns_name);
        self.add(AddressType::ExternalDns, &instance.public_dns_name);
        Ok(())
    }

    fn ipv6(&mut self, instance: &Instance) -> Result<(), CloudError> {
        for interface in instance.interfaces.iter().filter(|i| i.in_use) {
            self.private_ipv6(interface.ipv6_addresses.first().map_or("", |ip| ip))?;
        }
        Ok(())
    }

    fn private_ipv4(&mut self, ip: &str) -> Result<(), CloudError> {
        if !ip.is_empty() {
            self.check::<Ipv4Addr>("private", ip)?;
        }
        self.add(AddressType::InternalIp, ip);
        Ok(())
    }

    fn private_ipv6(&mut self, ip: &str) -> Result<(), CloudError> {
        if !ip.is_empty() {
            self.check::<Ipv6Addr>("private", ip)?;
        }
        self.add(AddressType::InternalIp, ip);
        Ok(())
    }

    fn check<T: std::str::FromStr>(&self, which: &str, ip: &str) -> Result<(), CloudError> {
        match ip.parse::<T>() {
            Ok(_) => Ok(()),
            Err(_) => {
                let message = format!("EC2 instance had invalid {which} address: {} ({ip:?})", self.owner);
                Err(CloudError::new(ErrorKind::Transient, message))
            }
        }
    }

    fn add(&mut self, kind: AddressType, address: &str) {
        if !address.is_empty() {
            self.addresses.push(NodeAddress::new(kind, address));
        }
    }
}
