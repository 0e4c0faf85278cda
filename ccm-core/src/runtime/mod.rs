//! What every controller stands on: caches, queues, events, leader election, health, progress, and the manager that runs them.

pub mod api;
pub mod cache;
pub mod controller_health;
pub mod events;
pub mod health;
pub mod leader_election;
pub mod manager;
pub mod reflector;
pub mod service_account;
pub mod serving;
pub mod shadow;
pub mod tasks;
pub mod work_queue;
pub mod write_gate;
