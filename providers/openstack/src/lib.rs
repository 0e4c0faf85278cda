//! The OpenStack provider: Nova instances, Neutron routes, and Octavia load balancers.

#![deny(missing_docs)]

// Lets code that tests inside and outside share refer to the crate by the same name.
#[cfg(test)]
extern crate self as ccm_openstack;

pub mod api;
pub mod cli;
pub mod client;
pub mod config;
#[cfg(feature = "demo")]
pub mod demo;
pub mod instances;
pub mod lb;
pub mod manager;
mod node_address;
pub mod provider;
pub mod provider_id;
pub mod routes;

#[cfg(test)]
mod conformance_tests;
#[cfg(test)]
mod explore_tests;
#[cfg(test)]
mod test_fixture;
