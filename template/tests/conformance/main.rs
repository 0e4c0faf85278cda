//! The provider keeps every rule of the conformance kit.

mod stage;

use ccm_testkit::conformance::{Outcome, Report, check_instances};

use crate::stage::Stage;

fn all_passed(report: &Report) {
    assert!(report.cases().iter().all(|case| case.outcome == Outcome::Passed), "{report}");
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "not written yet")] // Take this line away to see what is missing.
async fn instances() {
    let stage = Stage;
    let report = check_instances(move || std::future::ready(stage.provider()), &stage).await;
    all_passed(&report);
}
