//! Nodes as Nova servers.
