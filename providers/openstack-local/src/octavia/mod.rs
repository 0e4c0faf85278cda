//! Load balancers (Octavia): the requested resources, their states, and what is reported about
//! them.
//!
//! A change locks the whole load balancer (`PENDING_…`) until it is due ([`finish_due`]), and takes
//! effect only then. The real state of members and listeners comes from the sockets ([`report`]).

mod catalog;
mod check;
pub mod dataplane_config;
pub mod dataplane_sync;
mod error;
mod graph;
mod health;
mod http_routes;
pub mod listeners;
pub mod load_balancers;
pub mod members;
pub mod monitors;
pub mod offers;
pub mod pools;
mod provider_driver;
mod provisioning;
pub mod quotas;
pub mod rows;
pub mod schema;
pub mod settings;
mod transactions;
mod vip;

use crate::state::tables;

pub use self::{
    catalog::{providers, put_availability_zone, put_flavor, versions},
    health::{ListenerReport, MemberReport, Report, forget_reports, report},
    http_routes::routes,
    provisioning::{finish_due, force_error},
};

tables! {
    /// Rows of the load-balancer service.
    Tables {
        /// Load balancers.
        load_balancers: rows::LoadBalancerRow,
        /// Listeners.
        listeners: rows::ListenerRow,
        /// Pools.
        pools: rows::PoolRow,
        /// Members of pools.
        members: rows::MemberRow,
        /// Health monitors.
        monitors: rows::MonitorRow,
        /// Counters of listeners.
        counters: rows::CountersRow,
        /// Flavors.
        flavors: rows::FlavorRow,
        /// Flavor profiles.
        flavor_profiles: rows::FlavorProfileRow,
        /// Availability zones.
        availability_zones: rows::AvailabilityZoneRow,
        /// Availability zone profiles.
        zone_profiles: rows::AvailabilityZoneProfileRow,
        /// Quotas of projects.
        quotas: rows::QuotaRow,
        /// Settings of the service: one row.
        settings: settings::Settings,
    }
}

#[cfg(test)]
mod tests;
