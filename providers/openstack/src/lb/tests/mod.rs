//! Load balancers on the local cloud, in process and in virtual time.

mod behaviour;
mod counts;
mod crash;
mod desk;
mod groups;
mod rig;
mod sharing;
mod trouble;
