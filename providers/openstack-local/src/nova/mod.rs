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
mod keypairs;
mod list;
pub mod quotas;
mod rows;
mod server_groups;
pub mod servers;
#[cfg(test)]
mod tests;
mod version;
mod view;
pub mod zones;

pub use self::{
    http_routes::routes,
    rows::{Attachment, FlavorRow, KeyPairRow, Lock, QuotaRow, ServerGroupRow, ServerRow, ZoneRow},
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
        /// Key pairs.
        key_pairs: KeyPairRow,
        /// Server groups.
        server_groups: ServerGroupRow,
    }
}
