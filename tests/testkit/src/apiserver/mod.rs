//! Embedded Kubernetes API server.

pub mod defaulting;
pub mod discovery;
mod openapi;
pub mod resources;
pub mod schema;
pub mod table;
#[cfg(test)]
mod test_json;
