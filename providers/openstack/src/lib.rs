//! The OpenStack provider: Nova instances, Neutron routes, and Octavia load balancers.

#![deny(missing_docs)]

pub mod cli;
pub mod client;
pub mod config;
#[cfg(feature = "demo")]
pub mod demo;
pub mod instances;
pub mod lb;
pub mod manager;
pub mod provider;
pub mod provider_id;
pub mod routes;

#[cfg(test)]
mod stage;
