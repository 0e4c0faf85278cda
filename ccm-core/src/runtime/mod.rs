//! What every controller stands on: caches, queues, events, leader election.

pub mod api;
pub mod cache;
pub mod gate;
pub mod queue;
pub mod reflector;
