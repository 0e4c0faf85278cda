//! What every controller stands on: caches, queues, events, leader election, health, progress, and the manager that runs them.

pub mod api;
pub mod cache;
pub mod credentials;
pub mod events;
pub mod gate;
pub mod health;
pub mod leader_election;
pub mod manager;
pub mod progress;
pub mod queue;
pub mod reflector;
pub mod serving;
pub mod shadow;
pub mod shutdown;
