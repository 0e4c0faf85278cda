//! Headers of the PROXY protocol, which show a member the client's address.

use std::io;

use ppp::{v1, v2};

use super::{config::PoolProtocol, frontend::Endpoints};

/// Returns the header that members of such a pool expect first; `None` when they expect none.
///
/// Without `ends` it is the header of a health check, which is no client's connection.
///
/// # Errors
/// Never for addresses; the encoder's type allows for them.
pub(super) fn header(
    protocol: PoolProtocol,
    ends: Option<Endpoints>,
) -> io::Result<Option<Vec<u8>>> {
    match protocol {
        PoolProtocol::Proxy => Ok(Some(text(ends).into_bytes())),
        PoolProtocol::ProxyV2 => binary(ends).map(Some),
        PoolProtocol::Tcp
        | PoolProtocol::Udp
        | PoolProtocol::Http
        | PoolProtocol::Https
        | PoolProtocol::Sctp => Ok(None),
    }
}

fn text(ends: Option<Endpoints>) -> String {
    match ends {
        Some(Endpoints { client, local }) => v1::Addresses::from((client, local)).to_string(),
        None => v1::Addresses::Unknown.to_string(),
    }
}

fn binary(ends: Option<Endpoints>) -> io::Result<Vec<u8>> {
    let (command, addresses) = match ends {
        Some(Endpoints { client, local }) => {
            (v2::Command::Proxy, v2::Addresses::from((client, local)))
        }
        None => (v2::Command::Local, v2::Addresses::Unspecified),
    };
    v2::Builder::with_addresses(v2::Version::Two | command, v2::Protocol::Stream, addresses).build()
}
