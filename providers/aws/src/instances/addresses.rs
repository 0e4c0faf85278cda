//! Determines the addresses of a Node. Pure functions.

use std::net::{Ipv4Addr, Ipv6Addr};

use ccm_core::{
    k8s::{AddressType, IpFamily, NodeAddress},
    provider::{CloudError, ErrorKind},
};

use super::instance::Instance;
use crate::api::ec2::NetworkInterface;

/// Returns the addresses of an instance, family by family in the configured order.
///
/// For IPv4, these are the private addresses of all interfaces in use, by device index, then the
/// public address and the DNS names. For IPv6, they are the first address of each interface in use.
/// As in upstream, DNS names are included only with IPv4.
///
/// # Errors
/// Returns an error if AWS returned an invalid address.
pub fn of_instance(
    instance: &Instance,
    families: &[IpFamily],
) -> Result<Vec<NodeAddress>, CloudError> {
    let mut list = AddressList { owner: &instance.id, addresses: Vec::new() };
    for family in families {
        match family {
            IpFamily::V4 => list.add_ipv4(instance)?,
            IpFamily::V6 => list.add_ipv6(instance)?,
        }
    }
    Ok(list.addresses)
}

/// Returns the addresses of a Fargate node, one of each configured family, and its DNS name.
///
/// # Errors
/// Returns an error if AWS returned an invalid address.
pub fn of_interface(
    interface: &NetworkInterface,
    families: &[IpFamily],
) -> Result<Vec<NodeAddress>, CloudError> {
    let mut list = AddressList { owner: &interface.id, addresses: Vec::new() };
    for family in families {
        match family {
            IpFamily::V4 => list.add_private_ipv4(&interface.private_ip)?,
            IpFamily::V6 => {
                list.add_private_ipv6(interface.ipv6_addresses.first().map_or("", |ip| ip))?;
            }
        }
    }
    list.add(AddressType::InternalDns, &interface.private_dns_name);
    Ok(list.addresses)
}

/// The addresses found so far.
struct AddressList<'a> {
    /// ID of the instance or interface, for errors.
    owner: &'a str,
    addresses: Vec<NodeAddress>,
}

impl AddressList<'_> {
    fn add_ipv4(&mut self, instance: &Instance) -> Result<(), CloudError> {
        for interface in instance.interfaces.iter().filter(|i| i.in_use) {
            for ip in &interface.private_ips {
                self.add_private_ipv4(ip)?;
            }
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

    fn add_ipv6(&mut self, instance: &Instance) -> Result<(), CloudError> {
        for interface in instance.interfaces.iter().filter(|i| i.in_use) {
            self.add_private_ipv6(interface.ipv6_addresses.first().map_or("", |ip| ip))?;
        }
        Ok(())
    }

    fn add_private_ipv4(&mut self, ip: &str) -> Result<(), CloudError> {
        if !ip.is_empty() {
            self.check::<Ipv4Addr>("private", ip)?;
        }
        self.add(AddressType::InternalIp, ip);
        Ok(())
    }

    fn add_private_ipv6(&mut self, ip: &str) -> Result<(), CloudError> {
        if !ip.is_empty() {
            self.check::<Ipv6Addr>("private", ip)?;
        }
        self.add(AddressType::InternalIp, ip);
        Ok(())
    }

    fn check<T: std::str::FromStr>(&self, kind: &str, ip: &str) -> Result<(), CloudError> {
        if ip.parse::<T>().is_ok() {
            return Ok(());
        }
        let message = format!("EC2 instance had invalid {kind} address: {} ({ip:?})", self.owner);
        Err(CloudError::new(ErrorKind::Transient, message))
    }

    /// Adds an address unless it is empty.
    fn add(&mut self, kind: AddressType, address: &str) {
        if !address.is_empty() {
            self.addresses.push(NodeAddress::new(kind, address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::ec2::{self, InstanceInterface},
        ownership_tags::Cluster,
    };

    const V4: &[IpFamily] = &[IpFamily::V4];
    const V6: &[IpFamily] = &[IpFamily::V6];

    fn interface(device_index: Option<i32>, private: &[&str], ipv6: &[&str]) -> InstanceInterface {
        InstanceInterface {
            id: "eni-1".into(),
            device_index,
            in_use: true,
            private_ips: private.iter().map(|ip| (*ip).into()).collect(),
            ipv6_addresses: ipv6.iter().map(|ip| (*ip).into()).collect(),
            prefixes: Vec::new(),
            source_dest_check: None,
            security_groups: Vec::new(),
        }
    }

    fn instance(public_ip: &str, dns: [&str; 2], interfaces: Vec<InstanceInterface>) -> Instance {
        let row = ec2::Instance {
            id: "i-1".into(),
            state: None,
            instance_type: Box::default(),
            zone: Box::default(),
            vpc: None,
            subnet: None,
            private_dns_name: dns[0].into(),
            public_dns_name: dns[1].into(),
            private_ip: Box::default(),
            public_ip: public_ip.into(),
            interfaces,
            security_groups: Vec::new(),
            source_dest_check: None,
            tags: crate::api::Tags::new(),
        };
        Instance::new(row, &Cluster::new("c", false), &ccm_core::k8s::Interner::default())
    }

    fn shown(addresses: Result<Vec<NodeAddress>, CloudError>) -> Vec<String> {
        addresses
            .unwrap()
            .iter()
            .map(|address| format!("{}={}", address.kind.as_str(), address.address))
            .collect()
    }

    // IN11
    #[test]
    fn addresses_are_those_that_the_instance_has() {
        let dns = ["ip-172-20-0-100.ec2.internal", "ec2-1-2-3-4.compute.amazonaws.com"];
        let full = instance(
            "1.2.3.4",
            dns,
            vec![interface(Some(0), &["172.20.0.100"], &["2001:db8::1", "2001:db8::2"])],
        );
        let expected = [
            "InternalIP=172.20.0.100",
            "ExternalIP=1.2.3.4",
            "InternalDNS=ip-172-20-0-100.ec2.internal",
            "Hostname=ip-172-20-0-100.ec2.internal",
            "ExternalDNS=ec2-1-2-3-4.compute.amazonaws.com",
        ];
        assert_eq!(shown(of_instance(&full, V4)), expected);
        assert_eq!(shown(of_instance(&full, V6)), ["InternalIP=2001:db8::1"]);
        let both = shown(of_instance(&full, &[IpFamily::V6, IpFamily::V4]));
        assert_eq!(both.len(), 6);
        assert_eq!(both[0], "InternalIP=2001:db8::1");
        assert_eq!(
            of_instance(&instance("", [dns[0], ""], vec![]), V4)
                .unwrap()
                .len(),
            2
        );
        assert_eq!(
            of_instance(&instance("1.2.3.4", [dns[0], ""], vec![]), V4)
                .unwrap()
                .len(),
            3
        );
        assert!(
            of_instance(&instance("", ["", ""], vec![]), V4)
                .unwrap()
                .is_empty()
        );
    }

    // IN13
    #[test]
    fn interfaces_are_ordered_by_device_and_those_not_in_use_left_out() {
        let unused = InstanceInterface {
            in_use: false,
            ..interface(Some(2), &["172.20.2.1"], &["2001:db8::9"])
        };
        let interfaces = vec![
            interface(None, &["172.20.9.1"], &[]),
            unused,
            interface(Some(1), &["172.20.1.1", "172.20.1.2"], &[]),
            interface(Some(0), &["172.20.0.100", "172.20.0.101"], &[]),
        ];
        let expected = [
            "InternalIP=172.20.0.100",
            "InternalIP=172.20.0.101",
            "InternalIP=172.20.1.1",
            "InternalIP=172.20.1.2",
            "InternalIP=172.20.9.1",
            "ExternalIP=1.2.3.4",
            "InternalDNS=ip-172-20-0-100.ec2.internal",
            "Hostname=ip-172-20-0-100.ec2.internal",
        ];
        let instance = instance("1.2.3.4", ["ip-172-20-0-100.ec2.internal", ""], interfaces);
        assert_eq!(shown(of_instance(&instance, V4)), expected);
    }

    #[test]
    fn what_is_no_address_is_an_error_that_names_the_instance() {
        let bad = [
            (instance("", ["", ""], vec![interface(Some(0), &["10.0.0.256"], &[])]), V4),
            (instance("", ["", ""], vec![interface(Some(0), &["2001:db8::1"], &[])]), V4),
            (instance("", ["", ""], vec![interface(Some(0), &[], &["10.0.0.1"])]), V6),
            (instance("public", ["", ""], vec![]), V4),
        ];
        for (instance, families) in bad {
            let error = of_instance(&instance, families).unwrap_err();
            assert!(error.to_string().starts_with("EC2 instance had invalid p"), "{error}");
            assert!(error.to_string().contains("i-1"), "{error}");
        }
    }

    // IN15
    #[test]
    fn a_fargate_node_has_one_address_of_each_family_and_its_name() {
        let interface = |dns: &str| NetworkInterface {
            id: "eni-1".into(),
            zone: "us-west-2a".into(),
            private_dns_name: dns.into(),
            private_ip: "192.168.164.88".into(),
            ipv6_addresses: vec!["2001:db8::1".into(), "2001:db8::2".into()],
            private_ips: Vec::new(),
            security_groups: Vec::new(),
            instance: None,
        };
        let named = interface("ip-192-168-164-88.us-west-2.compute.internal");
        let dns = "InternalDNS=ip-192-168-164-88.us-west-2.compute.internal";
        assert_eq!(shown(of_interface(&named, V4)), ["InternalIP=192.168.164.88", dns]);
        assert_eq!(shown(of_interface(&named, V6)), ["InternalIP=2001:db8::1", dns]);
        assert_eq!(shown(of_interface(&interface(""), V4)), ["InternalIP=192.168.164.88"]);
    }
}
