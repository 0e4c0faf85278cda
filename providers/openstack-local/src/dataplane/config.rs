//! What is wanted of a balancer, as plain data: the input of [`DataPlane::apply`](super::DataPlane::apply).
//!
//! Names and ranges are Octavia's; times are [`Duration`]s, and zero means "no limit", as haproxy has it.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The identifier as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl<T: Into<Arc<str>>> From<T> for $name {
            fn from(id: T) -> Self {
                Self(id.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

ids! {
    /// Names a balancer.
    BalancerId
    /// Names a listener within its balancer.
    ListenerId
    /// Names a pool.
    PoolId
    /// Names a member within its pool.
    MemberId
}

/// A balancer: an address and what listens on it.
///
/// What is administratively down is left out by the caller, except members, which are seen as [`MemberState::Offline`](super::MemberState).
#[derive(Debug, Clone, PartialEq)]
pub struct LoadBalancerConfig {
    /// The balancer's name.
    pub id: BalancerId,
    /// The address on which every listener is bound; it must be local to this machine.
    pub vip: IpAddr,
    /// The listeners, each with a name of its own; their order means nothing.
    pub listeners: Vec<ListenerConfig>,
}

/// What a listener speaks with its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListenerProtocol {
    /// Bytes.
    Tcp,
    /// Datagrams.
    Udp,
    /// Requests, of which each goes to a member of its own.
    Http,
    /// TLS that passes through untouched: the same as [`Tcp`](Self::Tcp).
    Https,
    /// TLS that ends here; requests go on as with [`Http`](Self::Http). Needs [`ListenerConfig::tls`].
    TerminatedHttps,
    /// Refused: such a listener fails with [`ListenErrorKind::Unsupported`](super::ListenErrorKind).
    Sctp,
}

/// A listener: a port, and the pool behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenerConfig {
    /// The listener's name.
    pub id: ListenerId,
    /// What it speaks.
    pub protocol: ListenerProtocol,
    /// Its port; 0 takes a free one, which [`ListenerState::Listening`](super::ListenerState) tells.
    pub port: u16,
    /// The most connections (UDP: flows) at a time; `None` for as many as come.
    ///
    /// As with haproxy's `maxconn`, further connections are not accepted until one ends: they wait in the kernel's queue.
    /// Datagrams of further flows are dropped.
    pub connection_limit: Option<u32>,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// Who may connect; empty lets everybody. Others are reset as soon as they are accepted, and their datagrams dropped.
    pub allowed_cidrs: Vec<IpNet>,
    /// What is added to requests; only HTTP listeners look at it.
    pub insert_headers: InsertHeaders,
    /// The certificate of a [`TerminatedHttps`](ListenerProtocol::TerminatedHttps) listener.
    pub tls: Option<TlsConfig>,
    /// Where connections go. Without one TCP connections are closed, requests answered with 503 and datagrams dropped.
    pub pool: Option<PoolConfig>,
}

/// How long things may take. Zero is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Silence of the client, nothing sent to it either. Also how long a UDP flow is remembered. 50 s.
    pub client_data: Duration,
    /// Opening a connection to one member. 5 s.
    pub member_connect: Duration,
    /// Silence of the member, nothing sent to it either. 50 s.
    pub member_data: Duration,
    /// Waiting for data to inspect. Nothing here inspects data, so this has no effect, which is also what Octavia's own
    /// driver gives a listener without rules. 0.
    pub tcp_inspect: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            client_data: Duration::from_secs(50),
            member_connect: Duration::from_secs(5),
            member_data: Duration::from_secs(50),
            tcp_inspect: Duration::ZERO,
        }
    }
}

/// Header fields that are added to requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InsertHeaders {
    /// `X-Forwarded-For`: the client's address, after any that the request brought.
    pub x_forwarded_for: bool,
    /// `X-Forwarded-Port`: the listener's port, in place of any that the request brought.
    pub x_forwarded_port: bool,
    /// `X-Forwarded-Proto`: `http` or `https`, in place of any that the request brought.
    pub x_forwarded_proto: bool,
}

/// A certificate and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate and those between it and the root, PEM.
    pub certificate_chain: String,
    /// The private key, PEM.
    pub private_key: String,
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig").field("certificate_chain", &self.certificate_chain).finish_non_exhaustive()
    }
}

/// What a pool speaks with its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolProtocol {
    /// Bytes.
    Tcp,
    /// Datagrams.
    Udp,
    /// Requests.
    Http,
    /// TLS that passes through untouched.
    Https,
    /// The PROXY protocol's text header, then what came from the client.
    Proxy,
    /// The PROXY protocol's binary header, then what came from the client.
    ProxyV2,
    /// Refused, as the listener is.
    Sctp,
}

/// How a member is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// One after the other, by weight.
    RoundRobin,
    /// The one with the fewest connections for its weight.
    LeastConnections,
    /// By the client's address, the same one as long as it is there.
    SourceIp,
    /// By the client's address and port.
    SourceIpPort,
}

/// What keeps a client with its member.
///
/// Cookies count where requests are read, in HTTP listeners; elsewhere they change nothing. A member that is disabled or
/// unwell loses its clients; one of weight 0 keeps them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Persistence {
    /// The client's address. Any algorithm then chooses as [`Algorithm::SourceIp`] does.
    SourceIp,
    /// A cookie `SRV` that answers give to clients who have none; members do not see it.
    HttpCookie,
    /// The cookie of this name, which members give to clients. The latest 10,000 are remembered, while the listener
    /// listens, and of each the first 64 bytes.
    AppCookie(Arc<str>),
}

/// A pool of members.
///
/// Under two listeners it is two pools, each with its own connections, rotation and checks.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolConfig {
    /// The pool's name.
    pub id: PoolId,
    /// What it speaks with its members.
    pub protocol: PoolProtocol,
    /// How a member is chosen.
    pub algorithm: Algorithm,
    /// What keeps a client with its member.
    pub persistence: Option<Persistence>,
    /// The members, each with a name of its own; their order is that of round robin.
    pub members: Vec<MemberConfig>,
    /// How members are checked; without it all are taken to be well.
    pub monitor: Option<MonitorConfig>,
}

/// A member: an address and a port that serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberConfig {
    /// The member's name.
    pub id: MemberId,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its share, 0 to 256. With 0 it gets no new connections and keeps those it has.
    pub weight: u16,
    /// Used only while no other member is to be had.
    pub backup: bool,
    /// Administratively up.
    pub enabled: bool,
    /// Where it is checked, if not at `address`.
    pub monitor_address: Option<IpAddr>,
    /// Where it is checked, if not at `port`.
    pub monitor_port: Option<u16>,
}

impl MemberConfig {
    /// A member of weight 1 that is up and checked where it serves.
    pub fn new(id: impl Into<MemberId>, address: SocketAddr) -> Self {
        Self {
            id: id.into(),
            address: address.ip(),
            port: address.port(),
            weight: 1,
            backup: false,
            enabled: true,
            monitor_address: None,
            monitor_port: None,
        }
    }

    /// Where it serves.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Where it is checked.
    pub fn monitor_socket(&self) -> SocketAddr {
        SocketAddr::new(self.monitor_address.unwrap_or(self.address), self.monitor_port.unwrap_or(self.port))
    }

    /// Whether it is checked elsewhere than where it serves.
    pub fn monitored_elsewhere(&self) -> bool {
        self.monitor_address.is_some() || self.monitor_port.is_some()
    }
}

/// How members are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorConfig {
    /// What a check is.
    pub kind: MonitorKind,
    /// From one check to the next; a tenth is added or taken off at random.
    pub delay: Duration,
    /// How long a check may take; zero is as long as `delay`.
    pub timeout: Duration,
    /// How many checks in a row bring a member back, 1 to 10.
    pub max_retries: u8,
    /// How many failed checks in a row take a member out, 1 to 10. Octavia's default is 3.
    pub max_retries_down: u8,
}

/// What a check is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MonitorKind {
    /// A connection can be opened.
    Tcp,
    /// A request is answered as expected.
    Http(HttpCheck),
    /// A request over TLS is answered as expected; the certificate is not verified.
    Https(HttpCheck),
    /// A TLS handshake succeeds; the certificate is not verified.
    TlsHello,
    /// A datagram is not answered with "port unreachable".
    UdpConnect,
    /// An ICMP echo is answered. Where the system permits no such socket every check fails and says so.
    Ping,
}

/// A request that tells whether a member is well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpCheck {
    /// The method, `GET`.
    pub method: http::Method,
    /// Path and query, `/`.
    pub path: String,
    /// The status codes that mean "well".
    pub expected: ExpectedCodes,
    /// The `Host` field; `None` for the member's address.
    pub host: Option<String>,
}

impl Default for HttpCheck {
    fn default() -> Self {
        Self { method: http::Method::GET, path: "/".to_owned(), expected: ExpectedCodes::default(), host: None }
    }
}

/// Status codes: one, a list or a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedCodes(Vec<(u16, u16)>);

impl ExpectedCodes {
    /// Whether `code` is among them.
    pub fn contains(&self, code: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&code))
    }
}

impl Default for ExpectedCodes {
    fn default() -> Self {
        Self(vec![(200, 200)])
    }
}

/// Status codes that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected codes {0:?} are not like \"200\", \"200,202\" or \"200-204\"")]
pub struct ExpectedCodesError(String);

impl std::str::FromStr for ExpectedCodes {
    type Err = ExpectedCodesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let code = |part: &str| part.trim().parse::<u16>().ok().filter(|code| (100..=599).contains(code));
        let range = |part: &str| match part.split_once('-') {
            Some((first, last)) => Some((code(first)?, code(last)?)).filter(|(first, last)| first <= last),
            None => code(part).map(|code| (code, code)),
        };
        text.split(',').map(range).collect::<Option<_>>().map(Self).ok_or_else(|| ExpectedCodesError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_as_octavia_writes_them() {
        for (text, inside, outside) in [
            ("200", &[200][..], &[199, 201][..]),
            ("200,202", &[200, 202], &[201]),
            ("200-204", &[200, 202, 204], &[199, 205]),
            ("200-204, 301", &[204, 301], &[300]),
        ] {
            let codes: ExpectedCodes = text.parse().unwrap();
            assert!(inside.iter().all(|code| codes.contains(*code)), "{text}");
            assert!(!outside.iter().any(|code| codes.contains(*code)), "{text}");
        }
        for text in ["", "ok", "200-", "204-200", "99", "600", "200,,201"] {
            assert_eq!(text.parse::<ExpectedCodes>(), Err(ExpectedCodesError(text.to_owned())));
        }
    }

    #[test]
    fn a_private_key_is_not_shown() {
        let tls = TlsConfig { certificate_chain: "chain".into(), private_key: "hidden".into() };
        assert!(!format!("{tls:?}").contains("hidden"));
    }
}
