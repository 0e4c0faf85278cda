//! Networks (Neutron).
//!
//! Rows are what the API shows, less what follows from other rows (the subnets of a network, the rules of a group, what a
//! floating IP tells about its port), which is filled in when a row is shown.

mod common;
mod crud;
pub mod extensions;
pub mod extra_routes;
pub mod floating_ips;
pub mod gateways;
pub mod ipam;
pub mod networks;
pub mod port_validation;
pub mod ports;
pub mod quotas;
pub mod resource;
pub mod router_interfaces;
pub mod routers;
mod routes;
pub mod rows;
pub mod security_group_rules;
pub mod security_groups;
pub mod subnet_plan;
pub mod subnets;
#[cfg(test)]
mod tests;
pub mod trunks;

use openstack_api::neutron as api;

pub use self::{
    resource::Resource,
    routes::routes,
    rows::{Limits, QuotaRow},
};
use crate::state::tables;

/// What a device is that owns an interface of a router.
pub const ROUTER_INTERFACE: &str = "network:router_interface";
/// What a device is that owns a router's port outside.
pub const ROUTER_GATEWAY: &str = "network:router_gateway";
/// What a device is that owns the address of a floating IP.
pub const FLOATING_IP: &str = "network:floatingip";

tables! {
    /// Rows of the network service.
    Tables {
        /// Networks.
        networks: api::Network,
        /// Subnets.
        subnets: api::Subnet,
        /// Ports, those of routers and floating IPs among them.
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
        /// Quotas that somebody changed.
        quotas: QuotaRow,
        /// Limits that an operator set: one row.
        limits: Limits,
    }
}
