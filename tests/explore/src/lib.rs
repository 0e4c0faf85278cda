//! Explores what faults do to the framework.
//!
//! A [`Scenario`] is run once without faults: the whole manager against the embedded API server and the mock cloud, in
//! virtual time. Every request of the manager to either of them is a [`Point`](seam::Point). Then it is run again for each
//! point and each [`Fault`](fault::Fault) that can happen there, and every run is judged: by a [`Witness`](witness::Witness)
//! that sees each change as it happens, by the state at the end, and by whether it ever becomes quiet.
//!
//! A run has a name, `<scenario>/<point>/<fault>`, by which it is run again alone.

#![deny(missing_docs)]

pub mod explorer;
pub mod fault;
pub mod judge;
pub mod objects;
pub mod planted;
pub mod process;
pub mod scenario;
pub mod seam;
pub mod way;
pub mod witness;
pub mod world;

mod cloud;
mod wire;

pub use explorer::Explorer;
pub use scenario::Scenario;
