//! Metrics, health and logs of leader election.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};
use tokio::time::Instant;

use super::lock::LeaseError;
use crate::{error::chain, telemetry::metrics::register};

/// The metrics of leader election, shared by all elections of the process.
#[derive(Clone, Debug)]
pub struct LeaderElectionMetrics {
    master_status: IntGaugeVec,
    slowpath: IntCounterVec,
}

impl LeaderElectionMetrics {
    /// Registers `leader_election_master_status{name}` and `leader_election_slowpath_total{name}`,
    /// with the names and labels of upstream. `name` is the name of the Lease.
    ///
    /// # Errors
    /// Returns an error if a metric of this name is already registered.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let master_status = IntGaugeVec::new(
            Opts::new(
                "leader_election_master_status",
                "Whether this process leads: 1 leader, 0 standby, by lease.",
            ),
            &["name"],
        )?;
        let slowpath = IntCounterVec::new(
            Opts::new(
                "leader_election_slowpath_total",
                "Renewals that had to read the lease first, by lease.",
            ),
            &["name"],
        )?;
        Ok(Self {
            master_status: register(registry, master_status)?,
            slowpath: register(registry, slowpath)?,
        })
    }

    /// Exposes both families for a lease that is not held yet.
    pub(crate) fn init(&self, name: &str) {
        self.set_leading(name, false);
        self.slowpath.with_label_values(&[name]);
    }

    pub(super) fn set_leading(&self, name: &str, leading: bool) {
        self.master_status
            .with_label_values(&[name])
            .set(leading.into());
    }

    pub(super) fn count_slowpath(&self, name: &str) {
        self.slowpath.with_label_values(&[name]).inc();
    }
}

/// The time after the lease duration for which a leader without a renewal still counts as healthy.
/// It is upstream's value.
const HEALTH_TOLERANCE: Duration = Duration::from_secs(20);

/// The time for which a standby without access to the Lease still counts as able to take over. It
/// is longer than the restart of an API server or the replacement of a credential takes.
pub(super) const STANDBY_TOLERANCE: Duration = Duration::from_secs(300);

/// The health of the election for one Lease, which the health checks `leaderElection` and
/// `lease-access` read. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LeaseHealth {
    role: Arc<Mutex<Role>>,
    lease_duration: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
enum Role {
    #[default]
    None,
    /// The process waits for the Lease. Contains the time of its last successful request.
    Standby(Instant),
    /// The process leads. Contains the time when it acquired or last renewed the Lease.
    Leader(Instant),
}

impl LeaseHealth {
    pub(super) fn new(lease_duration: Duration) -> Self {
        Self { role: Arc::default(), lease_duration }
    }

    /// Records that the leader renewed the Lease at this time, or with `None` that this process no
    /// longer takes part in the election.
    pub(super) fn set_last_renewal(&self, renewed_at: Option<Instant>) {
        *self.role.lock() = renewed_at.map_or(Role::None, Role::Leader);
    }

    /// Records that this process waits for the Lease and can access it now.
    fn set_standby(&self) {
        *self.role.lock() = Role::Standby(Instant::now());
    }

    /// Returns the time since the last successful renewal, or `None` while this process does not
    /// lead.
    pub fn last_renewal_age(&self) -> Option<Duration> {
        match *self.role.lock() {
            Role::Leader(renewed) => Some(renewed.elapsed()),
            Role::None | Role::Standby(_) => None,
        }
    }

    /// Returns the time since the last successful request of a standby for the Lease, or `None`
    /// while this process is not a standby.
    pub fn standby_age(&self) -> Option<Duration> {
        match *self.role.lock() {
            Role::Standby(answered) => Some(answered.elapsed()),
            Role::None | Role::Leader(_) => None,
        }
    }

    /// Returns true if this process leads or, as far as it knows, could take over.
    ///
    /// A standby cannot if every attempt to read or acquire the Lease has failed for five minutes,
    /// because of its credentials, its permissions or the connection.
    pub fn can_lead(&self) -> bool {
        self.standby_age().is_none_or(|age| age < STANDBY_TOLERANCE)
    }

    /// Returns true unless this process leads and its last renewal is older than the lease duration
    /// plus 20 s. Such a leader should have ended, so something in it hangs.
    pub fn is_healthy(&self) -> bool {
        self.last_renewal_age()
            .is_none_or(|age| age <= self.lease_duration + HEALTH_TOLERANCE)
    }
}

/// A process that waits for the Lease. Updates its health and logs when that changes.
#[derive(Debug)]
pub(super) struct Standby {
    health: LeaseHealth,
    lease: String,
    is_locked_out: bool,
}

impl Standby {
    /// Records that this process begins to wait for the Lease.
    pub(super) fn begin(health: LeaseHealth, lease: String) -> Self {
        health.set_standby();
        Self { health, lease, is_locked_out: false }
    }

    /// Records the result of an attempt to acquire the Lease.
    pub(super) fn record_attempt<T>(&mut self, attempt: &Result<T, LeaseError>) {
        let lease = &self.lease;
        match attempt {
            // A conflict also proves access to the Lease.
            Ok(_) | Err(LeaseError::Conflict) => {
                self.health.set_standby();
                if self.is_locked_out {
                    self.is_locked_out = false;
                    tracing::info!(lease, "the lease can be read again, this standby is ready");
                }
            }
            Err(error) if !self.is_locked_out && !self.health.can_lead() => {
                self.is_locked_out = true;
                let seconds = STANDBY_TOLERANCE.as_secs();
                tracing::error!(
                    lease,
                    error = chain(error),
                    "no access to the lease for {seconds}s, this standby is not ready"
                );
            }
            Err(_) => {}
        }
    }
}

/// The interval at which a persistent error is logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Logs errors of requests for the Lease: each when its kind changes and then every 30 s, instead
/// of at every attempt. Contains the kind and the time of the last logged error.
#[derive(Debug, Default)]
pub(super) struct FailureLog(Option<(&'static str, Instant)>);

impl FailureLog {
    /// Logs the error, unless one of its kind was logged recently.
    pub(super) fn log(&mut self, lease: &str, error: &LeaseError) {
        let kind = match error {
            // A conflict is normal: two standbys tried at the same time, or somebody set a label on
            // the Lease.
            LeaseError::Conflict => {
                tracing::debug!(lease, "the lease was changed concurrently");
                return;
            }
            LeaseError::Forbidden { verb, .. } => verb,
            LeaseError::Timeout { .. } => "timeout",
            LeaseError::Other { .. } => "other",
        };
        let now = Instant::now();
        if self
            .0
            .is_some_and(|(last, at)| last == kind && now < at + LOG_INTERVAL)
        {
            return;
        }
        self.0 = Some((kind, now));
        match error {
            LeaseError::Forbidden { verb, message } => tracing::error!(
                lease,
                verb,
                resource = "leases.coordination.k8s.io",
                message,
                "missing permission for leader election, retrying"
            ),
            error => {
                let cause = std::error::Error::source(error).map(ToString::to_string);
                tracing::warn!(lease, %error, cause, "leader election request failed, retrying");
            }
        }
    }

    /// Forgets the last logged error after a success.
    pub(super) fn reset(&mut self) {
        self.0 = None;
    }
}
