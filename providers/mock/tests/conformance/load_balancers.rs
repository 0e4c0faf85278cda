//! The kit's rules for load balancers.

use std::{sync::Arc, time::Duration};

use ccm_core::provider::CloudProvider;
use ccm_mock::CloudConfig;
use ccm_testkit::conformance::{LOAD_BALANCER_RULES, Report, check_load_balancers};

use crate::{
    adapter::MockAdapter,
    load_balancer_mutants::{Bug, MutantProvider},
};

/// Runs the kit on the mock with a bug in it, in virtual time.
async fn check(config: CloudConfig, bug: Option<Bug>) -> Report {
    let stage = MockAdapter::new(config);
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
    let report = check_load_balancers(make, &stage).await;
    assert_eq!(report.cases().len(), LOAD_BALANCER_RULES.len());
    report
}

#[tokio::test(start_paused = true)]
async fn the_mock_keeps_every_rule() {
    let report = check(CloudConfig::default(), None).await;
    assert!(crate::all_kept(&report), "{report}");
}

/// Every change of a load balancer meets one that is still being made or deleted.
#[tokio::test(start_paused = true)]
async fn the_mock_keeps_every_rule_where_load_balancers_take_their_time() {
    let config = CloudConfig {
        load_balancer_activation: Duration::from_secs(40),
        load_balancer_deletion: Duration::from_secs(20),
        ..CloudConfig::default()
    };
    let report = check(config, None).await;
    assert!(crate::all_kept(&report), "{report}");
}

#[tokio::test(start_paused = true)]
async fn each_planted_bug_breaks_exactly_its_rules() {
    let mut wrong = Vec::new();
    for (bug, rules) in Bug::ALL {
        let report = check(CloudConfig::default(), Some(bug)).await;
        let broken: Vec<_> = report.failures().map(|case| case.rule).collect();
        if broken != rules {
            wrong.push(format!("{bug:?}: expected {rules:?}\n{report}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
