//! The write gate checks before each write that leadership can still be proved.
//!
//! Leader election opens the gate until the time at which another process may acquire the Lease,
//! counted from *before* the last successful renewal was sent. No code has to run for the gate to
//! close, so a process that was stopped and continues finds it closed. The clock is tokio's
//! monotonic one.
//!
//! The gate also tracks the requests that went through it and have no answer. The effect of such a
//! request may show only after a while, and a successor that leads at once could repeat it. In that
//! case the Lease is left to expire.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Says whether a write may be sent now. Cheap to clone and to check.
#[derive(Clone, Debug)]
pub struct WriteGate(Arc<GateState>);

#[derive(Debug)]
enum GateState {
    /// Without leader election no proof is needed.
    AlwaysOpen,
    /// Never opens.
    AlwaysClosed,
    /// Open while both gates are, for writes that need two leases.
    Both(WriteGate, WriteGate),
    /// Open while the other gate is, but does not track its requests.
    Untracked(WriteGate),
    OpenUntil(Mutex<Option<Instant>>, Mutex<WriteTracker>),
}

/// Tracks the requests that went through a gate.
#[derive(Debug, Default)]
struct WriteTracker {
    /// Number of requests in flight.
    in_flight: usize,
    /// When a request was last given up without an answer.
    abandoned_at: Option<Instant>,
}

/// A write in flight. If it is dropped without [`complete`](Self::complete), the write may or may
/// not take effect, now or later.
#[derive(Debug)]
#[must_use = "a request is on its way as long as this lives"]
pub struct InFlightWrite(Option<WriteGate>);

/// Leadership cannot be proved, so nothing may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("leadership cannot be proved")]
pub struct NotLeader;

/// Opens and closes a [`WriteGate`]. Only leader election has it.
#[derive(Debug)]
pub struct WriteGateHandle(WriteGate);

impl WriteGate {
    /// Makes a gate that never closes, for a process that runs without leader election.
    pub fn always_open() -> Self {
        Self(Arc::new(GateState::AlwaysOpen))
    }

    /// Makes a gate that never opens, for a process that must not write.
    pub fn always_closed() -> Self {
        Self(Arc::new(GateState::AlwaysClosed))
    }

    /// Makes a closed gate and the handle that opens it.
    pub fn closed() -> (Self, WriteGateHandle) {
        let gate = Self(Arc::new(GateState::OpenUntil(Mutex::new(None), Mutex::default())));
        (gate.clone(), WriteGateHandle(gate))
    }

    /// Makes a gate that is open while both gates are.
    #[must_use]
    pub fn both(one: Self, other: Self) -> Self {
        Self(Arc::new(GateState::Both(one, other)))
    }

    /// Makes a gate that is open while this one is and does not track requests. For requests that
    /// the next leader would not repeat, such as events.
    #[must_use]
    pub fn untracked(&self) -> Self {
        Self(Arc::new(GateState::Untracked(self.clone())))
    }

    /// Checks the gate. Call this immediately before each request is sent, not once per reconcile.
    ///
    /// # Errors
    /// [`NotLeader`] when the lease was never held, or has expired by the local monotonic clock.
    pub fn may_write(&self) -> Result<(), NotLeader> {
        match &*self.0 {
            GateState::AlwaysOpen => Ok(()),
            GateState::AlwaysClosed => Err(NotLeader),
            GateState::Both(one, other) => one.may_write().and_then(|()| other.may_write()),
            GateState::Untracked(gate) => gate.may_write(),
            GateState::OpenUntil(until, _) => match *until.lock() {
                Some(until) if Instant::now() < until => Ok(()),
                _ => Err(NotLeader),
            },
        }
    }

    /// Checks the gate for a request that is sent at once, and tracks it as in flight.
    ///
    /// # Errors
    /// As [`may_write`](Self::may_write).
    pub fn begin_write(&self) -> Result<InFlightWrite, NotLeader> {
        self.may_write()?;
        self.track(|writes| writes.in_flight += 1);
        Ok(InFlightWrite(Some(self.clone())))
    }

    /// Returns true if a request is in flight, or was given up without an answer within this time.
    pub fn has_unanswered_write(&self, within: Duration) -> bool {
        match &*self.0 {
            GateState::AlwaysOpen | GateState::AlwaysClosed | GateState::Untracked(_) => false,
            GateState::Both(one, other) => {
                one.has_unanswered_write(within) || other.has_unanswered_write(within)
            }
            GateState::OpenUntil(_, writes) => {
                let writes = writes.lock();
                writes.in_flight > 0 || writes.abandoned_at.is_some_and(|at| at.elapsed() < within)
            }
        }
    }

    /// Changes the trackers of all leases that the gate needs.
    fn track(&self, change: impl Fn(&mut WriteTracker) + Copy) {
        match &*self.0 {
            // Nobody waits for the answers of these requests.
            GateState::AlwaysOpen | GateState::AlwaysClosed | GateState::Untracked(_) => {}
            GateState::Both(one, other) => {
                one.track(change);
                other.track(change);
            }
            GateState::OpenUntil(_, writes) => change(&mut writes.lock()),
        }
    }
}

impl InFlightWrite {
    /// Records that the request was answered, with success or an error.
    pub fn complete(mut self) {
        if let Some(gate) = self.0.take() {
            gate.track(|writes| writes.in_flight -= 1);
        }
    }
}

impl Drop for InFlightWrite {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            let now = Instant::now();
            gate.track(|writes| {
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

    fn set(&self, value: Option<Instant>) {
        if let GateState::OpenUntil(until, _) = &*self.0.0 {
            *until.lock() = value;
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
