//! Checks of callers against an API server that is a service in this process.

mod callers;
mod certificates;
mod proxies;
mod questions;
mod start;
mod world;
