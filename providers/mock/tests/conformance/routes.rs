//! The kit's rules for routes.

use std::sync::Arc;

use ccm_core::provider::CloudProvider;
use ccm_mock::CloudConfig;
use ccm_testkit::conformance::{ROUTE_RULES, Report, check_routes};

use crate::{
    adapter::MockAdapter,
    route_mutants::{Bug, MutantProvider},
};

/// Runs the kit on the mock with a bug in it, in virtual time.
async fn check(bug: Option<Bug>) -> Report {
    let stage = MockAdapter::new(CloudConfig::default());
    let make = {
        let stage = stage.clone();
        move || {
            let provider = stage.provider();
            async move {
                Ok(match bug {
                    Some(bug) => {
                        Arc::new(MutantProvider::new(provider, bug)) as Arc<dyn CloudProvider>
                    }
                    None => Arc::new(provider),
                })
            }
        }
    };
    let report = check_routes(make, &stage).await;
    assert_eq!(report.cases().len(), ROUTE_RULES.len());
    report
}

#[tokio::test(start_paused = true)]
async fn the_mock_keeps_every_rule() {
    let report = check(None).await;
    assert!(crate::all_kept(&report), "{report}");
}

#[tokio::test(start_paused = true)]
async fn each_planted_bug_breaks_exactly_its_rules() {
    let mut wrong = Vec::new();
    for (bug, rules) in Bug::ALL {
        let report = check(Some(bug)).await;
        let broken: Vec<_> = report.failures().map(|case| case.rule).collect();
        if broken != rules {
            wrong.push(format!("{bug:?}: expected {rules:?}\n{report}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
