//! The manager's health checks.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;

use crate::{
    runtime::{
        cache::Cache,
        encoding::CachedObject,
        health::{CheckKind, CheckRegistration, Health},
        leader_election::LeaseHealth,
    },
    telemetry::controller_health::ControllerHealth,
};

/// Adds upstream's health check of leader election. It fails if a leader has not renewed its lease
/// for so long that it should have ended.
pub(super) fn leader_election(
    health: &Health,
    name: &'static str,
    lease: LeaseHealth,
) -> CheckRegistration {
    health.add(CheckKind::Live, name, move || match lease.last_renewal_age() {
        Some(age) if !lease.is_healthy() => {
            Err(format!("last renewed the lease {}s ago but still leads", age.as_secs()))
        }
        _ => Ok(()),
    })
}

/// Adds the readiness check of a standby. It fails if no request for the lease has succeeded for so
/// long that the standby probably could not take over.
pub(super) fn lease_access(health: &Health, lease: LeaseHealth) -> CheckRegistration {
    health.add(CheckKind::Ready, "lease-access", move || match lease.standby_age() {
        Some(age) if !lease.can_lead() => Err(format!(
            "no request for the lease has succeeded for {}s; the log contains the error",
            age.as_secs()
        )),
        _ => Ok(()),
    })
}

/// The health checks of a leader's caches and controllers. Clones share their state.
#[derive(Clone, Debug)]
pub(super) struct LeaderHealthChecks(Arc<LeaderChecksInner>);

#[derive(Debug)]
struct LeaderChecksInner {
    health: Health,
    progress: ControllerHealth,
    caches_syncing: Arc<AtomicBool>,
    registrations: Mutex<Vec<CheckRegistration>>,
}

impl LeaderHealthChecks {
    /// Adds the health check of the caches. It passes on a standby, which has no caches and is
    /// ready to take over.
    pub(super) fn new(health: &Health, progress: ControllerHealth) -> Self {
        let caches_syncing = Arc::new(AtomicBool::new(false));
        let caches = health.add(CheckKind::Ready, "caches", {
            let caches_syncing = caches_syncing.clone();
            move || {
                if caches_syncing.load(Ordering::Relaxed) {
                    Err("the caches of this process are not full yet".to_owned())
                } else {
                    Ok(())
                }
            }
        });
        let registrations = Mutex::new(vec![caches]);
        Self(Arc::new(LeaderChecksInner {
            health: health.clone(),
            progress,
            caches_syncing,
            registrations,
        }))
    }

    /// Records whether the caches are being filled.
    pub(super) fn set_caches_syncing(&self, syncing: bool) {
        self.0.caches_syncing.store(syncing, Ordering::Relaxed);
    }

    /// Adds the health check of one cache. It fails until the cache is synced, and names the
    /// required permission. As a [`CheckKind::Progress`] it does not make the process unready.
    pub(super) fn add_cache<T: CachedObject>(&self, task: &'static str, cache: &Cache<T>) {
        let cache = cache.clone();
        let check = self.0.health.add(CheckKind::Progress, task, move || {
            if cache.is_synced() {
                Ok(())
            } else {
                Err(format!(
                    "{0} are not listed yet, which needs permission to list and watch {0}",
                    T::RESOURCE
                ))
            }
        });
        self.0.registrations.lock().push(check);
    }

    /// Adds the health check of a controller that was started, under its canonical name.
    pub(super) fn add_controller(&self, controller: &'static str) {
        let progress = self.0.progress.clone();
        let check = self
            .0
            .health
            .add(CheckKind::Progress, controller, move || progress.check(controller));
        self.0.registrations.lock().push(check);
    }
}
