//! The node controllers, on every server.

#[path = "nodes/deletion.rs"]
mod deletion;
#[path = "nodes/initialization.rs"]
mod initialization;
#[path = "support/run.rs"]
mod run;
#[path = "nodes/upkeep.rs"]
mod upkeep;

use std::process::ExitCode;

use run::{Case, EVERYWHERE, EVERYWHERE_AND_WITHOUT_WATCHLIST};

fn main() -> anyhow::Result<ExitCode> {
    run::main(&cases())
}

fn cases() -> Vec<Case> {
    let mut cases = initialization::cases();
    cases.extend(deletion::cases());
    cases.extend(upkeep::cases());
    cases
}
