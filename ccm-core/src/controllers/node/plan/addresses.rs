//! Which addresses a node should have (KEP-1664).

use std::{collections::HashSet, net::IpAddr};

use crate::k8s::{AddressType, NodeAddress};

/// Why the addresses of a node cannot be decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    /// The annotation is neither one IP nor two IPs of different families.
    #[error("annotation alpha.kubernetes.io/provided-node-ip {value:?}: {why}")]
    BadAnnotation { value: String, why: &'static str },
    /// The cloud does not report an address that the kubelet is configured to use.
    #[error("failed to get node address from cloud provider that matches ip: {0}")]
    NotInCloud(IpAddr),
}

/// Returns the addresses that the node should have, or `None` if the cloud reports none.
///
/// `cloud` is in the provider's order; `current` are the node's addresses; `provided` is the
/// kubelet's annotation. The node's addresses of type `Hostname` are kept if the cloud reports none
/// of that type.
pub(crate) fn desired_addresses(
    cloud: &[NodeAddress],
    current: &[NodeAddress],
    provided: Option<&str>,
) -> Result<Option<Vec<NodeAddress>>, AddressError> {
    if cloud.is_empty() {
        // Upstream fails the initialisation here if the annotation is set, and otherwise keeps the
        // node's addresses.
        return match provided {
            Some(value) => Err(AddressError::NotInCloud(parse_provided(value)?[0])),
            None => Ok(None),
        };
    }
    let mut all = cloud.to_vec();
    if !all.iter().any(|a| a.kind == AddressType::Hostname) {
        all.extend(
            current
                .iter()
                .filter(|a| a.kind == AddressType::Hostname)
                .cloned(),
        );
    }
    let mut seen = HashSet::new();
    all.retain(|address| seen.insert(address.clone()));
    match provided {
        Some(value) => order_by_provided(&all, &parse_provided(value)?).map(Some),
        None => Ok(Some(all)),
    }
}

/// Puts the provided IPs first, in their order. Of an address type that has a match, only the
/// matches are kept.
fn order_by_provided(
    all: &[NodeAddress],
    provided: &[IpAddr],
) -> Result<Vec<NodeAddress>, AddressError> {
    let mut chosen: Vec<NodeAddress> = Vec::with_capacity(all.len());
    let mut matched_kinds = HashSet::new();
    for ip in provided {
        let matching: Vec<_> = all
            .iter()
            .filter(|a| parse_ip(&a.address) == Some(*ip))
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
            .filter(|a| !matched_kinds.contains(&a.kind))
            .cloned(),
    );
    Ok(chosen)
}

/// Parses the annotation strictly, as the CCM side of `k8s.io/cloud-provider/node/helpers` does: no
/// white space, one IP or two IPs of different families, and no unspecified address in a pair.
pub(crate) fn parse_provided(value: &str) -> Result<Vec<IpAddr>, AddressError> {
    let bad = |why| AddressError::BadAnnotation { value: value.to_owned(), why };
    let ips: Vec<IpAddr> = value
        .split(',')
        .map(|part| parse_ip(part).ok_or_else(|| bad("not an IP address")))
        .collect::<Result<_, _>>()?;
    match ips[..] {
        [a, b] if a.is_ipv4() == b.is_ipv4() => Err(bad("two addresses of one family")),
        [a, b] if a.is_unspecified() || b.is_unspecified() => {
            Err(bad("a pair may not hold an unspecified address"))
        }
        [_] | [_, _] => Ok(ips),
        _ => Err(bad("more than two addresses")),
    }
}

/// Parses an IP as Kubernetes' sloppy parser does: octets may have leading zeros (they stay
/// decimal), and an IPv4 address written as IPv6 equals its IPv4 form.
fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical());
    }
    let octets: Vec<u8> = text
        .split('.')
        .map(|octet| {
            let digits = !octet.is_empty() && octet.bytes().all(|b| b.is_ascii_digit());
            // Leading zeros are accepted; the rest must be an octet.
            digits.then(|| octet.trim_start_matches('0')).and_then(|o| {
                if o.is_empty() {
                    Some(0)
                } else {
                    o.parse().ok()
                }
            })
        })
        .collect::<Option<_>>()?;
    <[u8; 4]>::try_from(octets).ok().map(IpAddr::from)
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;
