//! Chooses the addresses of a node (KEP-1664).

use std::{collections::HashSet, net::IpAddr};

use crate::k8s::{AddressType, NodeAddress};

/// An error because of which the addresses of a node cannot be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    /// The annotation is neither one IP nor two IPs of different families.
    #[error("annotation alpha.kubernetes.io/provided-node-ip {value:?}: {reason}")]
    BadAnnotation { value: String, reason: &'static str },
    /// The cloud does not report an address that the kubelet is configured to use.
    #[error("failed to get node address from cloud provider that matches ip: {0}")]
    NotInCloud(IpAddr),
}

/// Returns the addresses that a node should have; `None` if the cloud reports none.
///
/// `cloud` has the cloud's addresses in the provider's order, `current` those of the node, and
/// `provided` the value of the kubelet's annotation. If the cloud reports no address of type
/// `Hostname`, the node keeps its own.
pub(crate) fn desired_addresses(
    cloud: &[NodeAddress],
    current: &[NodeAddress],
    provided: Option<&str>,
) -> Result<Option<Vec<NodeAddress>>, AddressError> {
    if cloud.is_empty() {
        // As upstream, fail if the annotation is set, and otherwise keep the node's addresses.
        return match provided {
            Some(value) => Err(AddressError::NotInCloud(parse_provided(value)?[0])),
            None => Ok(None),
        };
    }
    let mut all = cloud.to_vec();
    if !all.iter().any(is_hostname) {
        all.extend(
            current
                .iter()
                .filter(|address| is_hostname(address))
                .cloned(),
        );
    }
    let mut distinct = HashSet::new();
    all.retain(|address| distinct.insert(address.clone()));
    match provided {
        Some(value) => order_by_provided(&all, &parse_provided(value)?).map(Some),
        None => Ok(Some(all)),
    }
}

fn is_hostname(address: &NodeAddress) -> bool {
    address.kind == AddressType::Hostname
}

/// Puts the provided IPs first, in their order. If an address type has a match, its other addresses
/// are dropped.
fn order_by_provided(
    all: &[NodeAddress],
    provided: &[IpAddr],
) -> Result<Vec<NodeAddress>, AddressError> {
    let mut chosen: Vec<NodeAddress> = Vec::with_capacity(all.len());
    let mut matched_kinds = HashSet::new();
    for ip in provided {
        let matching: Vec<_> = all
            .iter()
            .filter(|address| parse_ip(&address.address) == Some(*ip))
            .collect();
        if matching.is_empty() {
            return Err(AddressError::NotInCloud(*ip));
        }
        for address in matching {
            matched_kinds.insert(address.kind);
            chosen.push(address.clone());
        }
    }
    chosen.extend(
        all.iter()
            .filter(|address| !matched_kinds.contains(&address.kind))
            .cloned(),
    );
    Ok(chosen)
}

/// Parses the annotation as strictly as `k8s.io/cloud-provider/node/helpers` does. The value must
/// be one IP, or two IPs of different families that are not unspecified, without white space.
pub(crate) fn parse_provided(value: &str) -> Result<Vec<IpAddr>, AddressError> {
    match parse_ips(value) {
        Ok(ips) => Ok(ips),
        Err(reason) => Err(AddressError::BadAnnotation { value: value.to_owned(), reason }),
    }
}

fn parse_ips(value: &str) -> Result<Vec<IpAddr>, &'static str> {
    let mut ips = Vec::new();
    for part in value.split(',') {
        ips.push(parse_ip(part).ok_or("not an IP address")?);
    }
    match ips[..] {
        [a, b] if a.is_ipv4() == b.is_ipv4() => Err("two addresses of one family"),
        [a, b] if a.is_unspecified() || b.is_unspecified() => {
            Err("a pair may not hold an unspecified address")
        }
        [_] | [_, _] => Ok(ips),
        _ => Err("more than two addresses"),
    }
}

/// Parses an IP as Kubernetes' `ParseIPSloppy` does. Octets are decimal even with leading zeros,
/// and an IPv4 address written as IPv6 equals its IPv4 form.
fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical());
    }
    let octets: Vec<u8> = text.split('.').map(parse_octet).collect::<Option<_>>()?;
    let octets: [u8; 4] = octets.try_into().ok()?;
    Some(IpAddr::from(octets))
}

fn parse_octet(text: &str) -> Option<u8> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = text.trim_start_matches('0');
    if digits.is_empty() {
        Some(0)
    } else {
        digits.parse().ok()
    }
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;
