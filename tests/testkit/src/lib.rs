//! Test tools for cloud-controller-managers: an embedded Kubernetes API server, a harness for a
//! real control plane, simulated kubelets, and for providers a conformance kit and a fault
//! explorer.

pub mod apiserver;
pub mod conformance;
pub mod control_plane;
pub mod demo_server;
pub mod explore;
pub mod hooks;
pub mod kubelet;
pub mod metrics;
pub mod moto;
pub mod promtool;
pub mod suite;
pub mod supervised;
mod tier;
