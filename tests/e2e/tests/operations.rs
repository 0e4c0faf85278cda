//! The process in its surroundings: health and metrics, elections beside Go's client, credentials, shadow mode, takeover.
//!
//! Each subject has a module with `cases()`, one line each in the list below. Most need a real control plane, and most
//! need it for themselves, because a cloud-controller-manager serves the whole cluster.

#[path = "operations/auth.rs"]
mod auth;
#[path = "operations/credentials.rs"]
mod credentials;
#[path = "operations/election.rs"]
mod election;
#[path = "services/gate.rs"]
mod gate;
#[path = "operations/metrics.rs"]
mod metrics;
#[path = "operations/migration.rs"]
mod migration;
#[allow(dead_code, reason = "other suites use the rest")]
#[path = "support/run.rs"]
mod run;
#[path = "operations/serving.rs"]
mod serving;
#[path = "operations/shadow.rs"]
mod shadow;
#[path = "operations/takeover.rs"]
mod takeover;

use std::process::ExitCode;

use run::Case;

fn main() -> anyhow::Result<ExitCode> {
    run::main(&cases())
}

/// The longest subjects first, so that none runs alone at the end; by turns on two real servers.
fn cases() -> Vec<Case> {
    let subjects: Vec<Vec<Case>> = vec![
        takeover::cases(),
        shadow::cases(),
        election::cases(),
        migration::cases(),
        credentials::cases(),
        serving::cases(),
        auth::cases(),
        metrics::cases(),
    ];
    let by_turns = |(turn, case)| Case { real: turn, disruptive: true, ..case };
    subjects.into_iter().flatten().enumerate().map(by_turns).collect()
}
