//! The write gate, which checks before each write that leadership can still be proved.
//!
//! Leader election opens the gate until the time at which another process may acquire the Lease,
//! counted from *before* the last successful renewal was sent. The gate closes by the passage of
//! time on tokio's monotonic clock, without any code that has to run. A process that was suspended
//! therefore finds its gate closed when it continues.
//!
//! The gate also tracks the writes that went through it and are unanswered. Their effect may become
//! visible late, and a successor that led at once could repeat them. The Lease is therefore not
//! released while there are such writes, but left to expire.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// A check of whether this process may write now. Cheap to clone and to check.
#[derive(Clone, Debug)]
pub struct WriteGate(Arc<GateState>);

#[derive(Debug)]
enum GateState {
    /// Always open, because without leader election no proof is needed.
    AlwaysOpen,
    /// Never open.
    AlwaysClosed,
    /// Open while both gates are open, for writes that need two leases.
    Both(WriteGate, WriteGate),
    /// Open while the other gate is open. Does not track writes.
    Untracked(WriteGate),
    /// Open until a time that leader election sets, or closed.
    OpenUntil(Mutex<Option<Instant>>, Mutex<WriteTracker>),
}

/// The writes that went through a gate and are unanswered.
#[derive(Debug, Default)]
struct WriteTracker {
    /// The number of writes in flight.
    in_flight: usize,
    /// The time when a write was last given up without an answer.
    abandoned_at: Option<Instant>,
}

/// A write in flight.
///
/// If it is dropped without a call of [`complete`](Self::complete), the gate records that the write
/// was given up: it may or may not take effect, now or later.
#[derive(Debug)]
#[must_use = "the write counts as in flight until this is completed or dropped"]
pub struct InFlightWrite(Option<WriteGate>);

/// The error of a closed gate: leadership cannot be proved, so nothing may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("leadership cannot be proved")]
pub struct NotLeader;

/// A handle that opens and closes a [`WriteGate`]. Only leader election has it.
#[derive(Debug)]
pub struct WriteGateHandle(WriteGate);

impl WriteGate {
    /// Creates a gate that never closes, for a process that runs without leader election.
    pub fn always_open() -> Self {
        Self(Arc::new(GateState::AlwaysOpen))
    }

    /// Creates a gate that never opens, for a process that must not write.
    pub fn always_closed() -> Self {
        Self(Arc::new(GateState::AlwaysClosed))
    }

    /// Creates a closed gate and the handle that opens it.
    pub fn closed() -> (Self, WriteGateHandle) {
        let gate = Self(Arc::new(GateState::OpenUntil(Mutex::new(None), Mutex::default())));
        (gate.clone(), WriteGateHandle(gate))
    }

    /// Creates a gate that is open while both gates are open.
    #[must_use]
    pub fn both(first: Self, second: Self) -> Self {
        Self(Arc::new(GateState::Both(first, second)))
    }

    /// Creates a gate that is open while this one is open, but does not track writes. Use it for
    /// writes that the next leader would not repeat, such as events.
    #[must_use]
    pub fn untracked(&self) -> Self {
        Self(Arc::new(GateState::Untracked(self.clone())))
    }

    /// Checks the gate. Must be called immediately before each write is sent, not once per
    /// reconcile.
    ///
    /// # Errors
    /// Returns [`NotLeader`] if the lease was never held, or has expired on the local monotonic
    /// clock.
    pub fn may_write(&self) -> Result<(), NotLeader> {
        match &*self.0 {
            GateState::AlwaysOpen => Ok(()),
            GateState::AlwaysClosed => Err(NotLeader),
            GateState::Both(first, second) => first.may_write().and_then(|()| second.may_write()),
            GateState::Untracked(gate) => gate.may_write(),
            GateState::OpenUntil(until, _) => match *until.lock() {
                Some(until) if Instant::now() < until => Ok(()),
                _ => Err(NotLeader),
            },
        }
    }

    /// Checks the gate for a write that is sent at once, and tracks the write as in flight.
    ///
    /// # Errors
    /// The same as those of [`may_write`](Self::may_write).
    pub fn begin_write(&self) -> Result<InFlightWrite, NotLeader> {
        self.may_write()?;
        self.update_trackers(|writes| writes.in_flight += 1);
        Ok(InFlightWrite(Some(self.clone())))
    }

    /// Returns true if a write is in flight, or was given up without an answer less than `within`
    /// ago.
    pub fn has_unanswered_write(&self, within: Duration) -> bool {
        match &*self.0 {
            GateState::AlwaysOpen | GateState::AlwaysClosed | GateState::Untracked(_) => false,
            GateState::Both(first, second) => {
                first.has_unanswered_write(within) || second.has_unanswered_write(within)
            }
            GateState::OpenUntil(_, writes) => {
                let writes = writes.lock();
                writes.in_flight > 0 || writes.abandoned_at.is_some_and(|at| at.elapsed() < within)
            }
        }
    }

    /// Changes the trackers of all leases that the gate depends on.
    fn update_trackers(&self, change: impl Fn(&mut WriteTracker) + Copy) {
        match &*self.0 {
            // These gates do not track writes.
            GateState::AlwaysOpen | GateState::AlwaysClosed | GateState::Untracked(_) => {}
            GateState::Both(first, second) => {
                first.update_trackers(change);
                second.update_trackers(change);
            }
            GateState::OpenUntil(_, writes) => change(&mut writes.lock()),
        }
    }
}

impl InFlightWrite {
    /// Records that the write was answered, with success or an error.
    pub fn complete(mut self) {
        if let Some(gate) = self.0.take() {
            gate.update_trackers(|writes| writes.in_flight -= 1);
        }
    }
}

impl Drop for InFlightWrite {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            let now = Instant::now();
            gate.update_trackers(|writes| {
                *writes = WriteTracker { in_flight: writes.in_flight - 1, abandoned_at: Some(now) }
            });
        }
    }
}

impl WriteGateHandle {
    /// Opens the gate until `until`.
    pub fn open_until(&self, until: Instant) {
        self.set(Some(until));
    }

    /// Closes the gate now.
    pub fn close(&self) {
        self.set(None);
    }

    fn set(&self, open_until: Option<Instant>) {
        if let GateState::OpenUntil(until, _) = &*self.0.0 {
            *until.lock() = open_until;
        }
    }
}

impl Drop for WriteGateHandle {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_shut_gate_is_closed_to_all_who_hold_it() {
        let gate = WriteGate::always_closed();
        assert_eq!((gate.may_write(), gate.clone().may_write()), (Err(NotLeader), Err(NotLeader)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_gate_closes_by_itself() {
        let (gate, keeper) = WriteGate::closed();
        assert_eq!(gate.may_write(), Err(NotLeader));
        keeper.open_until(Instant::now() + Duration::from_secs(15));
        tokio::time::advance(Duration::from_millis(14_999)).await;
        assert_eq!(gate.may_write(), Ok(()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(gate.may_write(), Err(NotLeader));
    }

    #[tokio::test(start_paused = true)]
    async fn two_gates_are_open_while_each_is() {
        let ((one, first), (other, second)) = (WriteGate::closed(), WriteGate::closed());
        let both = WriteGate::both(one, other);
        first.open_until(Instant::now() + Duration::from_secs(2));
        assert_eq!(both.may_write(), Err(NotLeader));
        second.open_until(Instant::now() + Duration::from_secs(5));
        assert_eq!(both.may_write(), Ok(()));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(both.may_write(), Err(NotLeader));
        first.open_until(Instant::now() + Duration::from_secs(2));
        second.close();
        assert_eq!(both.may_write(), Err(NotLeader));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_keeper_closes_the_gate() {
        let (gate, keeper) = WriteGate::closed();
        keeper.open_until(Instant::now() + Duration::from_secs(15));
        drop(keeper);
        assert_eq!(gate.may_write(), Err(NotLeader));
    }

    #[tokio::test(start_paused = true)]
    async fn a_gate_knows_what_has_no_answer() {
        let ((one, first), (other, second)) = (WriteGate::closed(), WriteGate::closed());
        let both = WriteGate::both(one.clone(), other.clone());
        let limit = Duration::from_secs(15);
        let unanswered = |gate: &WriteGate| gate.has_unanswered_write(limit);
        assert!(
            both.begin_write().is_err() && !unanswered(&both),
            "what may not be sent is not on its way"
        );
        for keeper in [&first, &second] {
            keeper.open_until(Instant::now() + Duration::from_secs(60));
        }
        let writing = both.begin_write().unwrap();
        assert!(
            unanswered(&one) && unanswered(&other) && unanswered(&both),
            "it concerns both leases"
        );
        writing.complete();
        assert!(!unanswered(&one) && !unanswered(&other) && !unanswered(&both));
        let (kept, given_up) = (one.begin_write().unwrap(), one.begin_write().unwrap());
        drop(given_up);
        kept.complete();
        assert!(unanswered(&one) && unanswered(&both) && !unanswered(&other));
        tokio::time::advance(limit).await;
        assert!(!unanswered(&one), "too long ago to be of any concern");
        drop(other.untracked().begin_write().unwrap());
        assert!(!unanswered(&other));
        drop(WriteGate::always_open().begin_write().unwrap());
    }
}
