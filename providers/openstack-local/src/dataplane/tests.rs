//! On real loopback sockets.

mod change;
mod cookies;
mod fixture;
mod health;
mod http;
mod panics;
mod tcp;
mod threads;
mod udp;
