//! Testkit.

pub mod apiserver;
pub mod hooks;
