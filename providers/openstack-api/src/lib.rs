//! What clients of OpenStack say and hear: requests and answers of Keystone v3, Nova, Neutron and
//! Octavia as plain types.
//!
//! Provider and local cloud share them; nothing here does I/O. A type serializes to what the
//! service itself sends, and reads what any release in use sends: fields that a release may lack
//! have defaults.

#![deny(missing_docs)]

pub mod keystone;
mod lenient;
pub mod neutron;
pub mod nova;
pub mod octavia;
mod secret;
pub mod version;

pub use secret::Secret;
