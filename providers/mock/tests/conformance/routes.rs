//! The kit's rules for routes.

use std::sync::Arc;

use ccm_core::provider::CloudProvider;
use ccm_testkit::conformance::{Outcome, ROUTE_RULES, Report, check_routes};

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
    let report = check_routes(make, &stage).await;
    assert_eq!(report.cases().len(), ROUTE_RULES.len());
    report
}

#[tokio::test(start_paused = true)]
async fn the_mock_keeps_every_rule() {
    let report = check().await;
    assert!(report.cases().iter().all(|case| case.outcome == Outcome::Passed), "{report}");
}
