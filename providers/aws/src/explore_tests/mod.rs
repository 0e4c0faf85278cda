//! A fault of every kind at every call: what the provider is asked for is reached in the end, as if nothing had been, with
//! nothing left behind, nothing of others changed, nothing out of service meanwhile that is to stay, and nothing changed
//! afterwards.
//!
//! Every call and the kinds of faults that differ most are tried each time; every kind, and pairs, when asked for.

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
use ccm_testkit::explore::{Call, Effort, Explorer, Journey, Kind, Scenario};

use self::{balancers::Balancers, cases::Case, planted::Bug};

/// What runs one scenario again.
const COMMAND: &str = "cargo test -p ccm-aws --no-default-features --lib explore_tests";
/// Seed of the pairs that are tried each time.
const SEED: u64 = 20_260_801;
/// How many these are for each scenario.
const PAIRS: usize = 2;
/// Kinds that are tried each time.
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

    fn command(&self) -> &'static str {
        self.0.command()
    }

    async fn run(&self, journey: &Arc<Journey>) -> Result<String, String> {
        self.0.run(journey).await
    }
}

/// Explores with few kinds of faults, or what is to be seen again.
async fn few<S: Scenario>(scenarios: impl IntoIterator<Item = S>) {
    Explorer::bounded(SEED, PAIRS).unwrap().check(scenarios.into_iter().map(Few)).await;
}

/// Explores with every kind.
async fn all<S: Scenario>(scenarios: impl IntoIterator<Item = S>) {
    let explorer = Explorer { effort: Effort::Full, ..Explorer::of_environment().unwrap() };
    explorer.check(scenarios).await;
}

macro_rules! explored {
    ($($name:ident $full:ident: $cases:expr;)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            few($cases).await;
        }

        #[tokio::test(start_paused = true)]
        #[ignore = "takes minutes: thousands of runs"]
        async fn $full() {
            all($cases).await;
        }
    )*};
}

fn balancers(cases: Vec<Case>) -> impl Iterator<Item = Balancers> {
    cases.into_iter().map(Balancers::new)
}

explored! {
    balancers_are_created balancers_are_created_whatever_happens: balancers(cases::created());
    balancers_are_changed balancers_are_changed_whatever_happens: balancers(cases::changed());
    nodes_come_and_go nodes_come_and_go_whatever_happens: balancers(cases::updated());
    balancers_are_deleted balancers_are_deleted_whatever_happens: balancers(cases::deleted());
    routes_are_made_and_deleted routes_are_made_and_deleted_whatever_happens: routes::cases();
    nodes_are_known nodes_are_known_whatever_happens: instances::cases();
    instances_are_tagged instances_are_tagged_whatever_happens: tagging::cases();
}

/// Where each bug shows, and how.
fn planted() -> Vec<(Bug, Box<dyn Scenario>, &'static str)> {
    let balancers = |bug, case: &str| -> Box<dyn Scenario> { Box::new(Balancers::planted(cases::case(case), bug)) };
    let routes = |bug, name: &str| -> Box<dyn Scenario> { Box::new(routes::planted(name, bug)) };
    let instances = |bug, name: &str| -> Box<dyn Scenario> { Box::new(instances::planted(name, bug)) };
    vec![
        (Bug::TagsLate, balancers(Bug::TagsLate, "create"), "is not this Service's"),
        (Bug::NewNames, balancers(Bug::NewNames, "create"), "+1 load balancer"),
        (Bug::NamesAlone, balancers(Bug::NamesAlone, "delete"), "somebody else's thing is changed"),
        (Bug::RuleForgotten, balancers(Bug::RuleForgotten, "create"), "ingress"),
        (Bug::TargetsCleared, balancers(Bug::TargetsCleared, "nodes"), "does not lead to"),
        (Bug::ThrottledAsAbsent, balancers(Bug::ThrottledAsAbsent, "delete"), "left behind"),
        (Bug::UnansweredAsDone, balancers(Bug::UnansweredAsDone, "change settings"), "the end is another one"),
        (Bug::NamesCached, balancers(Bug::NamesCached, "change ports"), "done, and then"),
        (Bug::InUseAsDone, balancers(Bug::InUseAsDone, "delete slowly"), "left behind"),
        (Bug::NeverEqual, balancers(Bug::NeverEqual, "create"), "left to do"),
        (Bug::RouteMoved, routes(Bug::RouteMoved, "move a network"), "leads nowhere"),
        (Bug::ErrorAsGone, instances(Bug::ErrorAsGone, "adopt"), "is said to be"),
    ]
}

#[tokio::test(start_paused = true)]
async fn planted_bugs_are_found() {
    let explorer = Explorer { pairs: 0, replay: None, ..Explorer::bounded(SEED, 0).unwrap() };
    for (bug, scenario, how) in planted() {
        let report = explorer.explore(&*scenario).await;
        let found = report.failures.iter().find(|failure| failure.seen.contains(how));
        assert!(found.is_some(), "{bug:?} is not found as {how:?}: {report}");
    }
}
