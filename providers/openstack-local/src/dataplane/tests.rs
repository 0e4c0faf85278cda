//! On real loopback sockets.
