//! The rules of the election as pure functions: what was observed, what follows. No clock, no client: `now` is an
//! argument, and so is the wall clock, which is only ever written and never judged by.
//!
//! Follows client-go's `tools/leaderelection` (v0.37) where they meet on the wire. Differences, all on the safe side:
//! a leader that sees another holder stops at once instead of after the renew deadline; a Lease that disappears while
//! another held it is created only after that holder's time is over; a holder without a usable duration is given ours.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use super::lease::{LeaseRecord, micro_time};

/// Lease duration (`leaseDurationSeconds`) that client-go writes when it releases.
const RELEASED_SECONDS: u32 = 1;

/// The durations of one election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timing {
    /// How long others wait after the last change they saw. Whole seconds count; the Lease holds no more.
    pub(super) lease_duration: Duration,
    /// How long a leader goes on trying to renew before it gives up.
    pub(super) renew_deadline: Duration,
    /// Time between two attempts.
    pub(super) retry_period: Duration,
}

/// Upstream's factor: the retry period, stretched by jitter, must fit into the renew deadline.
pub(super) const JITTER_FACTOR: f64 = 1.2;

/// Part of the lease duration that the leader does not use.
///
/// One second, because client-go compares records at the precision of a second: a renewal within the same second as
/// the one before is no change in its eyes, so its wait may have begun that much earlier than our last renewal. It
/// also covers clocks of different speed (500 ppm of 15 s is 8 ms) and the way from the check of the gate to the wire.
const GATE_MARGIN: Duration = Duration::from_secs(1);

impl Timing {
    /// Returns the whole seconds that are written to the Lease.
    pub(super) fn lease_seconds(&self) -> u32 {
        u32::try_from(self.lease_duration.as_secs()).unwrap_or(u32::MAX).min(i32::MAX.cast_unsigned())
    }

    /// Returns how long the gate stays open after a successful write, counted from before it was sent. Short leases
    /// (under 4 s, for tests) give up a quarter instead of the whole margin.
    pub(super) fn gate_time(&self) -> Duration {
        let lease = Duration::from_secs(self.lease_seconds().into());
        lease.saturating_sub(GATE_MARGIN.min(lease / 4))
    }

    /// Returns the longest time that one request may take.
    pub(super) fn request_timeout(&self) -> Duration {
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }

    /// Returns the pause of a standby after a look that found the Lease held.
    ///
    /// Half the retry period and no jitter, so that a released Lease is noticed within a second by default, where
    /// upstream takes 2 to 4.4. A watch would notice sooner still, but it needs the `watch` verb, which upstream's roles do
    /// not grant, keeps a connection open and is sent every renewal anyway; a GET of one object a second costs less
    /// than one kubelet does.
    pub(super) fn standby_pause(&self) -> Duration {
        self.retry_period / 2
    }

    /// Returns the pause after a failed request: the retry period times 1 to 2.2, as upstream. `random` is in 0..1.
    pub(super) fn failure_pause(&self, random: f64) -> Duration {
        self.retry_period.mul_f64(1.0 + JITTER_FACTOR * random.clamp(0.0, 1.0))
    }
}

/// What should be done about the Lease now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Another holds it, or held it when it was last there: nothing may be done before `until`.
    Wait {
        /// The holder.
        holder: String,
        /// When its time is over, if the record does not change before.
        until: Instant,
    },
    /// There is no Lease: create it with this record.
    Create(LeaseRecord),
    /// Replace the record of the Lease that was just seen, on the condition that it did not change.
    Update {
        /// The record to write.
        record: LeaseRecord,
        /// Whether the record was ours already.
        renewal: bool,
    },
}

/// What one process knows about one Lease.
#[derive(Clone, Debug)]
pub(super) struct ElectionState {
    identity: String,
    timing: Timing,
    /// The last record seen. Kept when the Lease disappears, since its holder may still believe in it.
    record: Option<LeaseRecord>,
    /// Whether the Lease was there at the last look.
    present: bool,
    /// When the record was last seen to change, on the local clock.
    changed_at: Option<Instant>,
    /// The time of our own last write.
    last_write_time: Option<Timestamp>,
}

impl ElectionState {
    /// Makes a candidate that has seen nothing yet.
    pub(super) fn new(identity: impl Into<String>, timing: Timing) -> Self {
        Self {
            identity: identity.into(),
            timing,
            record: None,
            present: false,
            changed_at: None,
            last_write_time: None,
        }
    }

    /// Takes note of the Lease as read or written at `now`; `None` when there is no such Lease.
    pub(super) fn observe(&mut self, record: Option<LeaseRecord>, now: Instant) {
        self.present = record.is_some();
        if record.is_some() && record != self.record {
            self.record = record;
            self.changed_at = Some(now);
        }
    }

    /// Returns the holder last seen; empty when the Lease is free or was never seen.
    pub(super) fn holder(&self) -> &str {
        self.record.as_ref().map_or("", |r| &r.holder)
    }

    /// Tells whether the record last seen names this process.
    pub(super) fn is_holder(&self) -> bool {
        self.holder() == self.identity
    }

    /// Decides what should follow from the last observation. `wall` is only written, never compared with the Lease.
    pub(super) fn decide(&self, now: Instant, wall: Timestamp) -> Decision {
        if let Some(until) = self.other_holder_until().filter(|until| now < *until) {
            return Decision::Wait { holder: self.holder().to_owned(), until };
        }
        if self.present {
            Decision::Update { record: self.acquire_record(wall), renewal: self.is_holder() }
        } else {
            Decision::Create(self.acquire_record(wall))
        }
    }

    /// Returns the record of a renewal without a look at the Lease first.
    pub(super) fn renewal(&self, wall: Timestamp) -> LeaseRecord {
        self.acquire_record(wall)
    }

    /// Returns the record that frees the Lease: no holder and a second's duration, as client-go writes it.
    pub(super) fn release(&self, wall: Timestamp) -> LeaseRecord {
        let now = micro_time(wall);
        LeaseRecord {
            holder: String::new(),
            duration_seconds: Some(RELEASED_SECONDS),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            transitions: self.record.as_ref().map_or(0, |r| r.transitions),
        }
    }

    /// Takes note of our own successful write. `wall` is the time that went into the record.
    pub(super) fn record_own_write(&mut self, record: LeaseRecord, wall: Timestamp, now: Instant) {
        self.last_write_time = Some(wall);
        self.observe(Some(record), now);
    }

    /// Chooses the time to write: the wall clock, unless that stalled or stepped back into the very second that was
    /// written last. Others judge by *change*, client-go to the second, so a renewal must differ from the one before.
    pub(super) fn next_renew_time(&self, wall: Timestamp) -> Timestamp {
        match self.last_write_time {
            Some(last) if wall <= last && wall.as_second() == last.as_second() => {
                last.checked_add(SignedDuration::from_secs(1)).unwrap_or(wall)
            }
            _ => wall,
        }
    }

    fn other_holder_until(&self) -> Option<Instant> {
        let record = self.record.as_ref().filter(|r| !r.holder.is_empty() && r.holder != self.identity)?;
        let seconds = record.duration_seconds.unwrap_or_else(|| self.timing.lease_seconds());
        Some(self.changed_at? + Duration::from_secs(seconds.into()))
    }

    fn acquire_record(&self, wall: Timestamp) -> LeaseRecord {
        let now = micro_time(wall);
        let old = self.record.as_ref();
        let (acquire_time, transitions) = match old {
            Some(old) if old.holder == self.identity => {
                (old.acquire_time.clone().unwrap_or_else(|| now.clone()), old.transitions)
            }
            Some(old) if self.present => (now.clone(), old.transitions.saturating_add(1)),
            _ => (now.clone(), 0),
        };
        LeaseRecord {
            holder: self.identity.clone(),
            duration_seconds: Some(self.timing.lease_seconds()),
            acquire_time: Some(acquire_time),
            renew_time: Some(now),
            transitions,
        }
    }
}

/// When a leader must renew, and when it must give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeadershipTerm {
    timing: Timing,
    /// Just before the last successful write was sent.
    sent_at: Instant,
    /// When its answer came.
    answered_at: Instant,
    /// When the last attempt failed, if none has succeeded since.
    failed_at: Option<Instant>,
}

impl LeadershipTerm {
    /// Begins with the write that won the Lease: sent at `sent_at`, answered at `answered_at`.
    pub(super) fn new(timing: Timing, sent_at: Instant, answered_at: Instant) -> Self {
        Self { timing, sent_at, answered_at, failed_at: None }
    }

    /// Takes note of a renewal.
    pub(super) fn renewed(&mut self, sent: Instant, answered: Instant) {
        *self = Self::new(self.timing, sent, answered);
    }

    /// Takes note of a failed attempt.
    pub(super) fn failed(&mut self, now: Instant) {
        self.failed_at = Some(now);
    }

    /// Returns until when nobody else can have taken the Lease, less the margin.
    pub(super) fn gate_until(&self) -> Instant {
        self.sent_at + self.timing.gate_time()
    }

    /// Returns when to renew next.
    pub(super) fn next_attempt(&self) -> Instant {
        self.failed_at.unwrap_or(self.answered_at) + self.timing.retry_period
    }

    /// Returns when to stop trying: the renew deadline after the first attempt was due, as upstream counts it, and
    /// never later than the gate closes.
    pub(super) fn give_up_at(&self) -> Instant {
        (self.answered_at + self.timing.retry_period + self.timing.renew_deadline).min(self.gate_until())
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
