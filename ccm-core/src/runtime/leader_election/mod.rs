//! Leader election through a Lease, interoperable with client-go's `tools/leaderelection`.
//!
//! One [`LeaderElector`] per Lease; a process may have several. [`LeaderElector::gate`] is closed until the Lease is held
//! and closes by itself when leadership can no longer be proved, so clients built before the election check it from the
//! start. Rules are in `plan`, requests in `lock`, this file is the loop between them.
//!
//! Needs `get` and `update` on the named Lease and `create` on leases in its namespace; no `watch`.
//!
//! The gate relies on the monotonic clock. A machine that is suspended as a whole may not count that time: what it sends
//! after waking, up to its next renewal, is guarded by nothing but the API server's optimistic concurrency. Go's
//! election has the same limit.

mod lease;
mod lock;
mod plan;
mod report;
#[cfg(test)]
mod tests;

use std::{fmt, time::Duration};

use kube::Client;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

pub use self::report::{LeaderElectionMetrics, LeaseHealth};
use self::{
    lock::{Failure, LeaseLock},
    plan::{Candidate, Decision, JITTER_FACTOR, Tenure, Timing},
    report::{Standby, Trouble},
};
use super::{
    events::{EventRecorder, ObjectRef, WallClock},
    gate::{GateKeeper, WriteGate},
};
use crate::provider::EventKind;

/// Settings of one election. Defaults of the flags are 15 s, 10 s and 2 s.
#[derive(Clone, Debug)]
pub struct LeaderElectionConfig {
    /// Namespace of the Lease (`--leader-elect-resource-namespace`).
    pub namespace: String,
    /// Name of the Lease (`--leader-elect-resource-name`).
    pub name: String,
    /// Unique name of this process; see [`identity`].
    pub identity: String,
    /// How long a standby waits after the last change it saw; the Lease holds whole seconds of it.
    pub lease_duration: Duration,
    /// How long a leader tries to renew before it gives up.
    pub renew_deadline: Duration,
    /// Time between two attempts.
    pub retry_period: Duration,
}

/// The settings of an election contradict each other or are empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidElection {
    /// Identity, name or namespace is empty.
    #[error("leader election needs an identity, a lease name and a namespace")]
    Empty,
    /// As in client-go: standbys must wait longer than the leader tries.
    #[error("lease duration {lease_duration:?} must be at least 1s and greater than renew deadline {renew_deadline:?}")]
    LeaseDuration {
        /// As configured.
        lease_duration: Duration,
        /// As configured.
        renew_deadline: Duration,
    },
    /// As in client-go: there must be time for more than one attempt.
    #[error("renew deadline {renew_deadline:?} must be greater than retry period {retry_period:?} times 1.2")]
    RenewDeadline {
        /// As configured.
        renew_deadline: Duration,
        /// As configured.
        retry_period: Duration,
    },
    /// A retry period of zero would be a busy loop.
    #[error("retry period must be greater than zero")]
    RetryPeriod,
}

/// Why a Lease is left to run out.
const UNANSWERED: &str = "a change was requested and its answer not seen; the lease runs out, so that the next leader sees \
                          what came of it";

/// Makes an identity as upstream does: `<hostname>_<uuid>`, new in every process.
pub fn identity(hostname: &str) -> String {
    format!("{hostname}_{}", uuid::Uuid::new_v4())
}

/// Why leadership ended without being asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostReason {
    /// No renewal succeeded in time. Holds the last failure, if an attempt was made at all.
    NotRenewed(Option<String>),
    /// Another process holds the Lease.
    TakenBy(String),
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRenewed(None) => f.write_str("lease was not renewed in time"),
            Self::NotRenewed(Some(failure)) => write!(f, "lease was not renewed in time: {failure}"),
            Self::TakenBy(holder) => write!(f, "lease was taken by {holder}"),
        }
    }
}

/// How leadership ended. The exit code is the caller's: 1 when lost, 0 otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Stopped as asked, and the Lease is free for another process at once.
    Released,
    /// Stopped as asked, but the Lease could or must not be freed; others wait for its duration.
    NotReleased {
        /// What failed, or what it waits for.
        why: String,
    },
    /// Leadership was lost.
    Lost {
        /// What happened.
        why: LostReason,
    },
}

/// A process that wants to lead.
#[derive(Debug)]
pub struct LeaderElector {
    config: LeaderElectionConfig,
    timing: Timing,
    lock: LeaseLock,
    candidate: Candidate,
    gate: WriteGate,
    keeper: GateKeeper,
    health: LeaseHealth,
    metrics: LeaderElectionMetrics,
    events: EventRecorder,
    wall: WallClock,
    trouble: Trouble,
    /// A write that would win the Lease was sent and its answer not seen.
    claiming: bool,
}

/// What one attempt came to.
enum Attempt {
    /// The Lease is ours by a write sent at this moment.
    Held(Instant),
    /// Another has it, at least until then.
    HeldByOther(String, Instant),
}

impl LeaderElector {
    /// Makes an elector with a closed gate. `client` should be one of its own, so that no other traffic delays renewals;
    /// `events` must have a gate that is always open, since "stopped leading" is written after ours is closed.
    ///
    /// # Errors
    /// [`InvalidElection`] when the settings contradict each other.
    pub fn new(
        client: Client,
        config: LeaderElectionConfig,
        metrics: LeaderElectionMetrics,
        events: EventRecorder,
        wall: WallClock,
    ) -> Result<Self, InvalidElection> {
        let timing = config.check()?;
        let lock = LeaseLock::new(client, &config.namespace, &config.name, timing.request_timeout());
        let candidate = Candidate::new(config.identity.clone(), timing);
        let health = LeaseHealth::new(timing.lease_duration);
        let (gate, keeper) = WriteGate::closed();
        metrics.init(&config.name);
        let trouble = Trouble::default();
        Ok(Self {
            config,
            timing,
            lock,
            candidate,
            gate,
            keeper,
            health,
            metrics,
            events,
            wall,
            trouble,
            claiming: false,
        })
    }

    /// Returns the gate that is open while this process leads.
    pub fn gate(&self) -> WriteGate {
        self.gate.clone()
    }

    /// Returns the health of this election.
    pub fn health(&self) -> LeaseHealth {
        self.health.clone()
    }

    /// Waits until this process leads; failures of any kind are logged and tried again. `None` when cancelled before.
    ///
    /// # Cancellation
    /// Cancelling `cancel` while a claim is on its way frees the Lease again, in at most one request timeout. Dropping
    /// the future instead may leave a Lease behind that nobody renews.
    pub async fn acquire(mut self, cancel: &CancellationToken) -> Option<Leading> {
        let lease = self.lease();
        tracing::info!(lease, identity = self.config.identity, "waiting for leadership");
        let mut reported = String::new();
        let mut standby = Standby::begin(self.health.clone(), lease.clone());
        loop {
            let Some(attempt) = cancel.run_until_cancelled(self.look_and_claim()).await else {
                self.abandon().await;
                return None;
            };
            standby.attempted(&attempt);
            let pause = match attempt {
                Ok(Attempt::Held(sent)) => return Some(Leading::begin(self, sent)),
                Ok(Attempt::HeldByOther(holder, until)) => {
                    if reported != holder {
                        tracing::info!(lease, holder, "another process leads");
                        reported = holder;
                    }
                    self.timing.standby_pause().min(until.saturating_duration_since(Instant::now()))
                }
                Err(Failure::Stale) => self.timing.standby_pause(),
                Err(_) => self.timing.failure_pause(rand::random()),
            };
            cancel.run_until_cancelled(sleep(pause)).await;
        }
    }

    /// Reads the Lease, and writes it if the rules allow.
    async fn look_and_claim(&mut self) -> Result<Attempt, Failure> {
        let result = self.try_look_and_claim().await;
        match &result {
            Ok(_) => self.trouble.over(),
            Err(failure) => self.trouble.failed(&self.lease(), failure),
        }
        result
    }

    async fn try_look_and_claim(&mut self) -> Result<Attempt, Failure> {
        let record = self.lock.get().await?;
        let now = Instant::now();
        self.candidate.observe(record, now.into_std());
        let wall = self.candidate.stamp(self.wall.now());
        self.claiming = true;
        let record = match self.candidate.decide(now.into_std(), wall) {
            Decision::Wait { holder, until } => {
                self.claiming = false;
                return Ok(Attempt::HeldByOther(holder, until.into()));
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
        self.claiming = false;
        self.candidate.wrote(record, wall, Instant::now().into_std());
        Ok(Attempt::Held(now))
    }

    /// Renews without a look: the usual case, one request.
    async fn renew_directly(&mut self) -> Result<Attempt, Failure> {
        let wall = self.candidate.stamp(self.wall.now());
        let record = self.candidate.renewal(wall);
        let sent = Instant::now();
        self.lock.update(&record).await?;
        self.candidate.wrote(record, wall, Instant::now().into_std());
        Ok(Attempt::Held(sent))
    }

    /// Frees the Lease if a claim of ours may have arrived.
    async fn abandon(mut self) {
        if self.claiming
            && let Err(why) = self.release().await
        {
            tracing::warn!(lease = self.lease(), why, "lease may stay claimed until it runs out");
        }
    }

    /// Frees the Lease if it is ours. Reads it first, because an unfinished renewal may have changed it.
    async fn release(&mut self) -> Result<(), String> {
        self.lock.limit(Some(Instant::now() + self.timing.request_timeout()));
        loop {
            let record = self.lock.get().await.map_err(|f| f.to_string())?;
            self.candidate.observe(record.clone(), Instant::now().into_std());
            if record.is_none() || !self.candidate.holds() {
                return Ok(());
            }
            let release = self.candidate.release(self.candidate.stamp(self.wall.now()));
            match self.lock.update(&release).await {
                Ok(()) => return Ok(()),
                Err(Failure::Stale) => {}
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
        self.events.event(&lease, EventKind::Normal, "LeaderElection", &format!("{} {what}", self.config.identity));
    }
}

/// A process that leads. The gate is open; [`Leading::run`] keeps it so.
#[derive(Debug)]
pub struct Leading {
    elector: LeaderElector,
    tenure: Tenure,
}

impl Leading {
    fn begin(elector: LeaderElector, sent: Instant) -> Self {
        let answered = Instant::now();
        let tenure = Tenure::new(elector.timing, sent.into_std(), answered.into_std());
        elector.keeper.open_until(tenure.gate_until().into());
        elector.health.set(Some(answered));
        elector.metrics.leading(&elector.config.name, true);
        elector.event("became leader");
        tracing::info!(lease = elector.lease(), identity = elector.config.identity, "became leader");
        Self { elector, tenure }
    }

    /// Renews the Lease until it is lost or `stop` is cancelled.
    ///
    /// When stopped, the gate closes first, so that nothing new is begun; then `drained` is awaited, for at most
    /// `drain_limit` and never beyond the lease; then the Lease is freed, so that another process leads at once. It is not
    /// freed if a change that went through the gate has no answer, or was given up without one less than a lease duration
    /// ago: another process must not look before that shows.
    ///
    /// # Cancellation
    /// Dropping the future closes the gate and leaves the Lease to run out.
    pub async fn run(
        mut self,
        stop: &CancellationToken,
        drained: impl Future<Output = ()>,
        drain_limit: Duration,
    ) -> Outcome {
        let lost = stop.run_until_cancelled(self.keep()).await;
        self.elector.keeper.close();
        let outcome = match lost {
            Some(why) => Outcome::Lost { why },
            None => self.step_down(drained, drain_limit).await,
        };
        let elector = &self.elector;
        elector.health.set(None);
        elector.metrics.leading(&elector.config.name, false);
        elector.event("stopped leading");
        match &outcome {
            Outcome::Released => tracing::info!(lease = elector.lease(), "stopped leading, lease is free"),
            Outcome::NotReleased { why } => {
                tracing::warn!(lease = elector.lease(), why, "stopped leading, lease not freed");
            }
            Outcome::Lost { why } => tracing::error!(lease = elector.lease(), %why, "lost leadership"),
        }
        outcome
    }

    async fn keep(&mut self) -> LostReason {
        let mut direct = true;
        let mut failure = None;
        loop {
            let give_up = Instant::from(self.tenure.give_up());
            sleep_until(give_up.min(self.tenure.next_attempt().into())).await;
            if Instant::now() >= give_up {
                return LostReason::NotRenewed(failure);
            }
            self.elector.lock.limit(Some(give_up));
            let mut attempt = Err(Failure::Stale);
            if direct {
                attempt = self.elector.renew_directly().await;
            }
            if attempt.is_err() {
                attempt = self.elector.look_and_claim().await;
            }
            direct = attempt.is_ok();
            let now = Instant::now();
            match attempt {
                Ok(Attempt::Held(sent)) => {
                    failure = None;
                    self.tenure.renewed(sent.into_std(), now.into_std());
                    self.elector.keeper.open_until(self.tenure.gate_until().into());
                    self.elector.health.set(Some(now));
                }
                Ok(Attempt::HeldByOther(holder, _)) => return LostReason::TakenBy(holder),
                Err(why) => {
                    failure = Some(why.to_string());
                    self.tenure.failed(now.into_std());
                }
            }
        }
    }

    async fn step_down(&mut self, drained: impl Future<Output = ()>, drain_limit: Duration) -> Outcome {
        let limit = (Instant::now() + drain_limit).min(self.tenure.gate_until().into());
        if timeout_at(limit, drained).await.is_err() {
            tracing::warn!(lease = self.elector.lease(), "operations did not end in time");
        }
        if self.elector.gate.is_unanswered(self.elector.config.lease_duration) {
            return Outcome::NotReleased { why: UNANSWERED.to_owned() };
        }
        match self.elector.release().await {
            Ok(()) => Outcome::Released,
            Err(why) => Outcome::NotReleased { why },
        }
    }
}

impl LeaderElectionConfig {
    fn check(&self) -> Result<Timing, InvalidElection> {
        let Self { lease_duration, renew_deadline, retry_period, .. } = *self;
        if self.identity.is_empty() || self.name.is_empty() || self.namespace.is_empty() {
            return Err(InvalidElection::Empty);
        }
        if retry_period.is_zero() {
            return Err(InvalidElection::RetryPeriod);
        }
        if lease_duration <= renew_deadline || lease_duration < Duration::from_secs(1) {
            return Err(InvalidElection::LeaseDuration { lease_duration, renew_deadline });
        }
        if renew_deadline <= retry_period.mul_f64(JITTER_FACTOR) {
            return Err(InvalidElection::RenewDeadline { renew_deadline, retry_period });
        }
        Ok(Timing { lease_duration, renew_deadline, retry_period })
    }
}
