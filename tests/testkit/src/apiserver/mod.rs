//! Embedded Kubernetes API server.

pub mod resources;
