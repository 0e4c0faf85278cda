//! Nodes as Nova servers.

pub mod addresses;
pub mod labels;
pub mod machine;
