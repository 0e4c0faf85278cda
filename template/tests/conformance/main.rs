//! The provider keeps every rule of the conformance kit.

mod adapter;

use ccm_testkit::conformance::{Outcome, Report, check_instances};

use crate::adapter::AcmeAdapter;

fn all_passed(report: &Report) {
    assert!(report.cases().iter().all(|case| case.outcome == Outcome::Passed), "{report}");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "not written yet")] // Take this line away to see what is missing.
async fn instances() {
    let adapter = AcmeAdapter;
    let report = check_instances(move || std::future::ready(adapter.provider()), &adapter).await;
    all_passed(&report);
}
