//! The AWS provider: EC2 instances and routes, and Network Load Balancers.

#![deny(missing_docs)]

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
