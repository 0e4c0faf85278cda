//! A framework for Kubernetes cloud-controller-managers.
//!
//! A cloud provider implements [`provider::CloudProvider`]; the framework runs the controllers
//! against it.
//!
//! - [`config`]: parses flags into a checked configuration;
//! - [`provider`]: the traits that a cloud provider implements, their types and errors;
//! - [`k8s`]: Kubernetes names and the reduced object types that are cached;
//! - [`runtime`]: caches, queues, leader election, events;
//! - [`adoption`]: the adoption report of shadow mode;
//! - [`check`]: the report of the subcommand `check`;
//! - [`crypto`]: the cryptography library, ring or in a FIPS build AWS-LC;
//! - [`explain`]: why a Node or a Service is as it is, and what to do;
//! - [`redact`]: removes credentials from text of other programs;
//! - [`telemetry`]: metrics, logs and traces.

#![deny(missing_docs)]

pub mod adoption;
pub mod app;
pub mod check;
pub mod config;
pub mod controllers;
pub mod crypto;
pub mod error;
pub mod explain;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod k8s;
pub mod manager;
mod percent;
pub mod provider;
pub mod redact;
pub mod runtime;
pub mod telemetry;
pub mod write_gate;
