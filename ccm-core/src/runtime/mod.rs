//! What every controller stands on: caches, queues, events, leader election.

pub mod gate;
pub mod queue;
