//! Load balancers (Octavia).

use crate::state::tables;

tables! {
    /// Rows of the load-balancer service.
    Tables {}
}
