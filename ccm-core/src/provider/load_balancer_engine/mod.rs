//! The engine of load balancers that consist of several cloud objects.
//!
//! A provider implements [`LoadBalancerDriver`]: pure functions that parse a Service and plan
//! requests, and a few that talk to the cloud. [`LoadBalancerEngine`] makes a
//! [`LoadBalancers`](super::LoadBalancers) of it. It owns everything that is the same for all
//! clouds:
//!
//! - what is remembered of each Service, and when it is believed;
//! - the loop: observe, plan, send the first request, until the plan is empty;
//! - what stays known after an error, and what is pending instead of failed;
//! - updates of members alone, also while the Service is invalid;
//! - deletion, which is the same loop with another goal;
//! - dry runs and drift checks.

mod driver;
mod engine;
mod sync_state;
#[cfg(test)]
mod tests;

pub use self::{
    driver::{
        Executed, Goal, LoadBalancerDriver, ParsedService, ParsedSpec, Readiness, ServiceOwner,
        Target,
    },
    engine::LoadBalancerEngine,
};
