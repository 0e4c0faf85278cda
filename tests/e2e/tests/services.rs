//! Services, routes and pod CIDRs, on every server.
//!
//! A cloud-controller-manager serves the Services of the whole cluster. So each scenario has an embedded server of its
//! own, and a real one for itself while it runs.

#[path = "services/crash.rs"]
mod crash;
#[path = "services/finalizers.rs"]
mod finalizers;
#[path = "services/gate.rs"]
mod gate;
#[path = "services/ipam.rs"]
mod ipam;
#[path = "services/lifecycle.rs"]
mod lifecycle;
#[path = "services/routes.rs"]
mod routes;
#[path = "services/rules.rs"]
mod rules;
#[path = "support/run.rs"]
mod run;
#[path = "services/scale.rs"]
mod scale;

use std::process::ExitCode;

use ccm_testkit::apiserver::Options;
use run::{Case, EVERYWHERE};

/// Flags of most scenarios: the periodic update of nodes is another suite's subject.
const FLAGS: [&str; 1] = ["--node-status-update-frequency=10m"];

fn main() -> anyhow::Result<ExitCode> {
    run::main(&cases())
}

fn cases() -> Vec<Case> {
    // The longest first, so that none runs alone at the end.
    let mut cases = crash::cases();
    cases.extend(scale::cases());
    cases.extend(lifecycle::cases());
    cases.extend(finalizers::cases());
    cases.extend(rules::cases());
    cases.extend(routes::cases());
    cases.extend(ipam::cases());
    // By turns on two real servers, which halves the time.
    let alone = |(turn, case)| Case {
        disruptive: true,
        real: turn,
        own_server: Some(|| Options { log_limit: 200_000, ..Options::default() }),
        ..case
    };
    cases.into_iter().enumerate().map(alone).collect()
}
