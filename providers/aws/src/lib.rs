//! The AWS provider: EC2 instances and routes, and Network Load Balancers.

#![deny(missing_docs)]
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    clippy::redundant_closure_for_method_calls,
    reason = "parts of load balancers are joined next"
)]
#![allow(dead_code, unused_imports, reason = "parts of load balancers are joined next")]

pub mod api;
pub mod client;
pub mod cluster;
pub mod config;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod identity;
pub mod instances;
pub mod lb;
pub mod manager;
pub mod provider;
pub mod provider_id;
pub mod routes;
pub mod scope;
#[cfg(feature = "sdk")]
pub mod sdk;

#[cfg(test)]
mod iam_tests;
pub mod tagging;
