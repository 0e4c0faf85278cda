//! Requests to OpenStack's services as plain types: what is sent to Keystone v3, Neutron and Octavia,
//! and the words that they use.
//!
//! Nothing here does I/O, and nothing here describes an answer. What a client reads depends on what
//! it needs: it should have types of its own, with few fields. Only [`neutron::Route`] and
//! [`neutron::AddressPair`] are read as well, because they are sent back as they were.

#![deny(missing_docs)]

pub mod keystone;
pub mod neutron;
pub mod octavia;
mod secret;
#[cfg(test)]
mod tests;
mod words;

pub use secret::Secret;
