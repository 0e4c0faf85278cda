//! Addresses of the demo, and whether this machine has them.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use anyhow::anyhow;
use ipnet::Ipv4Net;
use tokio::net::TcpListener;

/// Number of the first server's address in the network.
const SERVERS: u32 = 11;
/// Number of the first load balancer's address.
const FIRST_LOAD_BALANCER: u32 = 100;
/// Number of addresses for load balancers.
const LOAD_BALANCER_ADDRESSES: u32 = 20;

/// Addresses of everything in the demo.
#[derive(Debug)]
pub(super) struct DemoAddresses {
    pub(super) network: Ipv4Net,
    /// Names and addresses of the servers.
    pub(super) nodes: Vec<(String, Ipv4Addr)>,
    /// First and last address for load balancers; the first is the one that is used.
    pub(super) load_balancers: (Ipv4Addr, Ipv4Addr),
    /// Port of the Service.
    pub(super) port: u16,
}

/// Parses `--network`.
pub(super) fn network(text: &str) -> Result<Ipv4Net, String> {
    let network: Ipv4Net = text
        .parse()
        .map_err(|_| "not a network such as 127.77.0.0/24".to_owned())?;
    let network = network.trunc();
    if !network.addr().is_loopback() || network.prefix_len() < 8 {
        return Err("not inside 127.0.0.0/8: everything here stays on loopback".to_owned());
    }
    if network.prefix_len() > 24 {
        return Err("too small: at least a /24 is needed".to_owned());
    }
    Ok(network)
}

/// Parses an address that other machines cannot reach.
pub(super) fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| "not an address and port such as 127.0.0.1:5000".to_owned())?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err("not a loopback address: other machines could reach it".to_owned())
    }
}

impl DemoAddresses {
    pub(super) fn new(network: Ipv4Net, nodes: u16, port: u16) -> Self {
        let host = |number: u32| Ipv4Addr::from_bits(network.network().to_bits() + number);
        let nodes =
            (0..u32::from(nodes)).map(|number| (format!("node-{number}"), host(SERVERS + number)));
        Self {
            network,
            nodes: nodes.collect(),
            load_balancers: (
                host(FIRST_LOAD_BALANCER),
                host(FIRST_LOAD_BALANCER + LOAD_BALANCER_ADDRESSES),
            ),
            port,
        }
    }

    /// Checks that this machine has the addresses, and that the Service's port is free.
    ///
    /// # Errors
    /// An address that cannot be used, with advice on what to do.
    pub(super) async fn check(&self) -> anyhow::Result<()> {
        let servers = self
            .nodes
            .iter()
            .map(|(_, address)| SocketAddr::new(IpAddr::V4(*address), 0));
        let service = SocketAddr::new(IpAddr::V4(self.load_balancers.0), self.port);
        for address in servers.chain([service]) {
            if let Err(error) = TcpListener::bind(address).await {
                return Err(anyhow!(self.advice(address, &error))
                    .context(format!("cannot listen on {address}: {error}")));
            }
        }
        Ok(())
    }

    fn advice(&self, address: SocketAddr, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::AddrNotAvailable => {
                let last = self
                    .nodes
                    .last()
                    .map_or(self.load_balancers.0, |(_, address)| *address);
                let first = self.nodes.first().map_or(last, |(_, address)| *address);
                format!(
                    "this machine does not have the address. Linux has all of 127.0.0.0/8; elsewhere {first} to {last} and \
                     {} each need an alias, such as `sudo ifconfig lo0 alias {}`",
                    self.load_balancers.0,
                    address.ip()
                )
            }
            io::ErrorKind::AddrInUse => {
                "somebody else listens there: --port or --network chooses another".to_owned()
            }
            io::ErrorKind::PermissionDenied => {
                "this port needs privileges: --port chooses another".to_owned()
            }
            _ => "--network or --port chooses another".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_of_loopback_and_large_enough() {
        assert_eq!(network("127.9.1.7/24").unwrap().to_string(), "127.9.1.0/24");
        assert_eq!(network("127.0.0.0/8").unwrap().to_string(), "127.0.0.0/8");
        for (text, words) in [
            ("127.9.1.0", "not a network"),
            ("127.9.1.0/25", "/24"),
            ("10.0.0.0/16", "loopback"),
            ("0.0.0.0/0", "loopback"),
        ] {
            assert!(network(text).unwrap_err().contains(words), "{text}");
        }
        assert!(loopback("127.0.0.1:0").is_ok() && loopback("[::1]:1").is_ok());
        assert!(
            loopback("0.0.0.0:5000")
                .unwrap_err()
                .contains("other machines")
        );
        assert!(loopback("localhost").is_err());
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        let place = DemoAddresses::new(network("127.9.1.0/24").unwrap(), 3, 80);
        let at = SocketAddr::new(IpAddr::V4(place.nodes[1].1), 0);
        let said = place.advice(at, &io::ErrorKind::AddrNotAvailable.into());
        for words in ["127.9.1.11 to 127.9.1.13", "127.9.1.100", "ifconfig lo0 alias 127.9.1.12"] {
            assert!(said.contains(words), "{said}");
        }
        assert!(
            place
                .advice(at, &io::ErrorKind::AddrInUse.into())
                .contains("--port")
        );
        assert!(
            place
                .advice(at, &io::ErrorKind::PermissionDenied.into())
                .contains("privileges")
        );
    }
}
