//! On real loopback sockets.

mod change;
mod health;
mod http;
mod rig;
mod tcp;
mod udp;
