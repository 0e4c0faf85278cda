//! A mock cloud and its provider: the framework's controllers against nothing but memory.
//!
//! - [`cloud`]: the cloud, a state machine of instances, load balancers and routes;
//! - [`config`][]: `--cloud-config`;
//! - [`admin`]: the HTTP API that scripts the cloud from any language;
//! - [`client`]: the same from another process, as [`AdminClient`] for tests and as [`RemoteCloud`] for the provider;
//! - [`provider`]: the provider that the framework runs;
//! - [`cli`]: the commands of `ccm-mock`.

pub mod admin;
pub mod cli;
pub mod client;
pub mod cloud;
pub mod config;
#[cfg(feature = "demo")]
pub mod demo;
pub mod manager;
pub mod provider;
#[cfg(test)]
mod reference_tests;

pub use admin::{bind_admin, serve_admin};
pub use client::{AdminClient, RemoteCloud};
pub use cloud::MockCloud;
pub use config::{CloudConfig, ConfigError, HostPort};
pub use provider::MockProvider;
