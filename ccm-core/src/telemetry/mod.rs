//! Metrics and logging.

pub mod logging;
pub mod metrics;
