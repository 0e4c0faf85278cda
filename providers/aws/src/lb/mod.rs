//! Load balancers: Network Load Balancers for Services.

mod apply;
mod bring;
pub mod effect;
mod memory;
pub mod model;
mod observe;
mod ownership;
pub mod plan;
mod register;
mod seams;
pub mod seen;
mod status;
mod sweep;
mod targets;
