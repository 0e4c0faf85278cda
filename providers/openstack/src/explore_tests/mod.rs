//! A fault of every kind at every request: what the provider is asked for is reached in the end, as if nothing had been, with
//! nothing left behind, nothing of others changed, and nothing out of service meanwhile that is to stay.

mod balancers;
mod instances;
mod routes;
mod world;

use ccm_testkit::explore::{Explorer, Scenario};

/// Explores scenarios and tells how many faults there were.
async fn explore<S: Scenario>(scenarios: impl IntoIterator<Item = S>) {
    Explorer::of_environment().unwrap().check(scenarios).await;
}
