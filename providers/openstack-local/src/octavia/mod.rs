//! Load balancers (Octavia).

mod routes;

pub use routes::routes;

use crate::state::tables;

tables! {
    /// Rows of the load-balancer service.
    Tables {}
}
