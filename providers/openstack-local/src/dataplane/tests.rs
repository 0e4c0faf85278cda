//! On real loopback sockets.

mod change;
mod cookies;
mod health;
mod http;
mod panics;
mod rig;
mod tcp;
mod udp;
