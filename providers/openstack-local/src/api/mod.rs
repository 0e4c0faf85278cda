//! Request and response types of the local cloud: Keystone v3, Nova, Neutron and Octavia as this
//! cloud serves them.
//!
//! These types are the cloud's own. No client may use them: a client that shared them would share
//! what they believe about OpenStack, and could not find out that it is wrong. A type serializes to
//! the form that the service itself sends, with all its fields.

pub mod keystone;
mod lenient;
pub mod neutron;
pub mod nova;
pub mod octavia;
mod secret;
pub mod version;

pub use secret::Secret;
