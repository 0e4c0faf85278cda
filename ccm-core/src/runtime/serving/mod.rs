//! The HTTPS server of health, metrics and configuration.

pub mod auth;
