//! Networks (Neutron).
//!
//! Rows contain what the API shows, except what follows from other rows (the subnets of a network,
//! the rules of a group, the port details of a floating IP), which is added when a row is shown.

mod common;
mod crud;
pub mod extensions;
pub mod extra_routes;
pub mod floating_ips;
pub mod gateways;
mod http_routes;
pub mod ipam;
pub mod networks;
pub mod port_validation;
pub mod ports;
pub mod quotas;
pub mod resource;
pub mod router_interfaces;
pub mod routers;
pub mod rows;
pub mod security_group_rules;
pub mod security_groups;
pub mod subnet_plan;
pub mod subnets;
#[cfg(test)]
mod tests;
pub mod trunks;

use crate::api::neutron as api;

pub use self::{
    http_routes::routes,
    resource::Resource,
    rows::{Limits, QuotaRow},
};
use crate::state::tables;

/// `device_owner` of the interfaces of routers.
pub const ROUTER_INTERFACE: &str = "network:router_interface";
/// `device_owner` of the external ports of routers.
pub const ROUTER_GATEWAY: &str = "network:router_gateway";
/// `device_owner` of the ports with the addresses of floating IPs.
pub const FLOATING_IP: &str = "network:floatingip";

tables! {
    /// Rows of the network service.
    Tables {
        /// Networks.
        networks: api::Network,
        /// Subnets.
        subnets: api::Subnet,
        /// Ports, including those of routers and floating IPs.
        ports: api::Port,
        /// Routers.
        routers: api::Router,
        /// Floating IPs.
        floating_ips: api::FloatingIp,
        /// Security groups, each without its rules.
        security_groups: api::SecurityGroup,
        /// Rules of security groups.
        security_group_rules: api::SecurityGroupRule,
        /// Trunks.
        trunks: api::Trunk,
        /// Quotas that were changed.
        quotas: QuotaRow,
        /// Limits that an operator set: one row.
        limits: Limits,
    }
}
