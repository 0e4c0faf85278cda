//! The rules of leader election, as pure functions from observed state to the next action.
//!
//! They use no clock and no client. The monotonic time is an argument, and so is the wall-clock
//! time, which is only written to the Lease and never used in a decision.
//!
//! The rules follow client-go's `tools/leaderelection` (v0.37) wherever other processes can see a
//! difference. They differ from it in three ways, all of them on the safe side:
//!
//! - A leader that observes another holder stops at once, instead of after the renew deadline.
//! - A Lease that disappears while another process holds it is created again only after that
//!   holder's lease duration.
//! - For a holder without a valid lease duration, our own lease duration counts.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use super::lease::{LeaseRecord, micro_time};

/// The lease duration (`leaseDurationSeconds`) that client-go writes when it releases a Lease.
const RELEASED_SECONDS: u32 = 1;

/// The durations of one election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timing {
    /// The time that other processes wait after the last change that they observed. Only whole
    /// seconds count, because the Lease contains no fractions.
    pub(super) lease_duration: Duration,
    /// The time that a leader tries to renew before it gives up leadership.
    pub(super) renew_deadline: Duration,
    /// The time between two attempts.
    pub(super) retry_period: Duration,
}

/// Upstream's jitter factor: the retry period times this factor must be shorter than the renew
/// deadline.
pub(super) const JITTER_FACTOR: f64 = 1.2;

/// The part of the lease duration that the leader does not use.
///
/// client-go compares records with the precision of a second. To it, a renewal within the same
/// second as the one before is no change, so its wait may have begun up to a second before our last
/// renewal. The margin also covers clocks that run at different speeds (500 ppm of 15 s is 8 ms)
/// and the time between the check of the gate and the sending of a request.
const GATE_MARGIN: Duration = Duration::from_secs(1);

impl Timing {
    /// Returns the lease duration in whole seconds, as it is written to the Lease.
    pub(super) fn lease_seconds(&self) -> u32 {
        u32::try_from(self.lease_duration.as_secs())
            .unwrap_or(u32::MAX)
            .min(i32::MAX.cast_unsigned())
    }

    /// Returns the time that the gate stays open after a successful write, counted from just before
    /// the write was sent. Leases shorter than 4 s, which make sense only in tests, have a margin of a
    /// quarter of the lease duration.
    pub(super) fn gate_time(&self) -> Duration {
        let lease = Duration::from_secs(self.lease_seconds().into());
        lease.saturating_sub(GATE_MARGIN.min(lease / 4))
    }

    /// Returns the timeout of one request.
    pub(super) fn request_timeout(&self) -> Duration {
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }

    /// Returns the delay of a standby before it reads the Lease again, after it found that another
    /// process holds it.
    ///
    /// The delay is half the retry period, without jitter. With the default settings a standby
    /// therefore notices a released Lease within a second, where upstream takes 2 to 4.4 s. A watch
    /// would notice it sooner, but it needs the `watch` verb, which upstream's roles do not grant,
    /// keeps a connection open, and receives every renewal anyway. A GET of one object per second
    /// costs less than a single kubelet does.
    pub(super) fn standby_delay(&self) -> Duration {
        self.retry_period / 2
    }

    /// Returns the delay after a failed request: the retry period times 1 to 2.2, as upstream.
    /// `random` is a number between 0 and 1.
    pub(super) fn error_delay(&self, random: f64) -> Duration {
        self.retry_period
            .mul_f64(1.0 + JITTER_FACTOR * random.clamp(0.0, 1.0))
    }
}

/// The next action on the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Wait until `until`: another process holds the Lease, or held it before the Lease
    /// disappeared.
    Wait {
        /// The holder.
        holder: String,
        /// The end of the holder's lease duration, if the record does not change before.
        until: Instant,
    },
    /// Create the Lease, which does not exist, with this record.
    Create(LeaseRecord),
    /// Replace the record that was just read, on the condition that the Lease has not changed
    /// since.
    Update {
        /// The record to write.
        record: LeaseRecord,
        /// True if this process already holds the Lease.
        renewal: bool,
    },
}

/// The state of one process in one election: what it observed of the Lease and wrote to it.
#[derive(Clone, Debug)]
pub(super) struct ElectionState {
    identity: String,
    timing: Timing,
    /// The last observed record. Kept when the Lease disappears, because its holder may still
    /// believe that it leads.
    record: Option<LeaseRecord>,
    /// True if the Lease existed when it was last read.
    exists: bool,
    /// The time on the local clock when a change of the record was last observed.
    changed_at: Option<Instant>,
    /// The wall-clock time in the last record that this process wrote.
    last_write_time: Option<Timestamp>,
}

impl ElectionState {
    /// Creates the state of a process that has not read the Lease yet.
    pub(super) fn new(identity: impl Into<String>, timing: Timing) -> Self {
        Self {
            identity: identity.into(),
            timing,
            record: None,
            exists: false,
            changed_at: None,
            last_write_time: None,
        }
    }

    /// Records the Lease as it was read or written at `now`. `None` means that it does not exist.
    pub(super) fn observe(&mut self, record: Option<LeaseRecord>, now: Instant) {
        self.exists = record.is_some();
        if record.is_some() && record != self.record {
            self.record = record;
            self.changed_at = Some(now);
        }
    }

    /// Returns the last observed holder, which is empty if the Lease is free or was never read.
    pub(super) fn holder(&self) -> &str {
        self.record.as_ref().map_or("", |r| &r.holder)
    }

    /// Returns true if the last observed record names this process.
    pub(super) fn is_holder(&self) -> bool {
        self.holder() == self.identity
    }

    /// Returns the action that follows from the last observation. `renew_time` is only written, and
    /// never compared with the Lease.
    pub(super) fn decide(&self, now: Instant, renew_time: Timestamp) -> Decision {
        if let Some(until) = self.other_holder_until().filter(|until| now < *until) {
            return Decision::Wait { holder: self.holder().to_owned(), until };
        }
        if self.exists {
            Decision::Update {
                record: self.acquire_record(renew_time),
                renewal: self.is_holder(),
            }
        } else {
            Decision::Create(self.acquire_record(renew_time))
        }
    }

    /// Returns the record for a renewal that does not read the Lease first.
    pub(super) fn renewal_record(&self, renew_time: Timestamp) -> LeaseRecord {
        self.acquire_record(renew_time)
    }

    /// Returns the record that releases the Lease. As in client-go, it has no holder and a duration
    /// of one second.
    pub(super) fn release_record(&self, renew_time: Timestamp) -> LeaseRecord {
        let renew_time = micro_time(renew_time);
        LeaseRecord {
            holder: String::new(),
            duration_seconds: Some(RELEASED_SECONDS),
            acquire_time: Some(renew_time.clone()),
            renew_time: Some(renew_time),
            transitions: self.record.as_ref().map_or(0, |r| r.transitions),
        }
    }

    /// Records a successful write of this process. `renew_time` is the time in the record.
    pub(super) fn record_own_write(
        &mut self,
        record: LeaseRecord,
        renew_time: Timestamp,
        now: Instant,
    ) {
        self.last_write_time = Some(renew_time);
        self.observe(Some(record), now);
    }

    /// Returns the renew time to write: `wall_time`, or one second after the last written time if
    /// the wall clock stalled or stepped back within that second.
    ///
    /// A renewal must differ from the one before, because other processes only look for a *change*,
    /// client-go with the precision of a second.
    pub(super) fn next_renew_time(&self, wall_time: Timestamp) -> Timestamp {
        let Some(last) = self.last_write_time else {
            return wall_time;
        };
        if wall_time <= last && wall_time.as_second() == last.as_second() {
            last.checked_add(SignedDuration::from_secs(1))
                .unwrap_or(wall_time)
        } else {
            wall_time
        }
    }

    /// Returns the end of another holder's lease duration, or `None` if there is no other holder.
    fn other_holder_until(&self) -> Option<Instant> {
        let record = self
            .record
            .as_ref()
            .filter(|r| !r.holder.is_empty() && r.holder != self.identity)?;
        let seconds = record
            .duration_seconds
            .unwrap_or_else(|| self.timing.lease_seconds());
        Some(self.changed_at? + Duration::from_secs(seconds.into()))
    }

    /// Returns the record that acquires or renews the Lease for this process.
    fn acquire_record(&self, renew_time: Timestamp) -> LeaseRecord {
        let renew_time = micro_time(renew_time);
        let (acquire_time, transitions) = match &self.record {
            Some(old) if old.holder == self.identity => (
                old.acquire_time
                    .clone()
                    .unwrap_or_else(|| renew_time.clone()),
                old.transitions,
            ),
            Some(old) if self.exists => (renew_time.clone(), old.transitions.saturating_add(1)),
            _ => (renew_time.clone(), 0),
        };
        LeaseRecord {
            holder: self.identity.clone(),
            duration_seconds: Some(self.timing.lease_seconds()),
            acquire_time: Some(acquire_time),
            renew_time: Some(renew_time),
            transitions,
        }
    }
}

/// The times at which a leader must renew and must give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeadershipTerm {
    timing: Timing,
    /// The time just before the last successful write was sent.
    sent_at: Instant,
    /// The time when the answer to that write arrived.
    answered_at: Instant,
    /// The time when the last attempt failed, if none has succeeded since.
    failed_at: Option<Instant>,
}

impl LeadershipTerm {
    /// Begins a term with the write that acquired the Lease, which was sent at `sent_at` and
    /// answered at `answered_at`.
    pub(super) fn new(timing: Timing, sent_at: Instant, answered_at: Instant) -> Self {
        Self { timing, sent_at, answered_at, failed_at: None }
    }

    /// Records a successful renewal.
    pub(super) fn record_renewal(&mut self, sent_at: Instant, answered_at: Instant) {
        *self = Self::new(self.timing, sent_at, answered_at);
    }

    /// Records a failed attempt.
    pub(super) fn record_failure(&mut self, now: Instant) {
        self.failed_at = Some(now);
    }

    /// Returns the time until which the gate may be open. Before that time no other process can
    /// acquire the Lease.
    pub(super) fn gate_until(&self) -> Instant {
        self.sent_at + self.timing.gate_time()
    }

    /// Returns the time of the next attempt to renew.
    pub(super) fn next_attempt(&self) -> Instant {
        self.failed_at.unwrap_or(self.answered_at) + self.timing.retry_period
    }

    /// Returns the time at which the leader gives up: the renew deadline, counted as upstream
    /// counts it from when the first attempt was due, but never after the gate closes.
    pub(super) fn give_up_at(&self) -> Instant {
        (self.answered_at + self.timing.retry_period + self.timing.renew_deadline)
            .min(self.gate_until())
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
