//! What every controller stands on: caches, queues, events, leader election, health.

pub mod api;
pub mod cache;
pub mod encoding;
pub mod events;
pub mod health;
pub mod leader_election;
pub mod reflector;
pub mod service_account;
pub mod serving;
pub mod shadow;
pub mod tasks;
pub mod work_queue;
