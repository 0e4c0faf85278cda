//! Load balancers: Network Load Balancers for Services.

pub mod model;
