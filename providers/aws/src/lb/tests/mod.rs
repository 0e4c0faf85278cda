//! Load balancers on the in-memory AWS.

mod behaviour;
mod classic;
mod counts;
mod deletion;
mod disowned;
mod lasting;
mod matrix;
mod mending;
mod pods;
mod properties;
pub(crate) mod rig;
mod takeover;
mod turns;
