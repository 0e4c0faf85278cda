//! The controllers. Each observes, plans (pure, in `plan`), and applies; none names a cloud.

pub mod node;
pub mod node_lifecycle;
