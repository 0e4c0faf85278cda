//! A real cluster on this machine: etcd, kube-apiserver, kube-controller-manager and
//! kube-scheduler, and nodes with kubelet, containerd and kube-proxy that run real pods.
//!
//! It takes about ten seconds to start and a gigabyte. It needs root and cgroup v1; how it is made
//! says `cluster/up`. No registry is asked: images are archives.

pub mod archive;
mod cluster;
mod machine;
mod programs;

pub use self::cluster::{ADDRESS, Cluster, wait_for};
pub use self::programs::{Programs, root};
