//! Load balancers: Octavia.
//!
//! A Service is [read](interpret), what there is of it is looked at, a plan says what differs, and its steps are carried out
//! one by one: Octavia takes one change of a balancer at a time. Nothing is needed to take up what was broken off anywhere
//! but names that do not change and tags that are there from the start.

pub mod annotations;
pub mod features;
pub mod interpret;
pub mod model;
pub mod names;
pub mod nodes;
pub mod settings;
mod status;
pub mod subnets;
