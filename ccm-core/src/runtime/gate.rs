//! The write gate: whether leadership can still be proved.
//!
//! Leader election opens the gate until the moment at which another process may take the Lease, counted from *before*
//! the last successful renewal was sent. Nothing has to run for the gate to close, so a process that was stopped and
//! continues finds it closed. The clock is tokio's monotonic one.

use std::sync::Arc;

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
    Until(Mutex<Option<Instant>>),
}

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
        let gate = Self(Arc::new(Inner::Until(Mutex::new(None))));
        (gate.clone(), GateKeeper(gate))
    }

    /// Makes a gate that is open while both are.
    #[must_use]
    pub fn both(one: Self, other: Self) -> Self {
        Self(Arc::new(Inner::Both(one, other)))
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
            Inner::Until(until) => match *until.lock() {
                Some(until) if Instant::now() < until => Ok(()),
                _ => Err(NotLeader),
            },
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
        if let Inner::Until(until) = &*self.0.0 {
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
}
