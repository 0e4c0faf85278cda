//! A fault of every kind at every request: what the provider is asked for is reached in the end, as
//! if nothing had been, with nothing left behind, nothing of others changed, and nothing out of
//! service meanwhile that is to stay.

mod cloud;
mod hunt;
mod instances;
mod load_balancers;
mod mutants;
mod routes;

use ccm_testkit::explore::{Effort, Environment, Explorer, Scenario};

/// Pairs of faults in each scenario while somebody waits for it.
const PAIRS: usize = 3;

/// Explores scenarios and tells how many faults there were. In a smoke it is every second one:
/// those that differ most stand there in the lists.
async fn explore<S: Scenario>(scenarios: impl IntoIterator<Item = S>) {
    let mut environment = Environment::read().unwrap();
    if environment.effort == Effort::Bounded {
        environment.pairs.get_or_insert(PAIRS);
    }
    let asked_for_one = environment.replay.is_some();
    let step = if environment.effort == Effort::Smoke && !asked_for_one {
        2
    } else {
        1
    };
    Explorer::of(&environment)
        .unwrap()
        .check(scenarios.into_iter().step_by(step))
        .await;
}
