//! Holds calls of the cloud, so that something can happen in their midst.

use std::sync::Arc;

use async_trait::async_trait;
use ccm_e2e::scenario::{SOON, Scenario};
use ccm_mock::cloud::{CallHook, Operation};
use tokio::sync::watch;

/// Where a call is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// Before it has its effect.
    Arrival,
    /// After its effect, before its answer.
    Answer,
}

/// Holds every call of one operation until it is opened.
pub(crate) struct CallBreakpoint {
    operation: Operation,
    at: At,
    held: watch::Sender<usize>,
    open: watch::Sender<bool>,
}

impl CallBreakpoint {
    /// Shuts a gate in front of the scenario's cloud, in place of the last one.
    pub(crate) fn shut(s: &Scenario, operation: Operation, at: At) -> Arc<Self> {
        let gate = Self {
            operation,
            at,
            held: watch::Sender::new(0),
            open: watch::Sender::new(false),
        };
        let gate = Arc::new(gate);
        s.cloud.set_hook(Some(gate.clone()));
        gate
    }

    /// Waits until a call is held.
    pub(crate) async fn holds(&self) -> anyhow::Result<()> {
        tokio::time::timeout(SOON, self.held.subscribe().wait_for(|held| *held > 0)).await??;
        Ok(())
    }

    /// Lets all calls pass from now on.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    async fn pass(&self, operation: Operation, at: At) {
        if self.operation == operation && self.at == at {
            self.held.send_modify(|held| *held += 1);
            // The sender lives as long as this call.
            let _ = self.open.subscribe().wait_for(|open| *open).await;
        }
    }
}

#[async_trait]
impl CallHook for CallBreakpoint {
    async fn before(&self, _: u64, operation: Operation) {
        self.pass(operation, At::Arrival).await;
    }

    async fn after(&self, _: u64, operation: Operation) {
        self.pass(operation, At::Answer).await;
    }
}
