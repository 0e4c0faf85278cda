//! Embedded Kubernetes API server.

pub mod defaulting;
pub mod resources;
pub mod table;
#[cfg(test)]
mod test_json;
