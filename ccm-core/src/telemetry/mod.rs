//! Metrics, logs and traces.

pub mod controller_health;
pub mod controller_metrics;
pub mod json;
#[cfg(test)]
pub(crate) mod log_capture;
pub mod logging;
pub mod metrics;
pub mod process;
pub mod queue;
#[cfg(test)]
mod reference_tests;
pub mod traces;
