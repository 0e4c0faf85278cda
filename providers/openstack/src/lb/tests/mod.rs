//! Load balancers on the local cloud, in process and in virtual time.

mod behaviour;
mod counts;
mod fixture;
mod groups;
mod properties;
mod renamed;
mod sharing;
mod together;
mod trouble;
