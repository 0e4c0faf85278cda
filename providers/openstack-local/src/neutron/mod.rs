//! Networks (Neutron).

mod routes;

pub use routes::routes;

use crate::state::tables;

tables! {
    /// Rows of the network service.
    Tables {}
}
