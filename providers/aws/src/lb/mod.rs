//! Load balancers: Network Load Balancers for Services.

mod cached;
pub mod classic;
#[cfg(test)]
mod fixtures;
pub mod model;
pub mod security;
pub mod subnets;
pub mod vpc;
