//! The node controllers.
//!
//! Each scenario has a cloud of its own, hence nodes of its own, so that many run side by side in
//! one cluster.

mod deletion;
mod initialization;
mod recovery;
mod replicas;
mod routes;
mod upkeep;

use crate::run::Case;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = deletion::cases();
    cases.extend(recovery::cases());
    cases.extend(initialization::cases());
    cases.extend(replicas::cases());
    cases.extend(upkeep::cases());
    cases.extend(routes::cases());
    cases
}
