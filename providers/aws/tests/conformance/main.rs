//! The conformance kit on moto, over the network and by the SDK.
//!
//! One server serves all suites, which begin with an empty account each and run one after the other. Troubles are tried at
//! every seventh call; at every one on the in-memory AWS (`conformance_tests`).

#![expect(clippy::expect_used, reason = "a test whose surroundings cannot be made fails")]

mod server;
mod stage;

use std::{process::ExitCode, sync::Arc};

use ccm_testkit::{
    conformance::{Outcome, Report, check_instances, check_load_balancers, check_routes},
    moto,
};
use libtest_mimic::{Arguments, Failed, Trial};

use self::{
    server::Remote,
    stage::{Stage, ground::OURS},
};

/// Suite, rule that cannot be kept or not be checked, and why. One that turns out to be kept is a failure, too. Those about
/// what moto does otherwise are kept on the in-memory AWS: `rules_about_instances_are_kept`, `rules_about_routes_are_kept`.
const SKIPPED: &[(&str, &str, &str)] = &[
    ("instances", "not-found-if-deleted", "moto describes terminated instances for ever, AWS for an hour"),
    ("instances", "retry-after", AWS_NAMES_NO_PAUSE),
    ("routes", "blackhole-is-told", "moto shows a route to a terminated instance as active"),
    ("routes", "answers-in-order", "moto makes a route to a terminated instance, which AWS refuses"),
    ("routes", "failure-spoils-nothing", "moto makes a route to a terminated instance, which AWS refuses"),
    ("routes", "retry-after", AWS_NAMES_NO_PAUSE),
    ("load balancers", "retry-after", AWS_NAMES_NO_PAUSE),
];

/// The provider's own pauses are covered by `what_is_throttled_is_sent_again_and_slows_its_kind_down`.
const AWS_NAMES_NO_PAUSE: &str = "AWS does not say when to come again, so there is nothing to hand on";

/// Compares a report with what is expected of each rule.
fn judge(suite: &str, report: &Report) -> Result<(), Failed> {
    let skipped = |rule: &str| SKIPPED.iter().any(|(of, skipped, _)| *of == suite && *skipped == rule);
    let wrong = report.cases().iter().filter(|case| (case.outcome == Outcome::Passed) == skipped(case.rule));
    let wrong: Vec<_> = wrong.map(|case| case.rule).collect();
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("otherwise than expected: {wrong:?}\n{report}").into()),
    }
}

/// Runs a suite in paused time.
fn run(suite: &str, remote: &Remote) -> Result<(), Failed> {
    let paused =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).max_blocking_threads(1).build();
    let paused = paused.map_err(|error| Failed::from(error.to_string()))?;
    paused.block_on(async {
        let stage = Stage::new(Arc::new(remote.clone()), "").await.map_err(|error| format!("{error:#}"))?;
        let provider = {
            let stage = stage.clone();
            move || {
                let stage = stage.clone();
                async move { stage.provider(OURS).await }
            }
        };
        let report = match suite {
            "instances" => check_instances(provider, &stage).await,
            "routes" => check_routes(provider, &stage).await,
            _ => check_load_balancers(provider, &stage).await,
        };
        judge(suite, &report)
    })
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let program = if arguments.list { None } else { moto::find_or_say_skipped("the conformance kit on moto") };
    let remote = program.map(|program| runtime.block_on(Remote::start(program)).expect("moto's server starts"));
    let trials = ["instances", "routes", "load balancers"].map(|suite| {
        let remote = remote.clone();
        Trial::test(suite, move || remote.as_ref().map_or(Ok(()), |remote| run(suite, remote)))
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}
