//! Load balancers on the in-memory AWS.

mod behaviour;
mod classic;
mod counts;
mod deletion;
mod disowned;
pub(crate) mod fixture;
mod lasting;
mod matrix;
mod mending;
mod pods;
mod properties;
mod takeover;
mod turns;
