//! Load balancers: Network Load Balancers for Services.

pub mod annotations;
mod apply;
mod bring;
mod cached;
pub mod classic;
pub mod effect;
mod health;
pub mod interpret;
mod listeners;
mod memory;
pub mod model;
pub mod names;
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
