//! A fault of every kind at every call: what the provider is asked for is reached in the end, as if
//! nothing had been, with nothing left behind, nothing of others changed, nothing out of service
//! meanwhile that is to stay, and nothing changed afterwards.
//!
//! The quick tier tries a few faults at some calls, the full one the kinds that differ most at
//! every call; every kind, and pairs, are tried when asked for.

/// Implements [`Scenario`] for a type with a field `name` and a method `go`. It meets every fault that
/// [`applies`](faulty_transport::applies) to its calls.
macro_rules! scenario {
    ($kind:ty) => {
        #[async_trait::async_trait]
        impl ccm_testkit::explore::Scenario for $kind {
            fn name(&self) -> String {
                self.name.to_owned()
            }

            fn applies(
                &self,
                kind: ccm_testkit::explore::FaultKind,
                call: &ccm_testkit::explore::Call,
            ) -> bool {
                super::faulty_transport::applies(kind, call)
            }

            async fn run(
                &self,
                journey: &Arc<ccm_testkit::explore::ScenarioRun>,
            ) -> Result<String, String> {
                Box::pin(self.go(journey))
                    .await
                    .map_err(|error| format!("{error:#}"))
            }
        }
    };
}

mod account;
mod cases;
mod classic;
mod faulty_transport;
mod instances;
mod load_balancers;
mod moving;
mod mutants;
mod retained;
mod routes;
mod service_driver;
mod tagging;

use std::sync::Arc;

use async_trait::async_trait;
use ccm_testkit::explore::{
    Call, Effort, Explorer, FaultKind, Faults, Scenario, ScenarioRun, hunt,
};

use self::{cases::Case, load_balancers::LoadBalancerScenario, mutants::Bug};

/// What runs one scenario again.
const COMMAND: &str = "cargo test -p ccm-aws --lib explore_tests";
/// Seed of the pairs that are tried when not everything is.
const SEED: u64 = 20_260_801;
/// How many these are for each scenario.
const PAIRS: usize = 1;
/// Kinds that are tried when not all are.
const FEW: [FaultKind; 4] =
    [FaultKind::DiesAfter, FaultKind::AnswerLost, FaultKind::Throttled, FaultKind::Lagging];

/// A scenario with few kinds of faults.
struct Few<S>(S);

#[async_trait]
impl<S: Scenario> Scenario for Few<S> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn applies(&self, kind: FaultKind, call: &Call) -> bool {
        // Reads without an answer are sent again like those of a service that refuses everything,
        // and have no effect.
        let differs = call.writes || !matches!(kind, FaultKind::AnswerLost | FaultKind::DiesAfter);
        FEW.contains(&kind) && differs && self.0.applies(kind, call)
    }

    async fn run(&self, journey: &Arc<ScenarioRun>) -> Result<String, String> {
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
    let explorer = Explorer {
        command: COMMAND.to_owned(),
        ..Explorer::bounded(SEED, PAIRS).unwrap()
    };
    explorer.check(scenarios.into_iter().map(Few)).await;
}

fn balancers(cases: Vec<Case>) -> impl Iterator<Item = LoadBalancerScenario> {
    cases.into_iter().map(LoadBalancerScenario::new)
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
async fn balancers_are_kept_and_adopted() {
    explore(retained::cases()).await;
}

#[tokio::test(start_paused = true)]
async fn classic_balancers_live() {
    explore(classic::cases()).await;
}

#[tokio::test(start_paused = true)]
async fn balancers_move_and_come_back() {
    explore(moving::cases()).await;
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

/// A pair of faults that once left a load balancer and a target group behind: a call is refused,
/// and when the Service is deleted for that, lists do not show yet what was made just before.
#[tokio::test(start_paused = true)]
async fn what_was_made_just_before_a_refusal_is_deleted_though_lists_lag() {
    for name in ["give up with groups", "give up pods with groups"] {
        let scenario = LoadBalancerScenario::new(cases::case(name));
        let (mut points, mut call) = (1, 1);
        while call <= points {
            let faults =
                Faults([(call, FaultKind::Unauthorized), (call + 1, FaultKind::Lagging)].into());
            let report = Explorer::replay(&scenario, faults, COMMAND).await;
            assert!(report.failures.is_empty(), "{report}");
            (points, call) = (report.points, call + 1);
        }
        assert!(points > 20, "{name}: {points} calls");
    }
}

/// A bug, where it shows, with a fault of which kind, and how.
type MutantCase = (Bug, Box<dyn Scenario>, Option<FaultKind>, &'static str);

fn planted() -> Vec<MutantCase> {
    let all = [
        (Bug::TagsLate, "create", Some(FaultKind::DiesAfter), "is not this Service's"),
        (Bug::NewNames, "create", Some(FaultKind::AnswerLost), "+1 load balancer"),
        (Bug::NamesAlone, "delete", None, "is somebody else's"),
        (Bug::RuleForgotten, "create", Some(FaultKind::Unauthorized), "rules are missing"),
        (Bug::TargetsCleared, "nodes", None, "does not lead to"),
        (
            Bug::ThrottledAsAbsent,
            "delete by a new process",
            Some(FaultKind::Throttled),
            "left behind",
        ),
        (Bug::UnansweredAsDone, "change settings", Some(FaultKind::TimesOut), "left to do"),
        (Bug::InUseAsDone, "delete slowly", None, "left behind"),
        (Bug::NeverEqual, "create", None, "done, and then"),
    ];
    let boxed = |(bug, case, kind, how)| -> MutantCase {
        (bug, Box::new(LoadBalancerScenario::planted(cases::case(case), bug)), kind, how)
    };
    let moved = Box::new(routes::planted("move a network", Bug::RouteMoved));
    let gone = Box::new(instances::planted("follow power", Bug::ErrorAsGone));
    let others: [MutantCase; 2] = [
        (Bug::RouteMoved, moved, None, "leads nowhere"),
        (Bug::ErrorAsGone, gone, Some(FaultKind::Unavailable), "is said to be"),
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
