//! An in-memory mock cloud and its provider. With them, the framework's controllers run without a
//! real cloud.
//!
//! - [`cloud`]: the cloud, a state machine of instances, load balancers and routes;
//! - [`config`][]: the file of `--cloud-config`;
//! - [`admin`]: the HTTP API for scripting the cloud from any language;
//! - [`client`]: clients for another process, [`AdminClient`] for tests and [`RemoteCloud`] for the
//!   provider;
//! - [`provider`]: the provider that the framework runs;
//! - [`cli`]: the commands of `ccm-mock`.

pub mod admin;
pub mod cli;
pub mod client;
pub mod cloud;
#[cfg(feature = "demo")]
pub mod demo;
pub mod manager;
pub mod provider;
#[cfg(test)]
mod reference_tests;

pub use admin::{bind_admin, serve_admin};
pub use client::{AdminClient, RemoteCloud};
pub use cloud::MockCloud;
pub use cloud::config;
pub use cloud::config::{CloudConfig, ConfigError, HostPort};
pub use provider::MockProvider;
