//! Metrics, health and logs of leader election.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};
use tokio::time::Instant;

use super::lock::LeaseError;
use crate::{error::chain, telemetry::metrics::register};

/// Metric families of leader election, shared by all locks of the process.
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
    /// When a metric of this name is already registered.
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
        self.leading(name, false);
        self.slowpath.with_label_values(&[name]);
    }

    pub(super) fn leading(&self, name: &str, leading: bool) {
        self.master_status
            .with_label_values(&[name])
            .set(leading.into());
    }

    pub(super) fn slowpath(&self, name: &str) {
        self.slowpath.with_label_values(&[name]).inc();
    }
}

/// How long after its lease duration a leader without a renewal is still healthy: 20 s, as
/// upstream.
const HEALTH_TOLERANCE: Duration = Duration::from_secs(20);

/// How long a standby without access to the Lease counts as able to take over. This is longer than
/// the restart of an API server or the replacement of a credential takes.
pub(super) const STANDBY_TOLERANCE: Duration = Duration::from_secs(300);

/// Health of the election for one Lease, for the health checks `leaderElection` and `lease-access`.
/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct LeaseHealth {
    role: Arc<Mutex<Role>>,
    lease_duration: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
enum Role {
    #[default]
    None,
    /// Waits for the Lease. Its last request for the Lease that succeeded was at this time.
    Standby(Instant),
    /// Leads. It acquired or last renewed the Lease at this time.
    Leader(Instant),
}

impl LeaseHealth {
    pub(super) fn new(lease_duration: Duration) -> Self {
        Self { role: Arc::default(), lease_duration }
    }

    pub(super) fn set(&self, renewed: Option<Instant>) {
        *self.role.lock() = renewed.map_or(Role::None, Role::Leader);
    }

    fn stands_by(&self) {
        *self.role.lock() = Role::Standby(Instant::now());
    }

    /// Returns the time since the last successful renewal. `None` while this process does not lead.
    pub fn last_renewal_age(&self) -> Option<Duration> {
        match *self.role.lock() {
            Role::Leader(renewed) => Some(renewed.elapsed()),
            Role::None | Role::Standby(_) => None,
        }
    }

    /// Returns the time since a request of a standby for the Lease last succeeded. `None` while
    /// this process is no standby.
    pub fn standby_age(&self) -> Option<Duration> {
        match *self.role.lock() {
            Role::Standby(answered) => Some(answered.elapsed()),
            Role::None | Role::Leader(_) => None,
        }
    }

    /// Returns true if, as far as it knows, this process could lead. False for a standby if every
    /// attempt to read or acquire the Lease failed for five minutes, because of its credentials,
    /// its permissions or the connection. Always true for a leader.
    pub fn can_lead(&self) -> bool {
        self.standby_age().is_none_or(|age| age < STANDBY_TOLERANCE)
    }

    /// Returns true if the election is healthy. A standby always is. A leader is, unless its last
    /// renewal is older than the lease duration plus 20 s: such a leader should have ended, so
    /// something hangs.
    pub fn is_healthy(&self) -> bool {
        self.last_renewal_age()
            .is_none_or(|age| age <= self.lease_duration + HEALTH_TOLERANCE)
    }
}

/// Updates the health of a standby, and logs when it changes.
#[derive(Debug)]
pub(super) struct Standby {
    health: LeaseHealth,
    lease: String,
    is_locked_out: bool,
}

impl Standby {
    /// Records that this process begins to wait for the Lease.
    pub(super) fn begin(health: LeaseHealth, lease: String) -> Self {
        health.stands_by();
        Self { health, lease, is_locked_out: false }
    }

    /// Records the result of an attempt.
    pub(super) fn attempted<T>(&mut self, attempt: &Result<T, LeaseError>) {
        let lease = &self.lease;
        match attempt {
            // A conflict also proves access to the Lease.
            Ok(_) | Err(LeaseError::Conflict) => {
                self.health.stands_by();
                if std::mem::take(&mut self.is_locked_out) {
                    tracing::info!(lease, "the lease can be read again, this standby is ready");
                }
            }
            Err(failure) if !self.is_locked_out && !self.health.can_lead() => {
                self.is_locked_out = true;
                let seconds = STANDBY_TOLERANCE.as_secs();
                tracing::error!(
                    lease,
                    error = chain(failure),
                    "no access to the lease for {seconds}s, this standby is not ready"
                );
            }
            Err(_) => {}
        }
    }
}

/// How often an error that lasts is logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// Logs a failure when its kind changes and then every 30 s, not at every attempt.
#[derive(Debug, Default)]
pub(super) struct FailureLog(Option<(&'static str, Instant)>);

impl FailureLog {
    pub(super) fn failed(&mut self, lease: &str, failure: &LeaseError) {
        let kind = match failure {
            // This is normal: two standbys tried at the same time, or somebody set a label on the
            // Lease.
            LeaseError::Conflict => return tracing::debug!(lease, "lease changed meanwhile"),
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
        match failure {
            LeaseError::Forbidden { verb, message } => tracing::error!(
                lease,
                verb,
                resource = "leases.coordination.k8s.io",
                message,
                "missing right for leader election, trying on"
            ),
            failure => {
                let cause = std::error::Error::source(failure).map(ToString::to_string);
                tracing::warn!(lease, error = %failure, cause, "leader election request failed, trying on");
            }
        }
    }

    pub(super) fn reset(&mut self) {
        self.0 = None;
    }
}
