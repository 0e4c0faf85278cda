//! Checks of callers against an API server that is a service in this process.

mod api_server;
mod callers;
mod certificates;
mod proxies;
mod questions;
mod start;
