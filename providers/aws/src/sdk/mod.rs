//! Implements [`Transport`](crate::api::Transport) with the AWS SDK. No other module uses the SDK.
//!
//! One [`send`](crate::api::Transport::send) is one request on the wire, because the SDK's own
//! retries are disabled. The SDK reads credential files and trusted CA certificates only once. Here
//! they are reloaded when the files change.

mod ca_bundle;
mod connect;
mod convert;
mod credentials;
mod dry_run;
mod ec2;
mod elb;
mod endpoints;
mod error;
mod headers;
mod metadata;
mod sts;
#[cfg(test)]
mod tests;
mod transport;

pub use self::connect::{ConnectError, connect, connect_with_keys};
