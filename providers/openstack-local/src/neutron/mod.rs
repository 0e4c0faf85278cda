//! Networks (Neutron).

use crate::state::tables;

tables! {
    /// Rows of the network service.
    Tables {}
}
