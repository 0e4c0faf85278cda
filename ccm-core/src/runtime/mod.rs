//! Infrastructure of the controllers: API client, caches, work queues, events, leader election,
//! health, HTTPS server, shadow mode, and the manager that runs them.

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
