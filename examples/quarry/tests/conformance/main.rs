//! The provider keeps every rule of the conformance kit, on a cloud whose changes take their time.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod adapter;
mod cloud;
mod mutants;

use ccm_testkit::conformance::{Report, check_instances, check_load_balancers, check_routes};

use crate::adapter::QuarryAdapter;

/// The number of servers or load balancers on a page where the kit makes few of a kind, and where it
/// makes some hundred.
const FEW: usize = 3;
const MANY: usize = 25;

const EXCUSES: [(&str, &str); 3] = [
    ("both-families", "Quarry has one address family"),
    ("both-families-served", "Quarry has one address family"),
    ("never-more-open", "no load balancer of Quarry restricts its clients"),
];

fn assert_kept(report: Report) {
    let report = report.excuse(&EXCUSES);
    assert!(report.passed(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn instances() {
    let stage = QuarryAdapter::new(FEW);
    let make = stage.clone();
    let report = check_instances(move || std::future::ready(make.provider()), &stage).await;
    assert_kept(report);
}

#[tokio::test(start_paused = true)]
async fn routes() {
    let stage = QuarryAdapter::new(MANY);
    let make = stage.clone();
    let report = check_routes(move || std::future::ready(make.provider()), &stage).await;
    assert_kept(report);
}

#[tokio::test(start_paused = true)]
async fn load_balancers() {
    let stage = QuarryAdapter::new(FEW);
    let make = stage.clone();
    let report = check_load_balancers(move || std::future::ready(make.provider()), &stage).await;
    assert_kept(report);
}
