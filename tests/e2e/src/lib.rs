//! End-to-end suites: the real binary against the embedded API server and against a real control
//! plane.
//!
//! A [`scenario`] is written once and runs on every [`server`]. It has a region of its own, hence
//! nodes, a mock cloud, a lease and users of its own, so that scenarios run side by side in one
//! cluster. A [`watcher`] watches all nodes and Services all the time and judges what no scenario
//! may ever do; a [`load_balancer_history`] does so for the cloud.

pub mod ccm;
pub mod fixture;
pub mod https_endpoints;
pub mod image;
pub mod load_balancer_checks;
pub mod load_balancer_history;
pub mod manifests;
pub mod permissions;
pub mod scenario;
pub mod secrets;
pub mod server;
pub mod watcher;
