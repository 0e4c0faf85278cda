//! The provider keeps every rule of the conformance kit.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod adapter;
mod cloud;
mod mutants;
mod sockets;

use std::time::Duration;

use ccm_testkit::conformance::{
    Outcome, Report, check_instances, check_load_balancers, check_routes,
};

use crate::adapter::MeadowAdapter;

/// Things on a page where the kit makes few of a kind, and where it makes some hundred.
const FEW: usize = 3;
const MANY: usize = 50;

/// No load balancer of Meadow has two address families, and what is answered is done.
const NOT_IN_MEADOW: [&str; 3] = ["both-families-served", "slow-change", "late-failure"];

fn all_passed(report: &Report) {
    let excused = |rule: &str, outcome: &Outcome| {
        NOT_IN_MEADOW.contains(&rule) && *outcome == Outcome::Unsupported
    };
    let kept = report
        .cases()
        .iter()
        .all(|case| case.outcome == Outcome::Passed || excused(case.rule, &case.outcome));
    assert!(kept, "{report}");
}

#[tokio::test(start_paused = true)]
async fn instances() {
    let stage = MeadowAdapter::new(FEW);
    let make = stage.clone();
    let report = check_instances(move || std::future::ready(make.provider()), &stage).await;
    all_passed(&report);
}

#[tokio::test(start_paused = true)]
async fn routes() {
    let stage = MeadowAdapter::new(MANY);
    let make = stage.clone();
    let report = check_routes(move || std::future::ready(make.provider()), &stage).await;
    all_passed(&report);
}

#[tokio::test(start_paused = true)]
async fn load_balancers() {
    let stage = MeadowAdapter::new(FEW);
    let make = stage.clone();
    let report = check_load_balancers(move || std::future::ready(make.provider()), &stage).await;
    all_passed(&report);
}

/// Every change meets a balancer that is still being made or deleted.
#[tokio::test(start_paused = true)]
async fn load_balancers_that_take_their_time() {
    let stage = MeadowAdapter::new(FEW).taking(Duration::from_secs(40));
    let make = stage.clone();
    let report = check_load_balancers(move || std::future::ready(make.provider()), &stage).await;
    all_passed(&report);
}
