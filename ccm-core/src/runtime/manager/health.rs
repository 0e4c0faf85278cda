//! The manager's health checks.

use crate::runtime::{
    health::{Health, Kind, Registration},
    leader_election::LeaseHealth,
};

/// Name of the check of the main lock, as upstream has it.
pub(super) const LEADER_ELECTION: &str = "leaderElection";
/// Name of the check of the migration lock. Upstream asks only whichever lock came last (W18).
pub(super) const LEADER_MIGRATION: &str = "leaderMigration";

/// Adds upstream's check of an election: a leader whose renewals stopped long ago should have ended.
pub(super) fn election(health: &Health, name: &'static str, lease: LeaseHealth) -> Registration {
    health.add(Kind::Live, name, move || match lease.last_renewal_age() {
        Some(age) if !lease.is_healthy() => {
            Err(format!("the lease was renewed {}s ago and is still held", age.as_secs()))
        }
        _ => Ok(()),
    })
}
