//! Requests to the Kubernetes API server.
//!
//! The controllers send all their requests through [`ApiClient`], which adds the rate limit, the
//! write gate, the deadline, metrics and typed errors. It does not retry: the work queue of each
//! controller counts attempts, and a hidden second patch could overwrite a state that the caller
//! has observed since the first one.

mod client;
mod error;
mod in_flight;
mod metrics;
mod middleware;
mod nodes;
mod patch;
mod rate_limit;
mod request;
mod request_info;
mod services;
pub(crate) mod status;
#[cfg(test)]
mod tests;

pub use client::{ApiClient, ApiClientOptions, DEFAULT_TIMEOUT};
pub use error::{ApiError, ApiErrorKind};
pub use in_flight::WritesInFlight;
pub use metrics::ApiMetrics;
pub use middleware::{ClientMiddleware, ShuttingDown};
pub use nodes::Subresource;
pub use patch::{Patch, PatchOp, Patched, escape_pointer};
pub use rate_limit::RateLimit;
pub use request::{
    ACCEPT_JSON, ACCEPT_METADATA, ACCEPT_OBJECT, ACCEPT_WATCH, ApiRequest, ApiResponse,
};
pub use request_info::RequestInfo;
pub use status::Cause;
