//! Which address of a Node the cloud sends to.

use std::net::IpAddr;

use ccm_core::k8s::{AddressType, IpFamily, NodeView};

/// Returns the first address of this kind, and of this family if one is given.
pub(crate) fn first_address(
    node: &NodeView,
    kind: AddressType,
    family: Option<IpFamily>,
) -> Option<IpAddr> {
    node.addresses
        .iter()
        .filter(|address| address.kind == kind)
        .filter_map(|address| address.address.parse().ok())
        .find(|address| is_of_family(address, family))
}

fn is_of_family(address: &IpAddr, family: Option<IpFamily>) -> bool {
    match family {
        None => true,
        Some(IpFamily::V4) => address.is_ipv4(),
        Some(IpFamily::V6) => address.is_ipv6(),
    }
}
