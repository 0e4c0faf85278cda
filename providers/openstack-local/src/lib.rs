//! A local cloud that speaks the REST APIs of OpenStack: Keystone, Nova, Neutron and Octavia on
//! loopback.
//!
//! Its state survives restarts, and its load balancers carry traffic.

#![deny(missing_docs)]

pub mod api;
pub mod cli;
pub mod dataplane;
pub mod glance;
pub mod keystone;
pub mod neutron;
pub mod nova;
pub mod octavia;
pub mod server;
pub mod servers;
pub mod state;
pub mod store;
