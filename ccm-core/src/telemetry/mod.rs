//! Metrics and logging.

pub mod metrics;
