//! Explores what faults do to the framework.
//!
//! A [`Scenario`] is run once without faults: the whole manager against the embedded API server and
//! the mock cloud, in virtual time. Every request of the manager to either of them is a
//! [`Point`](interceptor::Point). Then it is run again for each point and each
//! [`Fault`](fault::Fault) that can happen there, and every run is judged: by a
//! [`InvariantChecker`](invariants::InvariantChecker) that sees each change as it happens, by the
//! state at the end, and by whether it ever becomes quiet.
//!
//! A run has a name, `<scenario>/<point>/<fault>`, by which it is run again alone.

#![deny(missing_docs)]

pub mod cluster;
pub mod cluster_conditions;
pub mod explorer;
pub mod fault;
pub mod final_state;
pub mod interceptor;
pub mod invariants;
pub mod mutants;
pub mod objects;
pub mod process;
pub mod scenario;

mod api_connection;
mod cloud;

pub use explorer::Explorer;
pub use scenario::Scenario;
