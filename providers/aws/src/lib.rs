//! The AWS provider: EC2 instances and routes, and Network Load Balancers.

#![deny(missing_docs)]

// Lets code that is shared by unit and integration tests use the same crate name.
#[cfg(test)]
extern crate self as ccm_aws;

pub mod api;
pub mod client;
mod clock;
pub mod config;
pub mod environment;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod instances;
pub mod lb;
pub mod manager;
pub mod ownership_tags;
pub mod provider;
pub mod provider_id;
pub mod routes;
pub mod scope;
#[cfg(feature = "sdk")]
pub mod sdk;

#[cfg(test)]
mod conformance_tests;
#[cfg(test)]
mod explore_tests;
#[cfg(test)]
mod iam_tests;
pub mod tagging;
#[cfg(test)]
mod takeover_page_tests;
