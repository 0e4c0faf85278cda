//! A fault of every kind at every request: what the provider is asked for is reached in the end, as if nothing had been, with
//! nothing left behind, nothing of others changed, and nothing out of service meanwhile that is to stay.

mod balancers;
mod instances;
mod routes;
mod world;

use ccm_testkit::explore::{Effort, Environment, Explorer, Scenario};

/// Pairs of faults in each scenario while somebody waits for it.
const PAIRS: usize = 3;

/// Explores scenarios and tells how many faults there were.
async fn explore<S: Scenario>(scenarios: impl IntoIterator<Item = S>) {
    let mut environment = Environment::read().unwrap();
    if environment.effort == Effort::Bounded {
        environment.pairs.get_or_insert(PAIRS);
    }
    Explorer::of(&environment).unwrap().check(scenarios).await;
}
