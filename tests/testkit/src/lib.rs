//! Test tools for cloud-controller-managers: an embedded Kubernetes API server, a harness for a real control plane,
//! simulated kubelets, and a conformance kit for providers.

pub mod apiserver;
pub mod conformance;
pub mod control_plane;
pub mod hooks;
pub mod kubelet;
pub mod metrics;
pub mod moto;
pub mod supervised;
