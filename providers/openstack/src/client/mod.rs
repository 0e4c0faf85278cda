//! The way to the cloud: sockets, tokens, catalog, retries, pages, metrics; typed requests on top.

mod transport;

pub use transport::{Transport, TransportError};
