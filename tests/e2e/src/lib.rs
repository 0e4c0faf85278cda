//! End-to-end suites: the real binary against the embedded API server and against a real control plane.
//!
//! A [`scenario`] is written once and runs on every [`server`]. It has a region of its own, hence nodes, a mock cloud,
//! a lease and users of its own, so that scenarios run side by side in one cluster. An [`observer`] watches all nodes
//! and Services all the time and judges what no scenario may ever do; a [`ledger`] does so for the cloud.

pub mod balance;
pub mod ccm;
pub mod image;
pub mod ledger;
pub mod manifests;
pub mod observer;
pub mod pages;
pub mod rights;
pub mod scenario;
pub mod secrets;
pub mod server;
pub mod stage;
