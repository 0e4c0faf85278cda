//! Connections that begin with the PROXY protocol, which contains the client's address.

use std::{io, net::SocketAddr};

use ppp::{HeaderResult, PartialResult as _, v1, v2};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// First bytes of version 1.
const TEXT: &[u8] = b"PROXY ";
/// First bytes of version 2.
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Maximum length of a header; those of load balancers are much shorter.
const LONGEST: usize = 4096;

/// The first bytes of a connection.
#[derive(Debug, Default)]
pub(super) struct Start {
    /// The client's address in the header.
    pub(super) client: Option<SocketAddr>,
    /// What was read after the header, or everything without one.
    pub(super) rest: Vec<u8>,
}

/// Reads the header, if there is one, and as little after it as possible.
///
/// # Errors
/// The connection fails; the header is wrong or too long.
pub(super) async fn start(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Start> {
    let mut read = Vec::new();
    loop {
        if stream.read_buf(&mut read).await? == 0 {
            return Ok(Start { client: None, rest: read });
        }
        if !may_begin(&read, TEXT) && !may_begin(&read, BINARY) {
            return Ok(Start { client: None, rest: read });
        }
        let header = HeaderResult::parse(&read);
        if header.is_incomplete() && read.len() < LONGEST {
            continue;
        }
        let (client, length) = match header {
            HeaderResult::V1(Ok(header)) => (text(&header), header.header.len()),
            HeaderResult::V2(Ok(header)) => (binary(&header), header.len()),
            HeaderResult::V1(Err(error)) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string()));
            }
            HeaderResult::V2(Err(error)) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string()));
            }
        };
        return Ok(Start { client, rest: read.split_off(length) });
    }
}

/// Returns whether these bytes are, or may become, a header that begins like this.
fn may_begin(read: &[u8], begin: &[u8]) -> bool {
    let length = read.len().min(begin.len());
    read[..length] == begin[..length]
}

fn text(header: &v1::Header<'_>) -> Option<SocketAddr> {
    match header.addresses {
        v1::Addresses::Tcp4(four) => Some((four.source_address, four.source_port).into()),
        v1::Addresses::Tcp6(six) => Some((six.source_address, six.source_port).into()),
        v1::Addresses::Unknown => None,
    }
}

fn binary(header: &v2::Header<'_>) -> Option<SocketAddr> {
    match header.addresses {
        v2::Addresses::IPv4(four) => Some((four.source_address, four.source_port).into()),
        v2::Addresses::IPv6(six) => Some((six.source_address, six.source_port).into()),
        v2::Addresses::Unspecified | v2::Addresses::Unix(_) => None,
    }
}
