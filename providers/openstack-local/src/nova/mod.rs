//! Compute (Nova).

use crate::state::tables;

tables! {
    /// Rows of the compute service.
    Tables {}
}
