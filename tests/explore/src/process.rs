//! One run of the manager, as far as faults are concerned: it lives or not, and reaches the API
//! server or not.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

/// Part of the user agent of every process under test.
pub const AGENT: &str = "ccm-explored";

/// A process under test. One that has crashed gets no further than where it is: nothing that it
/// asks for happens, and no answer reaches it.
#[derive(Debug)]
pub struct Process {
    /// Counted from 1 in the order of starts.
    pub number: usize,
    alive: watch::Sender<bool>,
    state: Mutex<ProcessState>,
}

#[derive(Debug, Default)]
struct ProcessState {
    /// Until when it does not reach the API server.
    cut_off: Option<Instant>,
    lease: Option<LeaseTerm>,
}

/// The lease as one process holds it.
#[derive(Clone, Debug)]
pub struct LeaseTerm {
    /// Identity in the record.
    pub identity: String,
    /// When the last renewal that succeeded was sent.
    pub renewed: Instant,
}

impl Process {
    /// A process that lives.
    pub fn new(number: usize) -> Self {
        Self {
            number,
            alive: watch::Sender::new(true),
            state: Mutex::default(),
        }
    }

    /// Its user agent.
    pub fn agent(&self) -> String {
        format!("{AGENT}/{}", self.number)
    }

    /// Ends it here and now.
    pub fn crash(&self) {
        self.alive.send_replace(false);
    }

    /// Resolves when it has crashed.
    pub async fn crashed(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.alive.subscribe().wait_for(|alive| !*alive).await;
    }

    /// Whether it lives.
    pub fn is_alive(&self) -> bool {
        *self.alive.borrow()
    }

    /// Resolves at once for a process that lives, and never for another.
    pub async fn lives(&self) {
        if !self.is_alive() {
            std::future::pending::<()>().await;
        }
    }

    /// Separates it from the API server for so long.
    pub fn cut_off(&self, time: Duration) {
        self.state.lock().cut_off = Some(Instant::now() + time);
    }

    /// Whether it does not reach the API server.
    pub fn is_cut_off(&self) -> bool {
        self.state
            .lock()
            .cut_off
            .is_some_and(|until| until > Instant::now())
    }

    /// Waits until it reaches the API server.
    pub async fn reaches(&self) {
        let until = self.state.lock().cut_off;
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
    }

    /// Notes a renewal that succeeded.
    pub fn renewed(&self, tenure: LeaseTerm) {
        self.state.lock().lease = Some(tenure);
    }

    /// The lease, if it ever held it.
    pub fn tenure(&self) -> Option<LeaseTerm> {
        self.state.lock().lease.clone()
    }
}
