//! A fault of every kind at every request: what the provider is asked for is reached in the end, as if nothing had been, with
//! nothing left behind, nothing of others changed, and nothing out of service meanwhile that is to stay.

mod balancers;
mod instances;
mod routes;
mod world;

use std::io::Write as _;

use ccm_testkit::explore::{Explorer, Scenario};

/// Explores scenarios and tells how many faults there were.
async fn explore<S: Scenario>(scenarios: impl IntoIterator<Item = S>) {
    let explorer = Explorer::of_environment().unwrap();
    let mut wrong = Vec::new();
    for scenario in scenarios {
        let report = explorer.explore(&scenario).await;
        // Past the capture of tests, so that it is seen of those that pass as well.
        writeln!(std::io::stderr(), "{report}").unwrap();
        if !report.passed() {
            wrong.push(report.to_string());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
