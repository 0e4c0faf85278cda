//! Metrics, logs and traces.

#[cfg(test)]
pub(crate) mod captured;
pub mod controllers;
pub mod json;
pub mod logging;
pub mod metrics;
pub mod process;
pub mod queue;
#[cfg(test)]
mod reference_tests;
pub mod traces;
