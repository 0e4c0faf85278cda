//! Compute (Nova).
//!
//! Servers run nowhere: they have ports, addresses, a power state. What is asked for is done at once, so a server is
//! `ACTIVE` as soon as it is there.

pub mod actions;
pub mod create;
mod discovery;
mod flavor_routes;
pub mod flavors;
pub mod interfaces;
mod list;
pub mod quotas;
mod routes;
mod rows;
pub mod servers;
#[cfg(test)]
mod tests;
mod version;
mod view;
pub mod zones;

pub use self::{
    routes::routes,
    rows::{Attachment, FlavorRow, Lock, QuotaRow, ServerRow, ZoneRow},
    version::Microversion,
};
use crate::state::tables;

tables! {
    /// Rows of the compute service.
    Tables {
        /// Servers.
        servers: ServerRow,
        /// Flavors.
        flavors: FlavorRow,
        /// Zones beside the one that is always there.
        zones: ZoneRow,
        /// Quotas that somebody changed.
        quotas: QuotaRow,
    }
}
