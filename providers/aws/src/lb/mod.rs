//! Load balancers: Network Load Balancers for Services.

mod apply;
mod bring;
mod cached;
pub mod classic;
#[cfg(test)]
mod fixtures;
pub mod effect;
mod memory;
pub mod model;
mod observe;
mod ownership;
pub mod plan;
mod register;
mod seams;
pub mod security;
pub mod seen;
mod status;
pub mod subnets;
mod sweep;
mod targets;
pub mod vpc;
pub mod annotations;
mod health;
pub mod interpret;
mod listeners;
pub mod model;
pub mod names;
