//! The kit's rules for load balancers.

use std::sync::Arc;

use ccm_core::provider::CloudProvider;
use ccm_testkit::conformance::{LOAD_BALANCER_RULES, Outcome, Report, check_load_balancers};

use crate::stage::Stage;

async fn check() -> Report {
    let stage = Stage::new();
    let make = {
        let stage = stage.clone();
        move || {
            let provider = stage.provider();
            async move { Ok(Arc::new(provider) as Arc<dyn CloudProvider>) }
        }
    };
    let report = check_load_balancers(make, &stage).await;
    assert_eq!(report.cases().len(), LOAD_BALANCER_RULES.len());
    report
}

#[tokio::test(start_paused = true)]
async fn the_mock_keeps_every_rule() {
    let report = check().await;
    assert!(report.cases().iter().all(|case| case.outcome == Outcome::Passed), "{report}");
}
