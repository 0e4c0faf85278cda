//! The write gate: whether leadership can still be proved.
//!
//! Leader election opens the gate until the moment at which another process may take the Lease, counted from *before*
//! the last successful renewal was sent. Nothing has to run for the gate to close, so a process that was stopped and
//! continues finds it closed. The clock is tokio's monotonic one.
//!
//! The gate also knows which requests that went through it have no answer. What such a request makes may show only after a
//! while, so that a successor that leads at once could make it a second time; the Lease is then left to run out.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Answers whether a request that changes anything may be started now. Cheap to clone and to ask.
#[derive(Clone, Debug)]
pub struct WriteGate(Arc<Inner>);

#[derive(Debug)]
enum Inner {
    /// Without leader election there is nothing to prove.
    AlwaysOpen,
    /// Nobody can open it.
    Shut,
    /// Two leases are needed.
    Both(WriteGate, WriteGate),
    /// As the other, whose requests nobody needs to wait for.
    Uncounted(WriteGate),
    Until(Mutex<Option<Instant>>, Mutex<Writes>),
}

/// Requests that went through a gate.
#[derive(Debug, Default)]
struct Writes {
    /// Without an answer yet.
    open: usize,
    /// When one was last given up without an answer.
    given_up: Option<Instant>,
}

/// A request that may change something, on its way. Dropped without an [`answer`](Self::answered), it may have been carried
/// out or not, now or later.
#[derive(Debug)]
#[must_use = "a request is on its way as long as this lives"]
pub struct Writing(Option<WriteGate>);

/// Leadership cannot be proved any more, so nothing may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("leadership cannot be proved")]
pub struct NotLeader;

/// Opens and closes a [`WriteGate`]; held by leader election alone.
#[derive(Debug)]
pub struct GateKeeper(WriteGate);

impl WriteGate {
    /// Makes a gate that never closes, for a process that runs without leader election.
    pub fn always_open() -> Self {
        Self(Arc::new(Inner::AlwaysOpen))
    }

    /// Makes a gate that never opens, for a process that only looks.
    pub fn shut() -> Self {
        Self(Arc::new(Inner::Shut))
    }

    /// Makes a closed gate and the keeper that opens it.
    pub fn closed() -> (Self, GateKeeper) {
        let gate = Self(Arc::new(Inner::Until(Mutex::new(None), Mutex::default())));
        (gate.clone(), GateKeeper(gate))
    }

    /// Makes a gate that is open while both are.
    #[must_use]
    pub fn both(one: Self, other: Self) -> Self {
        Self(Arc::new(Inner::Both(one, other)))
    }

    /// Makes a gate that is open while this one is, for requests that the next leader would not repeat, such as events.
    #[must_use]
    pub fn uncounted(&self) -> Self {
        Self(Arc::new(Inner::Uncounted(self.clone())))
    }

    /// Checks the gate. To be called immediately before a request is sent, not once per reconcile.
    ///
    /// # Errors
    /// [`NotLeader`] when the lease has run out by the local monotonic clock, or was never held.
    pub fn may_write(&self) -> Result<(), NotLeader> {
        match &*self.0 {
            Inner::AlwaysOpen => Ok(()),
            Inner::Shut => Err(NotLeader),
            Inner::Both(one, other) => one.may_write().and_then(|()| other.may_write()),
            Inner::Uncounted(gate) => gate.may_write(),
            Inner::Until(until, _) => match *until.lock() {
                Some(until) if Instant::now() < until => Ok(()),
                _ => Err(NotLeader),
            },
        }
    }

    /// Checks the gate for a request that is sent at once, and knows it as on its way from now on.
    ///
    /// # Errors
    /// As [`may_write`](Self::may_write).
    pub fn begin(&self) -> Result<Writing, NotLeader> {
        self.may_write()?;
        self.note(|writes| writes.open += 1);
        Ok(Writing(Some(self.clone())))
    }

    /// Tells whether a request is on its way, or was given up within this time without an answer.
    pub fn is_unanswered(&self, within: Duration) -> bool {
        match &*self.0 {
            Inner::AlwaysOpen | Inner::Shut | Inner::Uncounted(_) => false,
            Inner::Both(one, other) => one.is_unanswered(within) || other.is_unanswered(within),
            Inner::Until(_, writes) => {
                let writes = writes.lock();
                writes.open > 0 || writes.given_up.is_some_and(|at| at.elapsed() < within)
            }
        }
    }

    /// Under every lease that the gate needs.
    fn note(&self, change: impl Fn(&mut Writes) + Copy) {
        match &*self.0 {
            // Without a Lease there is nobody to wait for the answers.
            Inner::AlwaysOpen | Inner::Shut | Inner::Uncounted(_) => {}
            Inner::Both(one, other) => {
                one.note(change);
                other.note(change);
            }
            Inner::Until(_, writes) => change(&mut writes.lock()),
        }
    }
}

impl Writing {
    /// Takes note of the answer, whatever it says.
    pub fn answered(mut self) {
        if let Some(gate) = self.0.take() {
            gate.note(|writes| writes.open -= 1);
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            let now = Instant::now();
            gate.note(|writes| *writes = Writes { open: writes.open - 1, given_up: Some(now) });
        }
    }
}

impl GateKeeper {
    /// Opens the gate until `until`.
    pub fn open_until(&self, until: Instant) {
        self.set(Some(until));
    }

    /// Closes the gate now.
    pub fn close(&self) {
        self.set(None);
    }

    fn set(&self, value: Option<Instant>) {
        if let Inner::Until(until, _) = &*self.0.0 {
            *until.lock() = value;
        }
    }
}

impl Drop for GateKeeper {
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
        let gate = WriteGate::shut();
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
        let unanswered = |gate: &WriteGate| gate.is_unanswered(limit);
        assert!(both.begin().is_err() && !unanswered(&both), "what may not be sent is not on its way");
        for keeper in [&first, &second] {
            keeper.open_until(Instant::now() + Duration::from_secs(60));
        }
        let writing = both.begin().unwrap();
        assert!(unanswered(&one) && unanswered(&other) && unanswered(&both), "it concerns both leases");
        writing.answered();
        assert!(!unanswered(&one) && !unanswered(&other) && !unanswered(&both));
        let (kept, given_up) = (one.begin().unwrap(), one.begin().unwrap());
        drop(given_up);
        kept.answered();
        assert!(unanswered(&one) && unanswered(&both) && !unanswered(&other));
        tokio::time::advance(limit).await;
        assert!(!unanswered(&one), "too long ago to be of any concern");
        drop(other.uncounted().begin().unwrap());
        assert!(!unanswered(&other));
        drop(WriteGate::always_open().begin().unwrap());
    }
}
