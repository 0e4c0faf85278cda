//! A framework for Kubernetes cloud-controller-managers.
//!
//! A cloud implements [`provider::CloudProvider`]; the framework runs the controllers against it.
//!
//! - [`config`]: flags to a checked configuration;
//! - [`provider`]: the traits a cloud implements, their types and errors;
//! - [`k8s`]: Kubernetes strings and the narrow object types that are cached;
//! - [`runtime`]: caches, queues, leader election, events;
//! - [`secrets`]: keeping credentials out of what others say;
//! - [`telemetry`]: metrics and logging.

#![deny(missing_docs)]

pub mod app;
pub mod config;
pub mod controllers;
pub mod error;
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
