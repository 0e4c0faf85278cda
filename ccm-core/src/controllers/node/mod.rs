//! Initialises nodes, keeps their addresses and labels (upstream's `cloud-node-controller`).

mod plan;
