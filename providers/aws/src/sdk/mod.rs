//! The AWS SDK behind [`Transport`](crate::api::Transport): the only folder that names it.
//!
//! One [`send`](crate::api::Transport::send) is one request on the wire: the SDK's own retries are
//! off. What the SDK caches as long as the process runs (the contents of credential files, the
//! trusted CA certificates) is reloaded here when the files change.

mod ca_bundle;
mod connect;
mod convert;
mod credentials;
mod ec2;
mod elb;
mod endpoints;
mod error;
mod headers;
mod metadata;
#[cfg(test)]
mod tests;
mod transport;

pub use self::connect::{ConnectError, connect, connect_with_keys};
