//! Load balancers: Network Load Balancers for Services.

pub mod annotations;
mod health;
pub mod interpret;
mod listeners;
pub mod model;
pub mod names;
