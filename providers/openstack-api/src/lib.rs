//! Request and response types of Keystone v3, Nova, Neutron and Octavia.
//!
//! The provider and the local cloud share these types, which do no I/O. A type serializes to the
//! form that the service itself sends, and accepts what any supported release sends. Therefore
//! fields that a release may lack have defaults.

#![deny(missing_docs)]

pub mod keystone;
mod lenient;
pub mod neutron;
pub mod nova;
pub mod octavia;
mod secret;
pub mod version;

pub use secret::Secret;
