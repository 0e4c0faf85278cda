//! Leader election through a Lease, interoperable with client-go's `tools/leaderelection`.
//!
//! There is one [`LeaderElector`] per Lease; a process may have several. [`LeaderElector::gate`] is
//! closed until the Lease is held, and closes by itself when leadership can no longer be proved. It
//! can therefore be given to clients that are built before the election. The rules are in `plan`,
//! the requests in `lock`, and this file contains the loop that connects them.
//!
//! Required permissions: `get` and `update` on the named Lease, and `create` on leases in its
//! namespace. `watch` is not needed.
//!
//! The gate relies on the monotonic clock, which may stand still while the whole machine is
//! suspended. A process that wakes up may therefore find its gate open although its lease has
//! expired. Until its next renewal only the API server's optimistic concurrency protects against
//! its writes. Go's election has the same limit.

mod lease;
mod lock;
mod metrics;
mod plan;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    time::{Duration, Instant},
};

use kube::Client;
use tokio::time::{sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

pub use self::metrics::{LeaderElectionMetrics, LeaseHealth};
use self::{
    lock::{LeaseError, LeaseLock},
    metrics::{FailureLog, Standby},
    plan::{Decision, ElectionState, JITTER_FACTOR, LeadershipTerm, Timing},
};
use super::events::{EventRecorder, ObjectRef, WallClock};
use crate::{
    provider::EventType,
    write_gate::{WriteGate, WriteGateHandle},
};

/// The settings of one election.
#[derive(Clone, Debug)]
pub struct ElectionConfig {
    /// The namespace of the Lease (`--leader-elect-resource-namespace`).
    pub namespace: String,
    /// The name of the Lease (`--leader-elect-resource-name`).
    pub name: String,
    /// Unique name of this process; see [`identity`].
    pub identity: String,
    /// The time that a standby waits after the last change of the Lease that it observed
    /// (`--leader-elect-lease-duration`, default 15 s). Only whole seconds are written to the
    /// Lease.
    pub lease_duration: Duration,
    /// The time that a leader tries to renew before it gives up leadership
    /// (`--leader-elect-renew-deadline`, default 10 s).
    pub renew_deadline: Duration,
    /// The time between two attempts (`--leader-elect-retry-period`, default 2 s).
    pub retry_period: Duration,
}

/// The error for election settings that are empty or contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidElectionConfig {
    /// The identity, the name or the namespace is empty.
    #[error("leader election needs an identity, a lease name and a namespace")]
    Empty,
    /// The lease duration is not longer than the renew deadline, or shorter than a second. As in
    /// client-go, standbys must wait longer than the leader tries to renew.
    #[error(
        "lease duration {lease_duration:?} must be at least 1s and greater than renew deadline {renew_deadline:?}"
    )]
    LeaseDuration {
        /// The configured lease duration.
        lease_duration: Duration,
        /// The configured renew deadline.
        renew_deadline: Duration,
    },
    /// The renew deadline leaves no time for a second attempt. The check is client-go's.
    #[error(
        "renew deadline {renew_deadline:?} must be greater than retry period {retry_period:?} times 1.2"
    )]
    RenewDeadline {
        /// The configured renew deadline.
        renew_deadline: Duration,
        /// The configured retry period.
        retry_period: Duration,
    },
    /// The retry period is zero, which would be a busy loop.
    #[error("retry period must be greater than zero")]
    RetryPeriod,
}

/// The reason for not releasing the Lease while a write is unanswered.
const UNANSWERED_WRITE: &str = "a write is still unanswered; the lease is left to expire, so that the next leader sees the \
     result of the write";

/// Returns a new identity in upstream's format, `<hostname>_<uuid>`. It differs at every call.
pub fn identity(hostname: &str) -> String {
    format!("{hostname}_{}", uuid::Uuid::new_v4())
}

/// The reason for a loss of leadership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// No renewal succeeded in time. Contains the last error, if an attempt was made.
    NotRenewed(Option<String>),
    /// Another process holds the Lease.
    TakenBy(String),
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRenewed(None) => f.write_str("lease was not renewed in time"),
            Self::NotRenewed(Some(error)) => {
                write!(f, "lease was not renewed in time: {error}")
            }
            Self::TakenBy(holder) => write!(f, "lease was taken by {holder}"),
        }
    }
}

/// The end of a term of leadership. The process should exit with code 1 after [`Lost`](Self::Lost)
/// and with 0 otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeadershipOutcome {
    /// The term was stopped, and the Lease was released. Another process can lead at once.
    Released,
    /// The term was stopped, but the Lease could not or must not be released. Other processes wait
    /// until it expires.
    NotReleased {
        /// The error, or the reason for not releasing the Lease.
        reason: String,
    },
    /// Leadership was lost.
    Lost {
        /// The reason.
        reason: LostReason,
    },
}

/// A candidate for one Lease.
#[derive(Debug)]
pub struct LeaderElector {
    config: ElectionConfig,
    timing: Timing,
    lock: LeaseLock,
    state: ElectionState,
    gate: WriteGate,
    gate_handle: WriteGateHandle,
    health: LeaseHealth,
    metrics: LeaderElectionMetrics,
    events: EventRecorder,
    clock: WallClock,
    failure_log: FailureLog,
    /// True if a write that would acquire the Lease was sent and not answered.
    acquire_unconfirmed: bool,
}

/// The result of one attempt to acquire or renew the Lease.
enum AcquireResult {
    /// This process holds the Lease. The write that proves it was sent at `sent_at` or later.
    Held { sent_at: Instant },
    /// Another process holds the Lease, at least until `until`.
    HeldByOther { holder: String, until: Instant },
}

/// Returns the time on tokio's clock, which tests can pause, as the type that `plan` uses.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl LeaderElector {
    /// Creates an elector with a closed gate.
    ///
    /// `client` should be used for nothing else, because other traffic could delay renewals.
    /// `events` must have a gate that is always open, because the event "stopped leading" is
    /// emitted after the gate of this elector has closed.
    ///
    /// # Errors
    /// Returns [`InvalidElectionConfig`] if the settings are empty or contradict each other.
    pub fn new(
        client: Client,
        config: ElectionConfig,
        metrics: LeaderElectionMetrics,
        events: EventRecorder,
        clock: WallClock,
    ) -> Result<Self, InvalidElectionConfig> {
        let timing = config.validate()?;
        let lock =
            LeaseLock::new(client, &config.namespace, &config.name, timing.request_timeout());
        let state = ElectionState::new(config.identity.clone(), timing);
        let health = LeaseHealth::new(timing.lease_duration);
        let (gate, gate_handle) = WriteGate::closed();
        metrics.init(&config.name);
        let failure_log = FailureLog::default();
        Ok(Self {
            config,
            timing,
            lock,
            state,
            gate,
            gate_handle,
            health,
            metrics,
            events,
            clock,
            failure_log,
            acquire_unconfirmed: false,
        })
    }

    /// Returns the gate that is open while this process leads.
    pub fn gate(&self) -> WriteGate {
        self.gate.clone()
    }

    /// Returns the health of this election, for health checks.
    pub fn health(&self) -> LeaseHealth {
        self.health.clone()
    }

    /// Waits until this process leads. Logs every error and tries again. Returns `None` if `cancel`
    /// is cancelled first.
    ///
    /// # Cancellation
    /// If `cancel` is cancelled while a write that would acquire the Lease is in flight, this
    /// function releases the Lease again, within one request timeout. Dropping the future instead
    /// may leave behind a Lease that nobody renews.
    pub async fn acquire(mut self, cancel: &CancellationToken) -> Option<Leading> {
        let lease = self.lease_key();
        tracing::info!(lease, identity = self.config.identity, "waiting for leadership");
        let mut logged_leader = String::new();
        let mut standby = Standby::begin(self.health.clone(), lease.clone());
        loop {
            let Some(attempt) = cancel
                .run_until_cancelled(self.try_acquire_or_renew())
                .await
            else {
                self.release_unconfirmed().await;
                return None;
            };
            standby.record_attempt(&attempt);
            let delay = match attempt {
                Ok(AcquireResult::Held { sent_at }) => return Some(Leading::begin(self, sent_at)),
                Ok(AcquireResult::HeldByOther { holder, until }) => {
                    if logged_leader != holder {
                        tracing::info!(lease, holder, "another process leads");
                        logged_leader = holder;
                    }
                    self.timing
                        .standby_delay()
                        .min(until.saturating_duration_since(now()))
                }
                Err(LeaseError::Conflict) => self.timing.standby_delay(),
                Err(_) => self.timing.error_delay(rand::random()),
            };
            cancel.run_until_cancelled(sleep(delay)).await;
        }
    }

    /// Reads the Lease and writes it if the rules in `plan` allow that. Logs an error.
    async fn try_acquire_or_renew(&mut self) -> Result<AcquireResult, LeaseError> {
        let result = self.try_acquire_or_renew_once().await;
        match &result {
            Ok(_) => self.failure_log.reset(),
            Err(error) => self.failure_log.log(&self.lease_key(), error),
        }
        result
    }

    async fn try_acquire_or_renew_once(&mut self) -> Result<AcquireResult, LeaseError> {
        let observed = self.lock.get().await?;
        let observed_at = now();
        self.state.observe(observed, observed_at);
        let renew_time = self.state.next_renew_time(self.clock.now());
        let record = match self.state.decide(observed_at, renew_time) {
            Decision::Wait { holder, until } => {
                // The Lease belongs to another process, so no earlier write of ours acquired it.
                self.acquire_unconfirmed = false;
                return Ok(AcquireResult::HeldByOther { holder, until });
            }
            Decision::Create(record) => {
                self.acquire_unconfirmed = true;
                self.lock.create(&record).await?;
                record
            }
            Decision::Update { record, renewal } => {
                if renewal {
                    self.metrics.count_slowpath(&self.config.name);
                }
                self.acquire_unconfirmed = true;
                self.lock.update(&record).await?;
                record
            }
        };
        self.acquire_unconfirmed = false;
        self.state.record_own_write(record, renew_time, now());
        Ok(AcquireResult::Held { sent_at: observed_at })
    }

    /// Renews the Lease without reading it first. Most renewals take this path, with one request.
    async fn renew_fast_path(&mut self) -> Result<AcquireResult, LeaseError> {
        let renew_time = self.state.next_renew_time(self.clock.now());
        let record = self.state.renewal_record(renew_time);
        let sent_at = now();
        self.lock.update(&record).await?;
        self.state.record_own_write(record, renew_time, now());
        Ok(AcquireResult::Held { sent_at })
    }

    /// Releases the Lease if an unanswered write of this process may have acquired it.
    async fn release_unconfirmed(mut self) {
        if self.acquire_unconfirmed
            && let Err(error) = self.release().await
        {
            tracing::warn!(
                lease = self.lease_key(),
                error,
                "could not release the lease; it may stay held until it expires"
            );
        }
    }

    /// Releases the Lease if this process holds it.
    ///
    /// Reads the Lease first, because an unanswered renewal may have changed it, and starts again
    /// if another process changes it in between.
    async fn release(&mut self) -> Result<(), String> {
        self.lock
            .set_deadline(Some((now() + self.timing.request_timeout()).into()));
        loop {
            let observed = self.lock.get().await.map_err(|error| error.to_string())?;
            let exists = observed.is_some();
            self.state.observe(observed, now());
            if !exists || !self.state.is_holder() {
                return Ok(());
            }
            let renew_time = self.state.next_renew_time(self.clock.now());
            let record = self.state.release_record(renew_time);
            match self.lock.update(&record).await {
                Ok(()) => return Ok(()),
                Err(LeaseError::Conflict) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Returns `<namespace>/<name>` of the Lease, for logs.
    fn lease_key(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }

    /// Emits an event on the Lease: this process, by its identity, did `what`.
    fn emit_event(&self, what: &str) {
        let lease = ObjectRef {
            api_version: "coordination.k8s.io/v1".into(),
            kind: "Lease".into(),
            namespace: self.config.namespace.as_str().into(),
            name: self.config.name.as_str().into(),
            uid: self.lock.uid().into(),
        };
        self.events.event(
            &lease,
            EventType::Normal,
            "LeaderElection",
            &format!("{} {what}", self.config.identity),
        );
    }
}

/// A process that leads. Its gate is open, and [`Leading::run`] keeps it open.
#[derive(Debug)]
pub struct Leading {
    elector: LeaderElector,
    term: LeadershipTerm,
}

impl Leading {
    /// Opens the gate after the Lease was acquired by a write that was sent at `sent_at` or later.
    fn begin(elector: LeaderElector, sent_at: Instant) -> Self {
        let answered_at = now();
        let term = LeadershipTerm::new(elector.timing, sent_at, answered_at);
        elector.gate_handle.open_until(term.gate_until().into());
        elector.health.set_last_renewal(Some(answered_at.into()));
        elector.metrics.set_leading(&elector.config.name, true);
        elector.emit_event("became leader");
        tracing::info!(
            lease = elector.lease_key(),
            identity = elector.config.identity,
            "became leader"
        );
        Self { elector, term }
    }

    /// Renews the Lease until it is lost or `stop` is cancelled.
    ///
    /// When `stop` is cancelled, the gate closes first, and no new write can begin. Then this
    /// function waits for `drained`, for at most `drain_limit` and never beyond the lease. Finally
    /// it releases the Lease, and another process can lead at once.
    ///
    /// The Lease is not released if a write that went through the gate is unanswered, or was given
    /// up without an answer less than a lease duration ago. The effect of such a write must become
    /// visible before another process leads.
    ///
    /// # Cancellation
    /// Dropping the future closes the gate and leaves the Lease to expire.
    pub async fn run(
        mut self,
        stop: &CancellationToken,
        drained: impl Future<Output = ()>,
        drain_limit: Duration,
    ) -> LeadershipOutcome {
        let lost = stop.run_until_cancelled(self.renew_loop()).await;
        self.elector.gate_handle.close();
        let outcome = match lost {
            Some(reason) => LeadershipOutcome::Lost { reason },
            None => self.step_down(drained, drain_limit).await,
        };
        let elector = &self.elector;
        elector.health.set_last_renewal(None);
        elector.metrics.set_leading(&elector.config.name, false);
        elector.emit_event("stopped leading");
        let lease = elector.lease_key();
        match &outcome {
            LeadershipOutcome::Released => {
                tracing::info!(lease, "stopped leading, lease released");
            }
            LeadershipOutcome::NotReleased { reason } => {
                tracing::warn!(lease, reason, "stopped leading, lease not released");
            }
            LeadershipOutcome::Lost { reason } => {
                tracing::error!(lease, %reason, "lost leadership");
            }
        }
        outcome
    }

    /// Renews the Lease periodically. Returns only when leadership is lost.
    async fn renew_loop(&mut self) -> LostReason {
        let mut use_fast_path = true;
        let mut last_error = None;
        loop {
            // Wait for the next attempt, or for the end of the time in which to renew.
            let give_up_at = self.term.give_up_at();
            sleep_until(give_up_at.min(self.term.next_attempt()).into()).await;
            if now() >= give_up_at {
                return LostReason::NotRenewed(last_error);
            }

            // If the fast path fails, read the Lease to find out what changed.
            self.elector.lock.set_deadline(Some(give_up_at.into()));
            let fast_path_result = if use_fast_path {
                self.elector.renew_fast_path().await.ok()
            } else {
                None
            };
            let attempt = match fast_path_result {
                Some(held) => Ok(held),
                None => self.elector.try_acquire_or_renew().await,
            };
            use_fast_path = attempt.is_ok();

            // Keep the gate open from now on, or stop leading.
            let answered_at = now();
            match attempt {
                Ok(AcquireResult::Held { sent_at }) => {
                    last_error = None;
                    self.term.record_renewal(sent_at, answered_at);
                    self.elector
                        .gate_handle
                        .open_until(self.term.gate_until().into());
                    self.elector
                        .health
                        .set_last_renewal(Some(answered_at.into()));
                }
                Ok(AcquireResult::HeldByOther { holder, .. }) => {
                    return LostReason::TakenBy(holder);
                }
                Err(error) => {
                    last_error = Some(error.to_string());
                    self.term.record_failure(answered_at);
                }
            }
        }
    }

    /// Waits for `drained` and releases the Lease, unless a write is unanswered.
    async fn step_down(
        &mut self,
        drained: impl Future<Output = ()>,
        drain_limit: Duration,
    ) -> LeadershipOutcome {
        let deadline = (now() + drain_limit).min(self.term.gate_until());
        if timeout_at(deadline.into(), drained).await.is_err() {
            tracing::warn!(lease = self.elector.lease_key(), "operations did not end in time");
        }
        let elector = &mut self.elector;
        if elector
            .gate
            .has_unanswered_write(elector.config.lease_duration)
        {
            return LeadershipOutcome::NotReleased { reason: UNANSWERED_WRITE.to_owned() };
        }
        match elector.release().await {
            Ok(()) => LeadershipOutcome::Released,
            Err(reason) => LeadershipOutcome::NotReleased { reason },
        }
    }
}

impl ElectionConfig {
    /// Checks the settings as client-go does, and returns their durations.
    fn validate(&self) -> Result<Timing, InvalidElectionConfig> {
        let Self { lease_duration, renew_deadline, retry_period, .. } = *self;
        if self.identity.is_empty() || self.name.is_empty() || self.namespace.is_empty() {
            return Err(InvalidElectionConfig::Empty);
        }
        if retry_period.is_zero() {
            return Err(InvalidElectionConfig::RetryPeriod);
        }
        if lease_duration <= renew_deadline || lease_duration < Duration::from_secs(1) {
            return Err(InvalidElectionConfig::LeaseDuration { lease_duration, renew_deadline });
        }
        if renew_deadline <= retry_period.mul_f64(JITTER_FACTOR) {
            return Err(InvalidElectionConfig::RenewDeadline { renew_deadline, retry_period });
        }
        Ok(Timing { lease_duration, renew_deadline, retry_period })
    }
}
