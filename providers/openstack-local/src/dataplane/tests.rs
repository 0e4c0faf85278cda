//! On real loopback sockets.

mod change;
mod health;
mod rig;
mod tcp;
