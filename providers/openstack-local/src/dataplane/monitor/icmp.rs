//! ICMP echo.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;

/// What an answer must contain, besides the sequence number.
const PAYLOAD: &[u8] = b"openstack-local health check";

const HEADER: usize = 8;

/// Sends an echo request and waits for its answer. The caller applies a timeout.
///
/// # Errors
/// Those of the socket, with an explanation if the system permits none.
pub(super) async fn ping(target: IpAddr) -> io::Result<()> {
    let (socket, kind) = open(target)?;
    // A datagram socket replaces the ID with its own.
    let (identifier, sequence): (u16, u16) = (rand::random(), rand::random());
    socket.send(&request(target, identifier, sequence)).await?;
    let mut buffer = [0; 1500];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if answers(target, kind, identifier, sequence, &buffer[..length]) {
            return Ok(());
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketKind {
    /// Receives only answers to this socket, from the ICMP header on.
    Datagram,
    /// Receives every ICMP message; with IPv4 from the IP header on.
    Raw,
}

/// Opens a socket that the system permits: a datagram socket where the process's group may use one,
/// else a raw one.
fn open(target: IpAddr) -> io::Result<(UdpSocket, SocketKind)> {
    let (domain, protocol) = match target {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
    };
    let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let (socket, kind) = match Socket::new(domain, Type::DGRAM, Some(protocol)) {
        Ok(socket) => (socket, SocketKind::Datagram),
        Err(_) => match Socket::new(domain, Type::RAW, Some(protocol)) {
            Ok(socket) => (socket, SocketKind::Raw),
            Err(error) if denied(&error) => {
                let text = "the system permits this process no ICMP socket (net.ipv4.ping_group_range or CAP_NET_RAW)";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            Err(error) => return Err(error),
        },
    };
    socket.set_nonblocking(true)?;
    socket.connect(&SocketAddr::new(target, 0).into())?;
    // It only sends and receives, which is the same for every kind of datagram.
    Ok((UdpSocket::from_std(socket.into())?, kind))
}

fn request(target: IpAddr, identifier: u16, sequence: u16) -> Vec<u8> {
    let kind = if target.is_ipv4() { 8 } else { 128 };
    let mut message = vec![kind, 0, 0, 0];
    message.extend(identifier.to_be_bytes());
    message.extend(sequence.to_be_bytes());
    message.extend(PAYLOAD);
    if target.is_ipv4() {
        // With IPv6 the kernel computes it, because it covers the addresses.
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    message
}

/// Returns the checksum of RFC 1071.
fn checksum(message: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u32 = message.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

/// Returns whether this is the answer to our request.
fn answers(
    target: IpAddr,
    kind: SocketKind,
    identifier: u16,
    sequence: u16,
    packet: &[u8],
) -> bool {
    let message = match (target, kind) {
        (IpAddr::V4(target), SocketKind::Raw) => {
            let header = packet
                .first()
                .map_or(0, |first| usize::from(first & 0xf) * 4);
            let from = packet
                .get(12..16)
                .and_then(|octets| <[u8; 4]>::try_from(octets).ok())
                .map(Ipv4Addr::from);
            if from != Some(target) {
                return false;
            }
            packet.get(header..)
        }
        _ => Some(packet),
    };
    let Some(message) = message.filter(|message| message.len() >= HEADER) else {
        return false;
    };
    let answer = if target.is_ipv4() { 0 } else { 129 };
    let ours = kind == SocketKind::Datagram || message[4..6] == identifier.to_be_bytes();
    message[0] == answer
        && ours
        && message[6..8] == sequence.to_be_bytes()
        && &message[HEADER..] == PAYLOAD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_answer_to_our_own_request_counts() {
        let target: IpAddr = "127.0.0.1".parse().unwrap();
        let mut answer = request(target, 7, 9);
        assert_eq!(checksum(&answer), 0, "a message with its checksum sums up to nothing");
        assert!(!answers(target, SocketKind::Datagram, 7, 9, &answer), "a request is no answer");
        answer[0] = 0;
        assert!(answers(target, SocketKind::Datagram, 7, 9, &answer));
        assert!(
            answers(target, SocketKind::Datagram, 1, 9, &answer),
            "the kernel has put its own identifier"
        );
        assert!(!answers(target, SocketKind::Datagram, 7, 8, &answer));
        for short in 0..answer.len() {
            assert!(!answers(target, SocketKind::Datagram, 7, 9, &answer[..short]));
        }
        let mut packet = vec![0x45; 20];
        packet[12..16].copy_from_slice(&[127, 0, 0, 1]);
        packet.extend(&answer);
        assert!(answers(target, SocketKind::Raw, 7, 9, &packet));
        assert!(!answers(target, SocketKind::Raw, 6, 9, &packet), "another's request");
        packet[15] = 2;
        assert!(!answers(target, SocketKind::Raw, 7, 9, &packet), "another's answer");
    }
}
