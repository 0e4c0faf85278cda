use std::future::Future;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{FaultKind, Faults};

/// A call as it was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Whether it may change anything.
    pub writes: bool,
    /// What it is, such as method and path.
    pub what: String,
}

/// One run of a scenario: which calls it has made, and what happens to those to come.
///
/// The way to the cloud asks [`begin`](Self::begin) what happens to each call; whoever drives the
/// provider does so within [`alive`](Self::alive).
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
    /// Makes one with faults to come. Nothing is counted yet.
    pub fn new(faults: Faults) -> Self {
        Self { faults, state: Mutex::default(), death: Notify::new() }
    }

    /// Returns the faults to come.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Counts calls from now on, or no longer: what is made ready before, and taken away after.
    pub fn count(&self, on: bool) {
        self.state.lock().counting = on;
    }

    /// Notes that a call begins, and tells what is to happen to it.
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

    /// The process dies here: never returns.
    pub async fn die(&self) -> std::convert::Infallible {
        self.state.lock().dead = true;
        self.death.notify_one();
        std::future::pending().await
    }

    /// Does something unless the process dies meanwhile: then it is dropped, and the answer is
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
