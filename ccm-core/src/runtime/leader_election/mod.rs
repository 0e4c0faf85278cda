//! Leader election through a Lease, interoperable with client-go's `tools/leaderelection`.
//!
//! There is one [`LeaderElector`] per Lease; a process may have several. [`LeaderElector::gate`] is
//! closed until the Lease is held, and closes by itself when leadership can no longer be proved.
//! Clients that are built before the election can check it from the start. The rules are in `plan`,
//! the requests in `lock`; this file has the loop that connects them.
//!
//! Needs `get` and `update` on the named Lease and `create` on leases in its namespace; no `watch`.
//!
//! The gate relies on the monotonic clock. A machine that is suspended as a whole may not count the
//! time of its suspension. Until its next renewal after waking, only the API server's optimistic
//! concurrency protects against its writes. Go's election has the same limit.

mod lease;
mod lock;
mod metrics;
mod plan;
#[cfg(test)]
mod tests;

use std::{fmt, time::Duration};

use kube::Client;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
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

/// Settings of one election. The flags' defaults for the three durations are 15 s, 10 s and 2 s.
#[derive(Clone, Debug)]
pub struct ElectionConfig {
    /// Namespace of the Lease (`--leader-elect-resource-namespace`).
    pub namespace: String,
    /// Name of the Lease (`--leader-elect-resource-name`).
    pub name: String,
    /// Unique name of this process; see [`identity`].
    pub identity: String,
    /// How long a standby waits after the last change of the Lease that it observed. Only whole
    /// seconds are written to the Lease.
    pub lease_duration: Duration,
    /// How long a leader tries to renew before it gives up leadership.
    pub renew_deadline: Duration,
    /// Time between two attempts.
    pub retry_period: Duration,
}

/// The settings of an election are empty or contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidElectionConfig {
    /// Identity, name or namespace is empty.
    #[error("leader election needs an identity, a lease name and a namespace")]
    Empty,
    /// As in client-go, standbys must wait longer than the leader tries to renew.
    #[error(
        "lease duration {lease_duration:?} must be at least 1s and greater than renew deadline {renew_deadline:?}"
    )]
    LeaseDuration {
        /// As configured.
        lease_duration: Duration,
        /// As configured.
        renew_deadline: Duration,
    },
    /// As in client-go, the renew deadline must leave time for more than one attempt.
    #[error(
        "renew deadline {renew_deadline:?} must be greater than retry period {retry_period:?} times 1.2"
    )]
    RenewDeadline {
        /// As configured.
        renew_deadline: Duration,
        /// As configured.
        retry_period: Duration,
    },
    /// The retry period is zero, which would be a busy loop.
    #[error("retry period must be greater than zero")]
    RetryPeriod,
}

/// Reason for not releasing the Lease.
const UNANSWERED_WRITE: &str = "a change was requested and its answer not seen; the lease runs out, so that the next leader sees \
                          what came of it";

/// Makes an identity as upstream does: `<hostname>_<uuid>`, unique to the process.
pub fn identity(hostname: &str) -> String {
    format!("{hostname}_{}", uuid::Uuid::new_v4())
}

/// Why leadership was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// No renewal succeeded in time. Holds the last error, if an attempt was made at all.
    NotRenewed(Option<String>),
    /// Another process holds the Lease.
    TakenBy(String),
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRenewed(None) => f.write_str("lease was not renewed in time"),
            Self::NotRenewed(Some(failure)) => {
                write!(f, "lease was not renewed in time: {failure}")
            }
            Self::TakenBy(holder) => write!(f, "lease was taken by {holder}"),
        }
    }
}

/// How leadership ended. The caller chooses the exit code: 1 when lost, 0 otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeadershipOutcome {
    /// Stopped on request. The Lease was released, so another process can lead at once.
    Released,
    /// Stopped on request, but the Lease could not or must not be released. Other processes wait
    /// until it expires.
    NotReleased {
        /// The error, or the reason for not releasing it.
        why: String,
    },
    /// Leadership was lost.
    Lost {
        /// The reason.
        why: LostReason,
    },
}

/// A candidate for one Lease.
#[derive(Debug)]
pub struct LeaderElector {
    config: ElectionConfig,
    timing: Timing,
    lock: LeaseLock,
    candidate: ElectionState,
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

/// Result of one attempt to acquire or renew.
enum AcquireResult {
    /// This process holds the Lease, by a write that was sent at this time.
    Held(Instant),
    /// Another process, named here, holds the Lease at least until this time.
    HeldByOther(String, Instant),
}

impl LeaderElector {
    /// Makes an elector with a closed gate. `client` should be used for nothing else, so that no
    /// other traffic delays renewals. `events` must have a gate that is always open, since "stopped
    /// leading" is written after our gate has closed.
    ///
    /// # Errors
    /// [`InvalidElectionConfig`] when the settings are empty or contradict each other.
    pub fn new(
        client: Client,
        config: ElectionConfig,
        metrics: LeaderElectionMetrics,
        events: EventRecorder,
        clock: WallClock,
    ) -> Result<Self, InvalidElectionConfig> {
        let timing = config.check()?;
        let lock =
            LeaseLock::new(client, &config.namespace, &config.name, timing.request_timeout());
        let candidate = ElectionState::new(config.identity.clone(), timing);
        let health = LeaseHealth::new(timing.lease_duration);
        let (gate, gate_handle) = WriteGate::closed();
        metrics.init(&config.name);
        let failure_log = FailureLog::default();
        Ok(Self {
            config,
            timing,
            lock,
            candidate,
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

    /// Waits until this process leads. Errors of any kind are logged, and the attempt is repeated.
    /// Returns `None` if cancelled before.
    ///
    /// # Cancellation
    /// If `cancel` is cancelled while a write that would acquire the Lease is in flight, the Lease
    /// is released again, within one request timeout. Dropping the future instead may leave a Lease
    /// that nobody renews.
    pub async fn acquire(mut self, cancel: &CancellationToken) -> Option<Leading> {
        let lease = self.lease();
        tracing::info!(lease, identity = self.config.identity, "waiting for leadership");
        let mut reported = String::new();
        let mut standby = Standby::begin(self.health.clone(), lease.clone());
        loop {
            let Some(attempt) = cancel
                .run_until_cancelled(self.try_acquire_or_renew())
                .await
            else {
                self.release_unconfirmed().await;
                return None;
            };
            standby.attempted(&attempt);
            let pause = match attempt {
                Ok(AcquireResult::Held(sent)) => return Some(Leading::begin(self, sent)),
                Ok(AcquireResult::HeldByOther(holder, until)) => {
                    if reported != holder {
                        tracing::info!(lease, holder, "another process leads");
                        reported = holder;
                    }
                    self.timing
                        .standby_pause()
                        .min(until.saturating_duration_since(Instant::now()))
                }
                Err(LeaseError::Conflict) => self.timing.standby_pause(),
                Err(_) => self.timing.failure_pause(rand::random()),
            };
            cancel.run_until_cancelled(sleep(pause)).await;
        }
    }

    /// Reads the Lease, and writes it if the rules in `plan` allow it. Logs a failure.
    async fn try_acquire_or_renew(&mut self) -> Result<AcquireResult, LeaseError> {
        let result = self.try_acquire_or_renew_once().await;
        match &result {
            Ok(_) => self.failure_log.reset(),
            Err(failure) => self.failure_log.failed(&self.lease(), failure),
        }
        result
    }

    async fn try_acquire_or_renew_once(&mut self) -> Result<AcquireResult, LeaseError> {
        let record = self.lock.get().await?;
        let now = Instant::now();
        self.candidate.observe(record, now.into_std());
        let renew_time = self.candidate.next_renew_time(self.clock.now());
        self.acquire_unconfirmed = true;
        let record = match self.candidate.decide(now.into_std(), renew_time) {
            Decision::Wait { holder, until } => {
                self.acquire_unconfirmed = false;
                return Ok(AcquireResult::HeldByOther(holder, until.into()));
            }
            Decision::Create(record) => {
                self.lock.create(&record).await?;
                record
            }
            Decision::Update { record, renewal } => {
                if renewal {
                    self.metrics.slowpath(&self.config.name);
                }
                self.lock.update(&record).await?;
                record
            }
        };
        self.acquire_unconfirmed = false;
        self.candidate
            .record_own_write(record, renew_time, Instant::now().into_std());
        Ok(AcquireResult::Held(now))
    }

    /// Renews without reading the Lease first. This is the usual case, with one request.
    async fn renew_fast_path(&mut self) -> Result<AcquireResult, LeaseError> {
        let renew_time = self.candidate.next_renew_time(self.clock.now());
        let record = self.candidate.renewal(renew_time);
        let sent = Instant::now();
        self.lock.update(&record).await?;
        self.candidate
            .record_own_write(record, renew_time, Instant::now().into_std());
        Ok(AcquireResult::Held(sent))
    }

    /// Releases the Lease if an unanswered write of this process may have acquired it.
    async fn release_unconfirmed(mut self) {
        if self.acquire_unconfirmed
            && let Err(why) = self.release().await
        {
            tracing::warn!(lease = self.lease(), why, "lease may stay claimed until it runs out");
        }
    }

    /// Releases the Lease if this process holds it. Reads it first, because an unanswered renewal
    /// may have changed it.
    async fn release(&mut self) -> Result<(), String> {
        self.lock
            .set_deadline(Some(Instant::now() + self.timing.request_timeout()));
        loop {
            let record = self.lock.get().await.map_err(|f| f.to_string())?;
            self.candidate
                .observe(record.clone(), Instant::now().into_std());
            if record.is_none() || !self.candidate.is_holder() {
                return Ok(());
            }
            let renew_time = self.candidate.next_renew_time(self.clock.now());
            let release = self.candidate.release(renew_time);
            match self.lock.update(&release).await {
                Ok(()) => return Ok(()),
                Err(LeaseError::Conflict) => {}
                Err(failure) => return Err(failure.to_string()),
            }
        }
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.config.namespace, self.config.name)
    }

    fn event(&self, what: &str) {
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
    fn begin(elector: LeaderElector, sent: Instant) -> Self {
        let answered = Instant::now();
        let term = LeadershipTerm::new(elector.timing, sent.into_std(), answered.into_std());
        elector.gate_handle.open_until(term.gate_until().into());
        elector.health.set(Some(answered));
        elector.metrics.leading(&elector.config.name, true);
        elector.event("became leader");
        tracing::info!(
            lease = elector.lease(),
            identity = elector.config.identity,
            "became leader"
        );
        Self { elector, term }
    }

    /// Renews the Lease until it is lost or `stop` is cancelled.
    ///
    /// When stopped, the gate closes first, so that no new write begins. Then `drained` is awaited,
    /// for at most `drain_limit` and never beyond the lease. Then the Lease is released, so that
    /// another process can lead at once. It is not released if a write that went through the gate
    /// has no answer, or was given up without one less than a lease duration ago: the effect of
    /// such a write must show before another process leads.
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
            Some(why) => LeadershipOutcome::Lost { why },
            None => self.step_down(drained, drain_limit).await,
        };
        let elector = &self.elector;
        elector.health.set(None);
        elector.metrics.leading(&elector.config.name, false);
        elector.event("stopped leading");
        match &outcome {
            LeadershipOutcome::Released => {
                tracing::info!(lease = elector.lease(), "stopped leading, lease is free");
            }
            LeadershipOutcome::NotReleased { why } => {
                tracing::warn!(lease = elector.lease(), why, "stopped leading, lease not freed");
            }
            LeadershipOutcome::Lost { why } => {
                tracing::error!(lease = elector.lease(), %why, "lost leadership");
            }
        }
        outcome
    }

    async fn renew_loop(&mut self) -> LostReason {
        let mut use_fast_path = true;
        let mut failure = None;
        loop {
            let give_up = Instant::from(self.term.give_up_at());
            sleep_until(give_up.min(self.term.next_attempt().into())).await;
            if Instant::now() >= give_up {
                return LostReason::NotRenewed(failure);
            }
            self.elector.lock.set_deadline(Some(give_up));
            let renewed = if use_fast_path {
                self.elector.renew_fast_path().await.ok()
            } else {
                None
            };
            let attempt = match renewed {
                Some(held) => Ok(held),
                None => self.elector.try_acquire_or_renew().await,
            };
            use_fast_path = attempt.is_ok();
            let now = Instant::now();
            match attempt {
                Ok(AcquireResult::Held(sent)) => {
                    failure = None;
                    self.term.renewed(sent.into_std(), now.into_std());
                    self.elector
                        .gate_handle
                        .open_until(self.term.gate_until().into());
                    self.elector.health.set(Some(now));
                }
                Ok(AcquireResult::HeldByOther(holder, _)) => return LostReason::TakenBy(holder),
                Err(why) => {
                    failure = Some(why.to_string());
                    self.term.failed(now.into_std());
                }
            }
        }
    }

    async fn step_down(
        &mut self,
        drained: impl Future<Output = ()>,
        drain_limit: Duration,
    ) -> LeadershipOutcome {
        let limit = (Instant::now() + drain_limit).min(self.term.gate_until().into());
        if timeout_at(limit, drained).await.is_err() {
            tracing::warn!(lease = self.elector.lease(), "operations did not end in time");
        }
        if self
            .elector
            .gate
            .has_unanswered_write(self.elector.config.lease_duration)
        {
            return LeadershipOutcome::NotReleased { why: UNANSWERED_WRITE.to_owned() };
        }
        match self.elector.release().await {
            Ok(()) => LeadershipOutcome::Released,
            Err(why) => LeadershipOutcome::NotReleased { why },
        }
    }
}

impl ElectionConfig {
    fn check(&self) -> Result<Timing, InvalidElectionConfig> {
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
