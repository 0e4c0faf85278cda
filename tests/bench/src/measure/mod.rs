//! What can be measured. Each function is one run on a control plane of its own.

mod backends;
mod converge;
mod deletion;
mod failover;
mod idle;
mod memory;
mod restart;

use clap::ValueEnum;

use crate::{
    metrics::Measurements,
    scenario::{Outage, Scenario, Size},
    subject::BenchmarkedManager,
};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    /// From nothing done to everything done: time, processor time, memory, requests and calls.
    Converge,
    /// What a restart costs when nothing has changed.
    Restart,
    /// From a node's exclusion to the last load balancer without it.
    Backends,
    /// From the end of an instance to the end of its Node.
    Deletion,
    /// From SIGTERM to the leader to the work of the next one.
    Failover,
    /// What a leader writes that has nothing to do.
    Idle,
    /// What a cached node costs, on the embedded API server.
    Memory,
}

impl Measure {
    /// What is measured when nothing is said.
    pub(crate) fn default_sizes(self) -> Vec<Size> {
        let size = |nodes, services| Size { nodes, services };
        match self {
            Self::Converge => vec![size(1_000, 300), size(3_000, 500)],
            Self::Restart => vec![size(3_000, 500)],
            Self::Backends => vec![size(300, 100)],
            Self::Deletion => vec![size(1_000, 0)],
            Self::Failover => vec![size(200, 20)],
            Self::Idle => vec![size(1_000, 300)],
            Self::Memory => vec![size(20_000, 0)],
        }
    }

    /// Runs of each manager when nothing is said. Latencies have many samples in one run already.
    pub(crate) fn default_runs(self) -> usize {
        if self == Self::Converge { 3 } else { 1 }
    }

    /// Runs once.
    pub(crate) async fn run(
        self,
        scenario: &Scenario,
        contender: &BenchmarkedManager,
        outage: Option<Outage>,
    ) -> anyhow::Result<Measurements> {
        match self {
            Self::Converge => converge::run(scenario, contender, outage).await,
            Self::Restart => restart::run(scenario, contender).await,
            Self::Backends => backends::run(scenario, contender).await,
            Self::Deletion => deletion::run(scenario, contender).await,
            Self::Failover => failover::run(scenario, contender).await,
            Self::Idle => idle::run(scenario, contender).await,
            Self::Memory => memory::run(scenario, contender).await,
        }
    }
}

/// Bytes as tables show them.
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
