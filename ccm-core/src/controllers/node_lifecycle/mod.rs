//! Taints nodes that are shut down and deletes those whose instance is gone (upstream's
//! `cloud-node-lifecycle-controller`).

mod plan;
