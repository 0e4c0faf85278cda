//! Finds Fargate nodes, which are network interfaces without an instance.

use std::{
    collections::{BTreeSet, HashMap},
    net::Ipv4Addr,
    sync::Arc,
};

use ccm_core::provider::{CloudError, ErrorKind, Op};

use super::batching;
use crate::{
    api::{
        Action, AwsError, Filter,
        ec2::{DescribeNetworkInterfaces, NetworkInterface},
    },
    scope::Scope,
};

/// Parses the address in a Fargate node's ID: `fargate-192.168.164.88`, or
/// `fargate-ip-192-168-164-88` with any domain.
///
/// # Errors
/// Returns an error if the ID contains no address.
pub(super) fn address_of(id: &str) -> Result<Ipv4Addr, CloudError> {
    let text = id.strip_prefix("fargate-").unwrap_or(id);
    match address_of_name(text).or_else(|| text.parse().ok()) {
        Some(address) => Ok(address),
        None => Err(CloudError::new(
            ErrorKind::InvalidInput,
            format!("Fargate node ID {id:?} contains no address"),
        )),
    }
}

/// Parses the address in a name that EC2 assigns (`ip-a-b-c-d` with any domain). Returns `None` for
/// other names.
pub(super) fn address_of_name(name: &str) -> Option<Ipv4Addr> {
    let label = name.split('.').next()?.strip_prefix("ip-")?;
    label.replace('-', ".").parse().ok()
}

/// Result of the lookup of one interface by address. `Ok(None)` proves that it does not exist.
pub(super) type InterfaceLookup = Result<Option<Arc<NetworkInterface>>, AwsError>;

/// Finds attached interfaces of the VPC by private address. Sends one request per
/// [`batching::MAX_FILTER_VALUES`] addresses.
pub(super) async fn find(
    op: &Op,
    scope: &Scope,
    addresses: &BTreeSet<Ipv4Addr>,
) -> HashMap<Ipv4Addr, InterfaceLookup> {
    let mut lookups = HashMap::new();
    let addresses: Vec<_> = addresses.iter().copied().collect();
    for chunk in addresses.chunks(batching::MAX_FILTER_VALUES) {
        let filters = vec![
            Filter::new("attachment.status", ["attached"]),
            Filter::new("vpc-id", [scope.vpc.as_str()]),
            Filter::new("private-ip-address", chunk.iter().map(Ipv4Addr::to_string)),
        ];
        let request = DescribeNetworkInterfaces { filters, token: None };
        let found = scope
            .client
            .read_all(op, request, |request, token| request.token = Some(token))
            .await;
        for address in chunk {
            let lookup = match &found {
                Ok(interfaces) => single_match(interfaces, *address),
                Err(error) => Err(error.clone()),
            };
            lookups.insert(*address, lookup);
        }
    }
    lookups
}

/// Returns the interface with an address, or an error if several have it.
fn single_match(interfaces: &[NetworkInterface], address: Ipv4Addr) -> InterfaceLookup {
    let mut matches = interfaces
        .iter()
        .filter(|interface| interface.private_ip.parse() == Ok(address));
    let interface = matches.next();
    if matches.next().is_some() {
        let message = format!("multiple network interfaces found with private address {address}");
        return Err(AwsError::no_response(Action::DescribeNetworkInterfaces, message));
    }
    Ok(interface.cloned().map(Arc::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    // IN15
    #[test]
    fn the_address_is_read_from_the_id_whatever_its_domain() {
        let address = Ipv4Addr::new(192, 168, 164, 88);
        for id in [
            "fargate-192.168.164.88",
            "fargate-ip-192-168-164-88",
            "fargate-ip-192-168-164-88.internal",
            "fargate-ip-192-168-164-88.us-west-2.compute.internal",
        ] {
            assert_eq!(address_of(id).unwrap(), address, "{id}");
        }
        for id in ["fargate-", "fargate-ip-1-2-3", "fargate-ip-1-2-3-256", "fargate-worker"] {
            assert_eq!(address_of(id).unwrap_err().kind(), ErrorKind::InvalidInput, "{id}");
        }
    }

    #[test]
    fn two_interfaces_with_one_address_are_doubt() {
        let row = |id: &str| NetworkInterface {
            id: id.into(),
            private_ip: "10.0.0.9".into(),
            private_dns_name: "".into(),
            zone: "us-west-2a".into(),
            ipv6_addresses: Vec::new(),
            private_ips: Vec::new(),
            security_groups: Vec::new(),
            instance: None,
        };
        let address = Ipv4Addr::new(10, 0, 0, 9);
        assert_eq!(single_match(&[row("eni-1")], address).unwrap().unwrap().id, "eni-1".into());
        assert!(single_match(&[row("eni-1"), row("eni-2")], address).is_err());
        assert!(single_match(&[], address).unwrap().is_none());
    }
}
