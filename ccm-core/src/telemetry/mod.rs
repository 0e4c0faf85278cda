//! Metrics and logging.

pub mod json;
pub mod logging;
pub mod metrics;
