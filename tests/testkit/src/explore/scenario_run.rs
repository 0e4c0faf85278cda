use std::future::Future;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{FaultKind, Faults};

/// A call that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// True if the call may change anything.
    pub writes: bool,
    /// Description of the call, such as method and path.
    pub what: String,
}

/// A run of a scenario: the calls that it made, and the faults of those to come.
///
/// The client of the cloud calls [`begin`](Self::begin) before each call. The code that drives the
/// provider runs inside [`alive`](Self::alive).
#[derive(Debug)]
pub struct ScenarioRun {
    faults: Faults,
    state: Mutex<RunState>,
    death: Notify,
}

#[derive(Debug, Default)]
struct RunState {
    counting: bool,
    calls: Vec<Call>,
    dead: bool,
}

impl ScenarioRun {
    /// Creates a run with these faults. It does not count calls yet.
    pub fn new(faults: Faults) -> Self {
        Self { faults, state: Mutex::default(), death: Notify::new() }
    }

    /// Returns the faults of the run.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Starts or stops counting calls. Set-up and clean-up are not counted.
    pub fn count(&self, on: bool) {
        self.state.lock().counting = on;
    }

    /// Records a call and returns its fault.
    pub fn begin(&self, call: Call) -> Option<FaultKind> {
        let mut state = self.state.lock();
        if !state.counting {
            return None;
        }
        state.calls.push(call);
        self.faults.0.get(&state.calls.len()).copied()
    }

    /// Returns the calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.state.lock().calls.clone()
    }

    /// Simulates the death of the process. Never returns.
    pub async fn die(&self) -> std::convert::Infallible {
        self.state.lock().dead = true;
        self.death.notify_one();
        std::future::pending().await
    }

    /// Runs `work`. If the process dies in the meantime, `work` is dropped and the result is
    /// `None`.
    pub async fn alive<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.death.notified() => {
                self.state.lock().dead = false;
                None
            }
            done = work => Some(done),
        }
    }
}
