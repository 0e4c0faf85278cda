//! What an operator installs: the manifests of `rbac/` and the Helm chart, on a real control plane.
//!
//! Each subject has a module with `cases()`, one line each in the list below.

#[path = "install/chart.rs"]
mod chart;
#[allow(dead_code, reason = "other suites use the rest")]
#[path = "support/helm.rs"]
mod helm;
#[path = "install/rbac.rs"]
mod rbac;
#[allow(dead_code, reason = "other suites use the rest")]
#[path = "support/run.rs"]
mod run;

use std::process::ExitCode;

use run::Case;

fn main() -> anyhow::Result<ExitCode> {
    run::main(&cases())
}

/// The longest subjects first, so that none runs alone at the end; by turns on two real servers.
fn cases() -> Vec<Case> {
    let subjects: Vec<Vec<Case>> = vec![rbac::cases(), chart::cases()];
    let by_turns = |(turn, case)| Case { real: turn, disruptive: true, ..case };
    subjects.into_iter().flatten().enumerate().map(by_turns).collect()
}
