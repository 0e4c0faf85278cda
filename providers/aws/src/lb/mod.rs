//! Load balancers: Network Load Balancers for Services.

pub mod effect;
pub mod model;
pub mod plan;
pub mod seen;
