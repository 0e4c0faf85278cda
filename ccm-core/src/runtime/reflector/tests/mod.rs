mod decoding;
mod follow;
mod memory;
mod proto;
mod relevance;
pub(crate) mod server;
mod services;
mod slices;
