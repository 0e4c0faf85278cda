//! Desired state of a load balancer as plain data: the input of
//! [`DataPlane::apply`](super::DataPlane::apply).
//!
//! Names and ranges are Octavia's; times are [`Duration`]s, and zero means "no limit", as in
//! haproxy.

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
            /// The ID as text.
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
    /// Identifies a load balancer.
    BalancerId
    /// Identifies a listener within its load balancer.
    ListenerId
    /// Identifies a pool.
    PoolId
    /// Identifies a member within its pool.
    MemberId
}

/// A load balancer: an address and the listeners on it.
///
/// The caller leaves out what is administratively down, except members, which are shown as
/// [`MemberState::Offline`](super::MemberState).
#[derive(Debug, Clone, PartialEq)]
pub struct LoadBalancerConfig {
    /// ID of the load balancer.
    pub id: BalancerId,
    /// The address on which every listener is bound; it must be local to this machine.
    pub vip: IpAddr,
    /// The listeners, with unique IDs, in any order.
    pub listeners: Vec<ListenerConfig>,
}

/// Protocol between a listener and its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListenerProtocol {
    /// Bytes.
    Tcp,
    /// Datagrams.
    Udp,
    /// Requests, each of which goes to a member of its own.
    Http,
    /// TLS that passes through unchanged: the same as [`Tcp`](Self::Tcp).
    Https,
    /// TLS that is terminated here; requests are handled as with [`Http`](Self::Http). Needs
    /// [`ListenerConfig::tls`].
    TerminatedHttps,
    /// Not supported: such a listener fails with
    /// [`ListenErrorKind::Unsupported`](super::ListenErrorKind).
    Sctp,
}

/// A listener: a port, and the pool behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenerConfig {
    /// ID of the listener.
    pub id: ListenerId,
    /// Its protocol.
    pub protocol: ListenerProtocol,
    /// Its port; 0 takes a free one, which [`ListenerState::Listening`](super::ListenerState)
    /// shows.
    pub port: u16,
    /// Maximum number of connections (UDP: flows) at a time; `None` for no limit.
    ///
    /// As with haproxy's `maxconn`, further connections are not accepted until one ends: they wait
    /// in the kernel's queue. Datagrams of further flows are dropped.
    pub connection_limit: Option<u32>,
    /// Its timeouts.
    pub timeouts: Timeouts,
    /// Networks from which clients may connect; empty admits everybody. Others are reset as soon as
    /// they are accepted, and their datagrams dropped.
    pub allowed_cidrs: Vec<IpNet>,
    /// Headers that are added to requests; used only by HTTP listeners.
    pub insert_headers: InsertHeaders,
    /// The certificate of a [`TerminatedHttps`](ListenerProtocol::TerminatedHttps) listener.
    pub tls: Option<TlsConfig>,
    /// The pool that connections go to. Without one, TCP connections are closed, requests are
    /// answered with 503, and datagrams are dropped.
    pub pool: Option<PoolConfig>,
}

/// Timeouts of a listener. Zero is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// How long nothing may be received from the client or sent to it. Also how long a UDP flow is
    /// remembered. 50 s.
    pub client_data: Duration,
    /// Opening a connection to one member. 5 s.
    pub member_connect: Duration,
    /// How long nothing may be received from the member or sent to it. 50 s.
    pub member_data: Duration,
    /// Waiting for data to inspect. Nothing here inspects data, so this has no effect; for a
    /// listener without rules, Octavia's own driver gives it none either. 0.
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
    /// `X-Forwarded-For`: the client's address, after any that the request already has.
    pub x_forwarded_for: bool,
    /// `X-Forwarded-Port`: the listener's port; replaces any that the request already has.
    pub x_forwarded_port: bool,
    /// `X-Forwarded-Proto`: `http` or `https`; replaces any that the request already has.
    pub x_forwarded_proto: bool,
}

/// A certificate and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate and the intermediates up to the root, PEM.
    pub certificate_chain: String,
    /// The private key, PEM.
    pub private_key: String,
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig")
            .field("certificate_chain", &self.certificate_chain)
            .finish_non_exhaustive()
    }
}

/// Protocol between a pool and its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolProtocol {
    /// Bytes.
    Tcp,
    /// Datagrams.
    Udp,
    /// Requests.
    Http,
    /// TLS that passes through unchanged.
    Https,
    /// The PROXY protocol's text header, then what came from the client.
    Proxy,
    /// The PROXY protocol's binary header, then what came from the client.
    ProxyV2,
    /// Not supported, as for the listener.
    Sctp,
}

/// How a member is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// One after the other, by weight.
    RoundRobin,
    /// The one with the fewest connections for its weight.
    LeastConnections,
    /// By the client's address: always the same member as long as it is available.
    SourceIp,
    /// By the client's address and port.
    SourceIpPort,
}

/// How a client stays with its member.
///
/// Cookies are used only in HTTP listeners, which read requests; elsewhere they have no effect. A
/// member that is disabled or unhealthy loses its clients; one of weight 0 keeps them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Persistence {
    /// The client's address. Any algorithm then chooses as [`Algorithm::SourceIp`] does.
    SourceIp,
    /// A cookie `SRV` that is set in answers to clients that have none; members do not see it.
    HttpCookie,
    /// The cookie of this name, which members set. The latest 10,000 are remembered as long as the
    /// listener listens, and the first 64 bytes of each.
    AppCookie(Arc<str>),
}

/// A pool of members.
///
/// Under two listeners it is two pools, each with its own connections, rotation and health checks.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolConfig {
    /// ID of the pool.
    pub id: PoolId,
    /// Protocol between it and its members.
    pub protocol: PoolProtocol,
    /// How a member is chosen.
    pub algorithm: Algorithm,
    /// How a client stays with its member.
    pub persistence: Option<Persistence>,
    /// The members, with unique IDs, in the order of round robin.
    pub members: Vec<MemberConfig>,
    /// How members are checked; without it all count as healthy.
    pub monitor: Option<MonitorConfig>,
}

/// A member: an address and a port that serve requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberConfig {
    /// ID of the member.
    pub id: MemberId,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its weight, 0 to 256. With 0 it gets no new connections and keeps those it has.
    pub weight: u16,
    /// True when it is used only while no other member is available.
    pub backup: bool,
    /// True when it is administratively up.
    pub enabled: bool,
    /// Address for health checks, if it is not `address`.
    pub monitor_address: Option<IpAddr>,
    /// Port for health checks, if it is not `port`.
    pub monitor_port: Option<u16>,
}

impl MemberConfig {
    /// Creates a member of weight 1 that is up and is checked where it serves.
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

    /// Returns where it serves.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Returns where it is checked.
    pub fn monitor_socket(&self) -> SocketAddr {
        SocketAddr::new(
            self.monitor_address.unwrap_or(self.address),
            self.monitor_port.unwrap_or(self.port),
        )
    }

    /// Returns whether it is checked elsewhere than where it serves.
    pub fn monitored_elsewhere(&self) -> bool {
        self.monitor_address.is_some() || self.monitor_port.is_some()
    }
}

/// How members are checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorConfig {
    /// Type of the checks.
    pub kind: MonitorKind,
    /// Time between two checks; up to a tenth is added or subtracted at random.
    pub delay: Duration,
    /// Timeout of a check; zero means `delay`.
    pub timeout: Duration,
    /// Successful checks in a row until a member is used again, 1 to 10.
    pub max_retries: u8,
    /// Failed checks in a row until a member is not used any more, 1 to 10. Octavia's default is 3.
    pub max_retries_down: u8,
}

/// Type of a health check.
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
    /// An ICMP echo is answered. Where the system does not permit such sockets, every check fails
    /// with that reason.
    Ping,
}

/// A request that shows whether a member is healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpCheck {
    /// The method, `GET`.
    pub method: http::Method,
    /// Path and query, `/`.
    pub path: String,
    /// The status codes of a healthy member.
    pub expected: ExpectedCodes,
    /// The `Host` field; `None` for the member's address.
    pub host: Option<String>,
}

impl Default for HttpCheck {
    fn default() -> Self {
        Self {
            method: http::Method::GET,
            path: "/".to_owned(),
            expected: ExpectedCodes::default(),
            host: None,
        }
    }
}

/// Status codes: one, a list or a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedCodes(Vec<(u16, u16)>);

impl ExpectedCodes {
    /// Returns whether `code` is among them.
    pub fn contains(&self, code: u16) -> bool {
        self.0
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&code))
    }
}

impl Default for ExpectedCodes {
    fn default() -> Self {
        Self(vec![(200, 200)])
    }
}

/// Status codes that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected codes {0:?} are not like \"200\", \"200,202\" or \"200-204\"")]
pub struct ExpectedCodesError(String);

impl std::str::FromStr for ExpectedCodes {
    type Err = ExpectedCodesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let code = |part: &str| {
            part.trim()
                .parse::<u16>()
                .ok()
                .filter(|code| (100..=599).contains(code))
        };
        let range = |part: &str| match part.split_once('-') {
            Some((first, last)) => {
                Some((code(first)?, code(last)?)).filter(|(first, last)| first <= last)
            }
            None => code(part).map(|code| (code, code)),
        };
        text.split(',')
            .map(range)
            .collect::<Option<_>>()
            .map(Self)
            .ok_or_else(|| ExpectedCodesError(text.to_owned()))
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
        let tls = TlsConfig {
            certificate_chain: "chain".into(),
            private_key: "hidden".into(),
        };
        assert!(!format!("{tls:?}").contains("hidden"));
    }
}
