//! The mock keeps the rules of the provider conformance kit, those for instances also over
//! `endpoint`; each planted bug breaks exactly the rules that are about it. And what others start
//! ends as it should: the kit's runner, and the mock's own program.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test, and one planted bug panics"
)]

mod adapter;
mod cloud_command;
mod instance_mutants;
mod load_balancer_mutants;
mod load_balancers;
mod misbehaving;
mod route_mutants;
mod routes;
mod runner;
mod scripted;
mod separate_process;
mod start_mutants;
mod time_limits;

use std::sync::Arc;

use ccm_core::provider::CloudProvider;
use ccm_mock::{CloudConfig, MockCloud, MockProvider, bind_admin, serve_admin};
use ccm_testkit::conformance::{
    INSTANCE_RULES, LOAD_BALANCER_RULES, Outcome, ROUTE_RULES, Report, Rule, check_instances,
};
use tokio_util::sync::CancellationToken;

use instance_mutants::{Bug, MutantProvider};
use scripted::Scripted;

fn cloud() -> MockCloud {
    MockCloud::new(&CloudConfig::default()).unwrap()
}

/// Runs the kit on the mock with a bug in it, in virtual time.
async fn check_planted(bug: Option<Bug>) -> Report {
    let cloud = cloud();
    let make = {
        let cloud = cloud.clone();
        move || {
            let provider = MockProvider::new_in_process(cloud.clone());
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
    let report = check_instances(make, &Scripted(cloud.clone())).await;
    assert!(cloud.instances().is_empty(), "the kit leaves nothing behind: {:?}", cloud.instances());
    report
}

#[tokio::test(start_paused = true)]
async fn the_mock_keeps_every_rule() {
    let report = check_planted(None).await;
    assert!(report.passed(), "{report}");
    assert!(
        report
            .cases()
            .iter()
            .all(|case| case.outcome == Outcome::Passed),
        "{report}"
    );
    assert!(
        report
            .junit()
            .contains("failures=\"0\" errors=\"0\" skipped=\"0\""),
        "{}",
        report.junit()
    );
}

#[tokio::test]
async fn the_mock_keeps_every_rule_at_an_endpoint() {
    let cloud = cloud();
    let listener = bind_admin(&":0".parse().unwrap()).await.unwrap();
    let endpoint = listener.local_addr().unwrap().to_string().parse().unwrap();
    let cancel = CancellationToken::new();
    let server = tokio::spawn(serve_admin(cloud.clone(), listener, cancel.clone()));
    let config = CloudConfig { endpoint: Some(endpoint), ..CloudConfig::default() };
    let make = move || {
        let config = config.clone();
        async move { Ok(Arc::new(MockProvider::new(&config).await?) as Arc<dyn CloudProvider>) }
    };
    let report = check_instances(make, &Scripted(cloud)).await;
    assert!(report.passed(), "{report}");
    cancel.cancel();
    server.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_planted_bug_breaks_exactly_its_rules() {
    let mut wrong = Vec::new();
    for (bug, rules) in Bug::ALL {
        let report = check_planted(Some(bug)).await;
        let broken: Vec<_> = report.failures().map(|case| case.rule).collect();
        if broken != rules {
            wrong.push(format!("{bug:?}: expected {rules:?}\n{report}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const DOCUMENTED: &str = include_str!("../../../../docs/reliability.md");

/// Rules that cannot be checked on the mock, because its changes have taken effect when they are
/// answered.
const NEVER_PENDING: [&str; 2] = ["slow-change", "late-failure"];

/// Returns true if all rules are kept that the mock lets the kit check.
fn all_kept(report: &Report) -> bool {
    report.cases().iter().all(|case| match case.outcome {
        Outcome::Passed => true,
        Outcome::Unsupported => NEVER_PENDING.contains(&case.rule),
        _ => false,
    })
}

/// Checks that every rule has a bug that breaks it, and that the page on reliability says which.
fn each_is_broken_by_a_bug<C: ?Sized, B: std::fmt::Debug>(
    rules: &[Rule<C>],
    bugs: &[(B, &[&str])],
) {
    let row = |rule: &Rule<C>| {
        let hits = bugs
            .iter()
            .filter(|(_, broken)| broken.contains(&rule.id))
            .map(|(bug, _)| format!("{bug:?}"));
        let mut hits: Vec<_> = hits.collect();
        if NEVER_PENDING.contains(&rule.id) {
            hits.push("planted in `examples/quarry`, whose changes run on".to_owned());
        }
        assert!(!hits.is_empty(), "nothing shows that {} can fail", rule.id);
        format!("| `{}` | {} |\n", rule.id, hits.join(", "))
    };
    let table: String = rules.iter().map(row).collect();
    assert!(DOCUMENTED.contains(&table), "docs/reliability.md lacks this table:\n{table}");
}

#[test]
fn every_rule_has_a_bug_that_breaks_it() {
    each_is_broken_by_a_bug(&INSTANCE_RULES, &Bug::ALL);
    each_is_broken_by_a_bug(&LOAD_BALANCER_RULES, &load_balancer_mutants::Bug::ALL);
    each_is_broken_by_a_bug(&ROUTE_RULES, &route_mutants::Bug::ALL);
}
