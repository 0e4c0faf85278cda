//! A fault of every kind at every call: what the provider is asked for is reached in the end, as if nothing had been, with
//! nothing left behind, nothing of others changed, nothing out of service meanwhile that is to stay, and nothing changed
//! afterwards.
//!
//! At each call some kinds of faults are tried each time; every kind with `CCM_EXPLORE=full`.

mod balancers;
mod cases;
mod instances;
mod lane;
mod planted;
mod routes;
mod tagging;
mod tenant;
mod world;

use ccm_testkit::explore::{Effort, Explorer, Scenario};

use self::{balancers::Balancers, cases::Case, planted::Bug};

/// What runs one scenario again.
const COMMAND: &str = "cargo test -p ccm-aws --no-default-features --lib explore_tests";
/// Explores scenarios and tells how many faults there were.
async fn explore<S: Scenario>(scenarios: impl IntoIterator<Item = S>) {
    Explorer::of_environment().unwrap().check(scenarios).await;
}

macro_rules! explored {
    ($($name:ident: $cases:expr;)*) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            explore($cases).await;
        }
    )*};
}

fn balancers(cases: Vec<Case>) -> impl Iterator<Item = Balancers> {
    cases.into_iter().map(Balancers::new)
}

explored! {
    balancers_are_created: balancers(cases::created());
    balancers_are_changed: balancers(cases::changed());
    nodes_come_and_go: balancers(cases::updated());
    balancers_are_deleted: balancers(cases::deleted());
    routes_are_made_and_deleted: routes::cases();
    nodes_are_known: instances::cases();
    instances_are_tagged: tagging::cases();
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
    let explorer = Explorer { effort: Effort::Full, seed: 1, pairs: 0, replay: None };
    for (bug, scenario, how) in planted() {
        let report = explorer.explore(&*scenario).await;
        let found = report.failures.iter().find(|failure| failure.seen.contains(how));
        assert!(found.is_some(), "{bug:?} is not found as {how:?}: {report}");
    }
}
