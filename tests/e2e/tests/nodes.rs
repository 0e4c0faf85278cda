//! The node controllers, on every server.

#[path = "nodes/deletion.rs"]
mod deletion;
#[path = "nodes/initialization.rs"]
mod initialization;
#[path = "nodes/recovery.rs"]
mod recovery;
#[path = "nodes/replicas.rs"]
mod replicas;
#[path = "nodes/routes.rs"]
mod routes;
#[path = "support/run.rs"]
mod run;
#[path = "nodes/upkeep.rs"]
mod upkeep;

use std::process::ExitCode;

use ccm_e2e::server::Kind;
use run::{Case, EVERYWHERE};

/// The real server with WatchList off as well.
const EVERYWHERE_AND_WITHOUT_WATCHLIST: &[Kind] = &[Kind::Embedded, Kind::Real, Kind::RealWithoutWatchList];

fn main() -> anyhow::Result<ExitCode> {
    run::main(&cases())
}

fn cases() -> Vec<Case> {
    let mut cases = initialization::cases();
    cases.extend(deletion::cases());
    cases.extend(upkeep::cases());
    cases.extend(routes::cases());
    cases.extend(replicas::cases());
    // Last, because some of them need a server for themselves.
    cases.extend(recovery::cases());
    cases
}
