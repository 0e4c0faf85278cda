//! The provider keeps every rule of the conformance kit, on a cloud whose changes take their time.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod adapter;
mod cloud;
mod mutants;

use ccm_testkit::conformance::{
    Outcome, Report, check_instances, check_load_balancers, check_routes,
};

use crate::adapter::QuarryAdapter;

/// The number of servers or load balancers on a page where the kit makes few of a kind, and where it
/// makes some hundred.
const FEW: usize = 3;
const MANY: usize = 25;

/// Quarry has one address family, and no load balancer restricts its clients.
const NOT_IN_QUARRY: [&str; 3] = ["both-families", "both-families-served", "never-more-open"];

fn all_passed(report: &Report) {
    let kept = report.cases().iter().all(|case| match case.outcome {
        Outcome::Passed => !NOT_IN_QUARRY.contains(&case.rule),
        Outcome::Unsupported => NOT_IN_QUARRY.contains(&case.rule),
        _ => false,
    });
    assert!(kept, "{report}");
}

#[tokio::test(start_paused = true)]
async fn instances() {
    let stage = QuarryAdapter::new(FEW);
    let make = stage.clone();
    let report = check_instances(move || std::future::ready(make.provider()), &stage).await;
    all_passed(&report);
}

#[tokio::test(start_paused = true)]
async fn routes() {
    let stage = QuarryAdapter::new(MANY);
    let make = stage.clone();
    let report = check_routes(move || std::future::ready(make.provider()), &stage).await;
    all_passed(&report);
}

#[tokio::test(start_paused = true)]
async fn load_balancers() {
    let stage = QuarryAdapter::new(FEW);
    let make = stage.clone();
    let report = check_load_balancers(move || std::future::ready(make.provider()), &stage).await;
    all_passed(&report);
}
