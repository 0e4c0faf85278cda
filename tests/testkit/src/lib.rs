//! Testkit.

pub mod control_plane;
