//! A fault of every kind at every call: what the provider is asked for is reached in the end, as if nothing had been, with
//! nothing left behind, nothing of others changed, nothing out of service meanwhile that is to stay, and nothing changed
//! afterwards.
//!
//! The quick tier tries a few faults at some calls, the full one the kinds that differ most at every call; every kind, and
//! pairs, are tried when asked for.

mod balancers;
mod cases;
mod instances;
mod lane;
mod planted;
mod routes;
mod tagging;
mod tenant;
mod world;

use std::sync::Arc;

use async_trait::async_trait;
use ccm_testkit::explore::{Call, Effort, Explorer, Faults, Journey, Kind, Scenario, hunt};

use self::{balancers::Balancers, cases::Case, planted::Bug};

/// What runs one scenario again.
const COMMAND: &str = "cargo test -p ccm-aws --lib explore_tests";
/// Seed of the pairs that are tried when not everything is.
const SEED: u64 = 20_260_801;
/// How many these are for each scenario.
const PAIRS: usize = 1;
/// Kinds that are tried when not all are.
const FEW: [Kind; 4] = [Kind::DiesAfter, Kind::AnswerLost, Kind::Throttled, Kind::Lagging];

/// A scenario with few kinds of faults.
struct Few<S>(S);

#[async_trait]
impl<S: Scenario> Scenario for Few<S> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn applies(&self, kind: Kind, call: &Call) -> bool {
        // Reads without an answer are sent again like those of a service that refuses everything, and have no effect.
        let differs = call.writes || !matches!(kind, Kind::AnswerLost | Kind::DiesAfter);
        FEW.contains(&kind) && differs && self.0.applies(kind, call)
    }

    async fn run(&self, journey: &Arc<Journey>) -> Result<String, String> {
        self.0.run(journey).await
    }
}

/// Explores as is asked for: with few kinds of faults unless it is to be in full.
async fn explore<S: Scenario>(scenarios: impl IntoIterator<Item = S>) {
    let asked = Explorer::of_environment().unwrap();
    if asked.effort == Effort::Full {
        let explorer = Explorer { command: COMMAND.to_owned(), ..asked };
        return explorer.check(scenarios).await;
    }
    let explorer = Explorer { command: COMMAND.to_owned(), ..Explorer::bounded(SEED, PAIRS).unwrap() };
    explorer.check(scenarios.into_iter().map(Few)).await;
}

fn balancers(cases: Vec<Case>) -> impl Iterator<Item = Balancers> {
    cases.into_iter().map(Balancers::new)
}

#[tokio::test(start_paused = true)]
async fn balancers_are_created() {
    explore(balancers(cases::created())).await;
}

#[tokio::test(start_paused = true)]
async fn balancers_are_changed() {
    explore(balancers(cases::changed())).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_come_and_go() {
    explore(balancers(cases::updated())).await;
}

#[tokio::test(start_paused = true)]
async fn balancers_are_deleted() {
    explore(balancers(cases::deleted())).await;
}

#[tokio::test(start_paused = true)]
async fn routes_are_made_and_deleted() {
    explore(routes::cases()).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_are_known() {
    explore(instances::cases()).await;
}

#[tokio::test(start_paused = true)]
async fn instances_are_tagged() {
    explore(tagging::cases()).await;
}

/// A pair of faults that once left a load balancer and a target group behind: a call is refused, and when the Service is
/// deleted for that, lists do not show yet what was made just before.
#[tokio::test(start_paused = true)]
async fn what_was_made_just_before_a_refusal_is_deleted_though_lists_lag() {
    for name in ["give up with groups", "give up pods with groups"] {
        let scenario = Balancers::new(cases::case(name));
        let (mut points, mut call) = (1, 1);
        while call <= points {
            let faults = Faults([(call, Kind::Unauthorized), (call + 1, Kind::Lagging)].into());
            let report = Explorer::replay(&scenario, faults, COMMAND).await;
            assert!(report.failures.is_empty(), "{report}");
            (points, call) = (report.points, call + 1);
        }
        assert!(points > 20, "{name}: {points} calls");
    }
}

/// A bug, where it shows, with a fault of which kind, and how.
type Known = (Bug, Box<dyn Scenario>, Option<Kind>, &'static str);

fn planted() -> Vec<Known> {
    let all = [
        (Bug::TagsLate, "create", Some(Kind::DiesAfter), "is not this Service's"),
        (Bug::NewNames, "create", Some(Kind::AnswerLost), "+1 load balancer"),
        (Bug::NamesAlone, "delete", None, "is somebody else's"),
        (Bug::RuleForgotten, "create", Some(Kind::Unauthorized), "rules are missing"),
        (Bug::TargetsCleared, "nodes", None, "does not lead to"),
        (Bug::ThrottledAsAbsent, "delete by a new process", Some(Kind::Throttled), "left behind"),
        (Bug::UnansweredAsDone, "change settings", Some(Kind::TimesOut), "left to do"),
        (Bug::InUseAsDone, "delete slowly", None, "left behind"),
        (Bug::NeverEqual, "create", None, "done, and then"),
    ];
    let boxed =
        |(bug, case, kind, how)| -> Known { (bug, Box::new(Balancers::planted(cases::case(case), bug)), kind, how) };
    let moved = Box::new(routes::planted("move a network", Bug::RouteMoved));
    let gone = Box::new(instances::planted("follow power", Bug::ErrorAsGone));
    let others: [Known; 2] = [
        (Bug::RouteMoved, moved, None, "leads nowhere"),
        (Bug::ErrorAsGone, gone, Some(Kind::Unavailable), "is said to be"),
    ];
    all.into_iter().map(boxed).chain(others).collect()
}

#[tokio::test(start_paused = true)]
async fn planted_bugs_are_found() {
    let mut missed = Vec::new();
    for (bug, scenario, kind, how) in planted() {
        if let Err(seen) = hunt(&*scenario, kind, how).await {
            missed.push(format!("{bug:?}: {seen}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
