//! The controllers, and the process with its surroundings, in whole clusters: on the embedded API
//! server in the first tier, on real ones in the second.
//!
//! A case is called `<server>::<subject>::<what must hold>`; a filter such as `nodes::` chooses the
//! subject. Each subject has a module with `cases()`.

mod call_breakpoint;
#[allow(dead_code, reason = "other suites use the rest")]
#[path = "../support/commands.rs"]
mod guides;
#[allow(dead_code, reason = "other suites use the rest")]
#[path = "../support/helm.rs"]
mod helm;
mod install;
mod nodes;
mod operations;
mod run;
mod services;

use std::process::ExitCode;

use run::Case;

fn main() -> anyhow::Result<ExitCode> {
    run::main(&cases())
}

/// The longest subjects first, so that none runs alone at the end.
fn cases() -> Vec<Case> {
    let subjects = [
        ("services", services::cases()),
        ("operations", operations::cases()),
        ("nodes", nodes::cases()),
        ("install", install::cases()),
    ];
    let named = |(subject, cases): (&'static str, Vec<Case>)| {
        cases.into_iter().map(move |case| Case { subject, ..case })
    };
    subjects.into_iter().flat_map(named).collect()
}
