//! Reports of the state of load balancers.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
};

use super::config::{BalancerId, ListenerId, MemberId, PoolId};

/// State of a load balancer at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadBalancerReport {
    /// ID of the load balancer.
    pub id: BalancerId,
    /// Its address.
    pub vip: IpAddr,
    /// Its listeners, in the order of the configuration.
    pub listeners: Vec<ListenerReport>,
}

impl LoadBalancerReport {
    /// Returns the part whose changes are announced.
    pub(super) fn without_counters(mut self) -> Self {
        for listener in &mut self.listeners {
            listener.counters = Counters::default();
            for member in listener.pool.iter_mut().flat_map(|pool| &mut pool.members) {
                member.active_connections = 0;
            }
        }
        self
    }
}

/// State of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerReport {
    /// ID of the listener.
    pub id: ListenerId,
    /// Whether it listens.
    pub state: ListenerState,
    /// Its counters since it began to listen. Changes of the counters alone are not announced.
    pub counters: Counters,
    /// Its pool.
    pub pool: Option<PoolReport>,
}

/// Whether a listener listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenerState {
    /// It listens, at this address.
    Listening(SocketAddr),
    /// It does not listen. [`DataPlane::apply`](super::DataPlane::apply) with the same
    /// configuration tries again.
    Failed(ListenError),
}

/// Why a listener does not listen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("listen on {address} ({protocol}): {reason}")]
pub struct ListenError {
    /// What went wrong, for programs.
    pub kind: ListenErrorKind,
    /// Where it should listen.
    pub address: SocketAddr,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: &'static str,
    /// What went wrong, for people.
    pub reason: String,
}

/// What keeps a listener from listening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListenErrorKind {
    /// Something else listens there.
    PortInUse,
    /// The load balancer's address is not one of this machine.
    AddressNotLocal,
    /// The system does not permit this process to listen there.
    NotPermitted,
    /// The protocol, or its combination with this pool, is not supported here.
    Unsupported,
    /// The certificate or its key is missing or cannot be used.
    Certificate,
    /// The data plane is shut down.
    Stopped,
    /// Anything else.
    Other,
}

impl ListenError {
    pub(super) fn bind(address: SocketAddr, protocol: &'static str, error: &io::Error) -> Self {
        let (kind, reason) = match error.kind() {
            io::ErrorKind::AddrInUse => {
                (ListenErrorKind::PortInUse, "the port is in use".to_owned())
            }
            io::ErrorKind::AddrNotAvailable => (
                ListenErrorKind::AddressNotLocal,
                "the address is not one of this machine".to_owned(),
            ),
            io::ErrorKind::PermissionDenied => (ListenErrorKind::NotPermitted, error.to_string()),
            _ => (ListenErrorKind::Other, error.to_string()),
        };
        Self { kind, address, protocol, reason }
    }
}

/// Counters of a listener.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Open connections (UDP: flows).
    pub active_connections: u64,
    /// All connections that were accepted and admitted.
    pub total_connections: u64,
    /// Connections that were reset (UDP: datagrams that were dropped) because the client may not
    /// connect.
    pub refused_connections: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
    /// Connections and requests that no member accepted, invalid requests, and panics.
    pub request_errors: u64,
    /// Tasks that ended in a panic: a bug in the data plane, with details in the log. The listener
    /// continues.
    pub panics: u64,
}

/// State of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolReport {
    /// ID of the pool.
    pub id: PoolId,
    /// Its members, in the order of the configuration.
    pub members: Vec<MemberReport>,
}

/// State of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberReport {
    /// ID of the member.
    pub id: MemberId,
    /// Its state.
    pub state: MemberState,
    /// Open connections to it. Changes of the number alone are not announced.
    pub active_connections: u64,
    /// Why the last check failed; `None` when it did not.
    pub last_error: Option<String>,
}

/// A member's state, named as Octavia's operating status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// Its checks succeed.
    Online,
    /// Its checks fail: it gets no new connections.
    Error,
    /// Administratively down, or not checked yet. A member that is not checked yet does get
    /// connections.
    Offline,
    /// It is not checked.
    NoMonitor,
    /// Its weight is 0: it keeps its connections and gets no new ones.
    Draining,
}

impl MemberState {
    /// Returns Octavia's name for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Online => "ONLINE",
            Self::Error => "ERROR",
            Self::Offline => "OFFLINE",
            Self::NoMonitor => "NO_MONITOR",
            Self::Draining => "DRAINING",
        }
    }
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
