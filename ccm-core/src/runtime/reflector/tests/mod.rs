mod decoding;
mod follow;
mod memory;
mod proto;
pub(crate) mod server;
