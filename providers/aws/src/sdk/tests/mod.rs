//! Against servers on loopback.
