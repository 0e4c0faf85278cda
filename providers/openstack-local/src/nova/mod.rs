//! Compute (Nova).
//!
//! Servers run nowhere: they have ports, addresses, and a power state. Requests are done at once,
//! so a server is `ACTIVE` as soon as it exists.

pub mod actions;
pub mod create;
mod discovery;
mod flavor_routes;
pub mod flavors;
mod http_routes;
pub mod interfaces;
mod list;
pub mod quotas;
mod rows;
pub mod servers;
#[cfg(test)]
mod tests;
mod version;
mod view;
pub mod zones;

pub use self::{
    http_routes::routes,
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
        /// Zones besides the one that always exists.
        zones: ZoneRow,
        /// Quotas that were changed.
        quotas: QuotaRow,
    }
}
