//! The controllers as a running process sees them: the whole manager in virtual time, against an
//! API server and a cloud in the same process that count, remember and fail on demand.

// Helpers of tests may fail as tests do; counters hold whole numbers.
#![allow(clippy::panic, clippy::unwrap_used, clippy::float_cmp)]

mod adoption;
mod check;
mod cluster;
mod explain;
mod explain_network;
mod explain_services;
mod faults;
mod health;
mod initialize;
mod ipam;
mod lease;
mod lifecycle;
mod lifecycle_out_of_service;
mod metrics;
mod migration;
mod orphans;
mod periodic;
mod provider;
mod races;
mod routes;
mod routes_conditions;
mod routes_failures;
mod routes_provider;
mod scripted_load_balancers;
mod service_world;
mod services;
mod services_changes;
mod services_conditions;
mod services_errors;
mod services_load;
mod services_nodes;
mod services_restart;
mod services_retain;
mod shadow;
mod situations;
mod start;
mod waiting;
