//! Embedded Kubernetes API server.

pub mod defaulting;
pub mod discovery;
mod openapi;
pub mod resources;
pub mod schema;
pub mod table;
pub mod validation;

#[cfg(test)]
mod test_json;
