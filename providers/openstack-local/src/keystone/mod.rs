//! Identity (Keystone v3).

use crate::state::tables;

tables! {
    /// Rows of the identity service.
    Tables {}
}
