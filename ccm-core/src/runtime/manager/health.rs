//! The manager's health checks.

use crate::runtime::{
    health::{Health, Kind, Registration},
    leader_election::LeaseHealth,
};

/// Adds upstream's check of the election: a leader whose renewals stopped long ago should have ended.
pub(super) fn leader_election(health: &Health, name: &'static str, lease: LeaseHealth) -> Registration {
    health.add(Kind::Live, name, move || match lease.last_renewal_age() {
        Some(age) if !lease.is_healthy() => {
            Err(format!("the lease was renewed {}s ago and is still held", age.as_secs()))
        }
        _ => Ok(()),
    })
}
