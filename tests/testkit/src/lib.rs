//! Testkit.

pub mod control_plane;
pub mod kubelet;
