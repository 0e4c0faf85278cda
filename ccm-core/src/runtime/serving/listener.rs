//! The listening socket.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;

/// Backlog of connections that are not accepted yet; the kernel reduces it to its own limit.
const BACKLOG: i32 = 1024;

/// Listens on an address. As in Go, an unspecified address, IPv4 or IPv6, means both address
/// families: manifests use 0.0.0.0 in IPv6 clusters, too.
///
/// `SO_REUSEADDR` is always set, as Go's and Rust's own listeners do, so that a restart does not
/// wait for old connections.
pub(super) fn listen(address: SocketAddr, share_port: bool) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return bind(address, share_port);
    }
    let any = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address.port());
    match bind(any, share_port) {
        // The machine has no IPv6.
        Err(error) if address.is_ipv4() && error.kind() != io::ErrorKind::AddrInUse => {
            bind(address, share_port)
        }
        bound => bound,
    }
}

fn bind(address: SocketAddr, share_port: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    if share_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[tokio::test]
    async fn a_port_is_shared_only_by_those_who_permit_it() {
        let first = listen((Ipv4Addr::LOCALHOST, 0).into(), true).unwrap();
        let address = first.local_addr().unwrap();
        assert_eq!(listen(address, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(listen(address, true).unwrap().local_addr().unwrap(), address);
    }
}
