//! What balancers tell of themselves.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
};

use super::config::{BalancerId, ListenerId, MemberId, PoolId};

/// How a balancer does, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadBalancerReport {
    /// The balancer.
    pub id: BalancerId,
    /// Its address.
    pub vip: IpAddr,
    /// Its listeners, in the order in which they were asked for.
    pub listeners: Vec<ListenerReport>,
}

impl LoadBalancerReport {
    /// What changes are announced of.
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

/// How a listener does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerReport {
    /// The listener.
    pub id: ListenerId,
    /// Whether it listens.
    pub state: ListenerState,
    /// What it has done since it began to listen. Changes of the counters alone are not announced.
    pub counters: Counters,
    /// Its pool.
    pub pool: Option<PoolReport>,
}

/// Whether a listener listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenerState {
    /// It does, at this address.
    Listening(SocketAddr),
    /// It does not. [`DataPlane::apply`](super::DataPlane::apply) with the same configuration tries again.
    Failed(ListenError),
}

/// Why a listener does not listen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("listen on {address} ({protocol}): {reason}")]
pub struct ListenError {
    /// What went wrong, for programs.
    pub kind: ListenErrorKind,
    /// Where it was to listen.
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
    /// The balancer's address is not one of this machine.
    AddressNotLocal,
    /// The system does not let this process listen there.
    NotPermitted,
    /// The protocol, or its use with this pool, is not to be had here.
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
            io::ErrorKind::AddrInUse => (ListenErrorKind::PortInUse, "the port is in use".to_owned()),
            io::ErrorKind::AddrNotAvailable => {
                (ListenErrorKind::AddressNotLocal, "the address is not one of this machine".to_owned())
            }
            io::ErrorKind::PermissionDenied => (ListenErrorKind::NotPermitted, error.to_string()),
            _ => (ListenErrorKind::Other, error.to_string()),
        };
        Self { kind, address, protocol, reason }
    }
}

/// What a listener has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections (UDP: flows) that are open.
    pub active_connections: u64,
    /// Connections that were ever accepted and let in.
    pub total_connections: u64,
    /// Connections that were reset (UDP: datagrams dropped) because the client may not connect.
    pub refused_connections: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
    /// Connections and requests that no member took, requests that were none, and what ended in a panic.
    pub request_errors: u64,
    /// Tasks that ended in a panic: a mistake in the data plane, of which the log tells more. The listener goes on.
    pub panics: u64,
}

/// How a pool does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolReport {
    /// The pool.
    pub id: PoolId,
    /// Its members, in the order in which they were asked for.
    pub members: Vec<MemberReport>,
}

/// How a member does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberReport {
    /// The member.
    pub id: MemberId,
    /// Its state.
    pub state: MemberState,
    /// Connections to it that are open. Changes of the number alone are not announced.
    pub active_connections: u64,
    /// Why the last check failed; `None` when it did not.
    pub last_error: Option<String>,
}

/// A member's state, named as Octavia's operating status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// Its checks succeed.
    Online,
    /// Its checks fail: nothing new goes there.
    Error,
    /// Administratively down, or not checked yet. One that is not checked yet does get connections.
    Offline,
    /// Nothing checks it.
    NoMonitor,
    /// Its weight is 0: it keeps its connections and gets no new ones.
    Draining,
}

impl MemberState {
    /// Octavia's word.
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
