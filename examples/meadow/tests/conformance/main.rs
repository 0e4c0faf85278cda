//! The provider keeps every rule of the conformance kit.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod adapter;
mod cloud;
mod mutants;
mod sockets;

use std::time::Duration;

use ccm_testkit::conformance::{Report, check_instances, check_load_balancers, check_routes};

use crate::adapter::MeadowAdapter;

/// Things on a page where the kit makes few of a kind, and where it makes some hundred.
const FEW: usize = 3;
const MANY: usize = 50;

const EXCUSES: [(&str, &str); 3] = [
    ("both-families-served", "no load balancer of Meadow has two address families"),
    ("slow-change", "what Meadow answers is done"),
    ("late-failure", "what Meadow answers is done"),
];

fn assert_kept(report: Report) {
    let report = report.excuse(&EXCUSES);
    assert!(report.passed(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn instances() {
    let stage = MeadowAdapter::new(FEW);
    let make = stage.clone();
    let report = check_instances(move || std::future::ready(make.provider()), &stage).await;
    assert_kept(report);
}

#[tokio::test(start_paused = true)]
async fn routes() {
    let stage = MeadowAdapter::new(MANY);
    let make = stage.clone();
    let report = check_routes(move || std::future::ready(make.provider()), &stage).await;
    assert_kept(report);
}

#[tokio::test(start_paused = true)]
async fn load_balancers() {
    let stage = MeadowAdapter::new(FEW);
    let make = stage.clone();
    let report = check_load_balancers(move || std::future::ready(make.provider()), &stage).await;
    assert_kept(report);
}

/// Every change meets a balancer that is still being made or deleted.
#[tokio::test(start_paused = true)]
async fn load_balancers_that_take_their_time() {
    let stage = MeadowAdapter::new(FEW).taking(Duration::from_secs(40));
    let make = stage.clone();
    let report = check_load_balancers(move || std::future::ready(make.provider()), &stage).await;
    assert_kept(report);
}
