//! Testkit.

pub mod apiserver;
