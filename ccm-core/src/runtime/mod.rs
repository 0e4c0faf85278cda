//! What every controller stands on: caches, queues, events, leader election.

pub mod events;
pub mod gate;
pub mod leader_election;
pub mod shutdown;
