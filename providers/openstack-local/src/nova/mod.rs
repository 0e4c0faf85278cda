//! Compute (Nova).

mod routes;

pub use routes::routes;

use crate::state::tables;

tables! {
    /// Rows of the compute service.
    Tables {}
}
