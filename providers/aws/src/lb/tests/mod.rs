//! Load balancers on the in-memory AWS.

mod counts;
mod crash;
mod rig;
