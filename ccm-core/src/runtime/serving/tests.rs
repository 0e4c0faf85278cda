//! The server on loopback sockets, and its pages without one.

mod pages;
mod tls;
